"""Settings of certificates, callers and their roles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from scorer.config.fields import Directory, OptionalPath, Section, is_loopback
from scorer.credentials import ClientTls

Role = Literal[
    "score",
    "select",
    "report_outcomes",
    "report_reviews",
    "record_events",
    "describe",
    "explain",
    "observe",
    "operate",
]
Algorithm = Literal["EdDSA", "ES256", "ES384", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]

_PRINCIPAL = re.compile(r"(spiffe://|dns:|jwt:|uid:)[\x21-\x29\x2b-\x7e]*\*?")
_CHECKPOINT = re.compile(r"[^*]{0,127}\*?")


def _together(value: Path | None, info: ValidationInfo, other: str) -> Path | None:
    if other in info.data and (value is None) != (info.data[other] is None):
        raise ValueError(f"{other} and {info.field_name} go together: set both or neither")
    return value


class TlsSettings(Section):
    """TLS of `listen` and of the control service. The files are read again when they change."""

    certificate: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='Certificate chain of the server, PEM. "off": no TLS.',
        examples=["tls/server.pem"],
    )
    key: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Private key of the certificate, PEM. Only the server may read the file.",
        examples=["tls/server.key"],
    )
    client_ca: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Certificate authorities for client certificates, PEM. Needs grants in [identity].",
        examples=["tls/ca.pem"],
    )
    client_certificates: Literal["off", "optional", "required"] = Field(
        default="required",
        description="With `client_ca`: whether a client must present a certificate. With `optional`, it may "
        "authenticate with a token instead.",
    )
    crl: list[Directory] = Field(
        default=[],
        max_length=64,
        description="Certificate revocation lists, PEM. If there is any, a certificate whose issuer has no "
        "list is rejected.",
    )
    expired_crl: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="Effect of an expired list: `refuse` rejects every certificate of its issuer, `accept` "
        "still uses the list.",
    )
    min_version: Literal["1.2", "1.3"] = Field(default="1.3", description="Oldest version of TLS.")
    handshake_ms: int = Field(
        default=2000, ge=10, le=60_000, description="Time limit of a handshake, milliseconds."
    )
    reload_ms: int = Field(
        default=1000,
        ge=10,
        le=86_400_000,
        description="Interval at which the files are read again, milliseconds. If the new content is not "
        "valid, the previous content stays in use.",
    )

    @property
    def enabled(self) -> bool:
        """Whether the server uses TLS."""
        return self.certificate is not None

    @property
    def knows_clients(self) -> bool:
        """Whether clients can present certificates."""
        return self.enabled and self.client_ca is not None and self.client_certificates != "off"

    @field_validator("key")
    @classmethod
    def _key_goes_with_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return _together(value, info, "certificate")

    @field_validator("client_ca")
    @classmethod
    def _clients_need_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and "certificate" in info.data and info.data["certificate"] is None:
            raise ValueError("client_ca is set and certificate is not: set it, or remove client_ca")
        return value

    @field_validator("crl")
    @classmethod
    def _lists_need_authorities(cls, value: list[Path], info: ValidationInfo) -> list[Path]:
        if value and "client_ca" in info.data and info.data["client_ca"] is None:
            raise ValueError("crl is set and client_ca is not: set it, or remove the lists")
        return value


class ClientTlsSettings(Section):
    """TLS of calls to another server: certificate authorities, and this client's certificate."""

    ca: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='Certificate authorities for the server\'s certificate, PEM. "off": no TLS.',
        examples=["tls/ca.pem"],
    )
    certificate: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Certificate chain of this client, PEM.",
        examples=["tls/server.pem"],
    )
    key: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Private key of the certificate, PEM.",
        examples=["tls/server.key"],
    )
    server_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name in the server's certificate. Default: the host of its address.",
        examples=["scorer-shadow"],
    )

    @field_validator("key")
    @classmethod
    def _key_goes_with_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return _together(value, info, "certificate")


class JwtSettings(Section):
    """Bearer tokens (JWT) in the metadata `authorization`."""

    issuer: str | None = Field(
        default=None,
        min_length=1,
        description="Required value of the claim `iss`. Unset: no tokens are accepted.",
        examples=["https://issuer.example"],
    )
    audience: str | None = Field(
        default=None,
        min_length=1,
        description="Value that the claim `aud` must contain.",
        examples=["scorer"],
    )
    algorithms: list[Algorithm] = Field(
        default=["EdDSA", "ES256"], min_length=1, description="Signature algorithms that are accepted."
    )
    keys: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File of the issuer's keys, a JSON Web Key Set. With `keys_url`: file that fetched keys "
        "are stored in.",
        examples=["jwks.json"],
    )
    keys_url: str | None = Field(
        default=None,
        description="URL (https) that the keys are fetched from. While it cannot be reached, the last keys "
        "are used until `max_age_s`.",
        examples=["https://issuer.example/.well-known/jwks.json"],
    )
    fetch_s: int = Field(
        default=300, ge=1, le=86_400, description="Interval at which `keys_url` is fetched, seconds."
    )
    max_age_s: int = Field(
        default=86_400,
        ge=1,
        le=2_592_000,
        description="Age after which fetched keys are no longer used and every token is rejected, seconds.",
    )
    leeway_s: int = Field(
        default=10, ge=0, le=30, description="Allowed clock difference for times in tokens, seconds."
    )
    max_bytes: int = Field(default=4096, ge=256, le=16_384, description="Largest token, bytes.")
    cache_s: int = Field(
        default=30,
        ge=0,
        le=60,
        description="Time for which a verified token is not verified again, seconds.",
    )
    cache_tokens: int = Field(
        default=4096, ge=1, le=1_048_576, description="Largest number of verified tokens in the cache."
    )

    @field_validator("keys_url")
    @classmethod
    def _encrypted(cls, value: str | None) -> str | None:
        if value is None:
            return None
        url = urlsplit(value)
        local = url.scheme == "http" and is_loopback(f"{url.hostname}:0")
        if (url.scheme != "https" and not local) or not url.hostname or url.username or url.fragment:
            raise ValueError(f'"{value}" is no https URL without user and fragment; keys must come encrypted')
        return value


class GrantSettings(Section):
    """The roles that one principal has, and the checkpoints at which it has them."""

    principal: str = Field(
        max_length=256,
        description="`spiffe://...`, `dns:...`, `jwt:<sub>` or `uid:...`. A final * matches every principal "
        "with the text before it as prefix.",
    )
    roles: list[Role] = Field(min_length=1, description="Roles of the principal.")
    checkpoints: list[str] = Field(
        default=["*"],
        min_length=1,
        description="Checkpoints of the roles. A final * matches every name with the text before it as "
        "prefix.",
    )
    tenant: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Tenant of the principal. Decision tokens are valid for all principals of a tenant, such "
        "as a service that requests decisions and one that reports outcomes. Default: every principal is its "
        "own tenant.",
        examples=["shop"],
    )

    @field_validator("principal")
    @classmethod
    def _is_principal(cls, value: str) -> str:
        if not _PRINCIPAL.fullmatch(value):
            raise ValueError(
                f'"{value}" is no principal; it begins with spiffe://, dns:, jwt: or uid:, and * stands only '
                "at its end"
            )
        return value

    @field_validator("checkpoints")
    @classmethod
    def _are_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not name or not _CHECKPOINT.fullmatch(name):
                raise ValueError(f'"{name}" is no checkpoint; * stands only at its end')
        return value


class IdentitySettings(Section):
    """Permissions of callers. Once there is a grant, everything that is not granted is denied."""

    trust_domain: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9._-]{1,200}$",
        description="Required trust domain of SPIFFE ids. Unset: any that the authorities certify.",
        examples=["example.org"],
    )
    grants: list[GrantSettings] = Field(
        default=[],
        max_length=10_000,
        description="Roles (score, select, report_outcomes, report_reviews, record_events, describe, "
        "explain, observe, operate) of principals at checkpoints: `{ principal, roles, checkpoints }`.",
    )
    jwt: JwtSettings = Field(default_factory=JwtSettings)

    @property
    def enabled(self) -> bool:
        """Whether callers need a grant."""
        return bool(self.grants)

    @field_validator("jwt")
    @classmethod
    def _tokens_are_complete(cls, value: JwtSettings) -> JwtSettings:
        given = {"issuer": value.issuer, "audience": value.audience, "keys": value.keys}
        missing = [name for name, setting in given.items() if setting is None]
        if 0 < len(missing) < len(given):
            raise ValueError(f"{', '.join(missing)} is not set: tokens need issuer, audience and keys")
        if value.keys_url is not None and missing:
            raise ValueError("keys_url is set without issuer, audience and keys: set them")
        return value


def tls_config(settings: TlsSettings) -> dict[str, Any] | None:
    """Return the settings in the data plane's format, or None without TLS."""
    if not settings.enabled:
        return None
    return {
        "certificate": str(settings.certificate),
        "key": str(settings.key),
        "client_ca": None if settings.client_ca is None else str(settings.client_ca),
        "client_certificates": settings.client_certificates,
        "crl": [str(path) for path in settings.crl],
        "expired_crl": settings.expired_crl,
        "min_version": settings.min_version,
        "handshake_ms": settings.handshake_ms,
        "reload_ms": settings.reload_ms,
    }


def encrypted_or_near(value: str | None, info: ValidationInfo, *, tls: str, name: str) -> str | None:
    """Check that what is sent to another machine is encrypted, unless `allow_remote` is set.

    Args:
        value: Address of the other server; None: there is none.
        info: The fields of the section that were validated before.
        tls: Field of the section with the TLS of these calls.
        name: Name of that field in the settings file, for the message.

    Returns:
        The address.

    Raises:
        ValueError: The address is another machine, without TLS.
    """
    settings: ClientTlsSettings | None = info.data.get(tls)
    if value is None or is_loopback(value) or (settings is not None and settings.ca is not None):
        return value
    if info.data.get("allow_remote") is False:
        raise ValueError(
            f'"{value}" is another machine, and what is sent there is not encrypted; set {name}.ca, '
            "or allow_remote = true, or use 127.0.0.1"
        )
    return value


def client_tls_config(settings: ClientTlsSettings) -> dict[str, Any] | None:
    """Return the settings in the data plane's format, or None without TLS."""
    if settings.ca is None:
        return None
    return {
        "ca": str(settings.ca),
        "certificate": None if settings.certificate is None else str(settings.certificate),
        "key": None if settings.key is None else str(settings.key),
        "server_name": settings.server_name,
    }


def client_tls(settings: ClientTlsSettings) -> ClientTls | None:
    """Return the files for TLS of the Python client, or None without TLS."""
    if settings.ca is None:
        return None
    return ClientTls(settings.ca, settings.certificate, settings.key, settings.server_name)


def identity_config(settings: IdentitySettings) -> dict[str, Any] | None:
    """Return the settings in the data plane's format, or None if callers need no grant."""
    if not settings.enabled:
        return None
    jwt = settings.jwt
    return {
        "trust_domain": settings.trust_domain,
        "grants": [grant.model_dump() for grant in settings.grants],
        "jwt": None
        if jwt.issuer is None
        else {
            "issuer": jwt.issuer,
            "audience": jwt.audience,
            "algorithms": list(jwt.algorithms),
            "keys": str(jwt.keys),
            "max_age_s": None if jwt.keys_url is None else jwt.max_age_s,
            "leeway_s": jwt.leeway_s,
            "max_bytes": jwt.max_bytes,
            "cache_s": jwt.cache_s,
            "cache_tokens": jwt.cache_tokens,
        },
    }
