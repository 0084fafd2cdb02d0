"""Settings of certificates, callers and their roles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from scorer.config.fields import Directory, OptionalPath, Section, is_loopback
from scorer.credentials import ClientTls

Role = Literal["score", "select", "report_outcomes", "describe", "observe", "operate"]
Algorithm = Literal["EdDSA", "ES256", "ES384", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]

_PRINCIPAL = re.compile(r"(spiffe://|dns:|jwt:|uid:)[\x21-\x29\x2b-\x7e]*\*?")
_CHECKPOINT = re.compile(r"[^*]{0,127}\*?")


def _together(value: Path | None, info: ValidationInfo, other: str) -> Path | None:
    if other in info.data and (value is None) != (info.data[other] is None):
        raise ValueError(f"{other} and {info.field_name} go together: set both or neither")
    return value


class TlsSettings(Section):
    """TLS of `listen` and of the control service; the files are read again when they change."""

    certificate: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='Certificate chain of the server, PEM. "off": no TLS.',
        examples=["tls/server.pem"],
    )
    key: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Its private key, PEM, readable by the server alone.",
        examples=["tls/server.key"],
    )
    client_ca: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Authorities that vouch for clients, PEM. Needs grants in [identity].",
        examples=["tls/ca.pem"],
    )
    client_certificates: Literal["off", "optional", "required"] = Field(
        default="required",
        description="With `client_ca`: whether a client presents a certificate. `optional` leaves it the "
        "choice of a token.",
    )
    crl: list[Directory] = Field(
        default=[],
        max_length=64,
        description="Revocation lists, PEM. With any, a certificate whose issuer has no list is refused.",
    )
    expired_crl: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="What an expired list means: every certificate of its issuer is refused, or the list is "
        "used all the same.",
    )
    min_version: Literal["1.2", "1.3"] = Field(default="1.3", description="Oldest version of TLS.")
    handshake_ms: int = Field(
        default=2000, ge=10, le=60_000, description="Time limit of a handshake, milliseconds."
    )
    reload_ms: int = Field(
        default=1000,
        ge=10,
        le=86_400_000,
        description="Interval at which the files are read again, milliseconds. Content that cannot be used "
        "leaves the content before in use.",
    )

    @property
    def enabled(self) -> bool:
        """Whether the server speaks TLS."""
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
    """Certificates for calls of another server, and the authorities that its own is checked against."""

    ca: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='Authorities that vouch for the server, PEM. "off": no TLS.',
        examples=["tls/ca.pem"],
    )
    certificate: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Certificate chain of this client, PEM.",
        examples=["tls/server.pem"],
    )
    key: OptionalPath = Field(
        default=None, validate_default=True, description="Its private key, PEM.", examples=["tls/server.key"]
    )
    server_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="The name in the server's certificate. Default: the host of its address.",
        examples=["scorer-shadow"],
    )

    @field_validator("key")
    @classmethod
    def _key_goes_with_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return _together(value, info, "certificate")


class JwtSettings(Section):
    """Bearer tokens, from the metadata `authorization`."""

    issuer: str | None = Field(
        default=None,
        min_length=1,
        description="The claim `iss` of every token. Unset: no tokens are accepted.",
        examples=["https://issuer.example"],
    )
    audience: str | None = Field(
        default=None, min_length=1, description="What the claim `aud` has to name.", examples=["scorer"]
    )
    algorithms: list[Algorithm] = Field(
        default=["EdDSA", "ES256"], min_length=1, description="Signature algorithms that are accepted."
    )
    keys: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File of the issuer's keys, a JSON Web Key Set. With `keys_url`: where they are kept.",
        examples=["jwks.json"],
    )
    keys_url: str | None = Field(
        default=None,
        description="Where the keys are fetched, by https. While the issuer is away, the last keys are used "
        "until `max_age_s`.",
        examples=["https://issuer.example/.well-known/jwks.json"],
    )
    fetch_s: int = Field(
        default=300, ge=1, le=86_400, description="Interval at which `keys_url` is fetched, seconds."
    )
    max_age_s: int = Field(
        default=86_400,
        ge=1,
        le=2_592_000,
        description="Age at which fetched keys are used no more: then every token is refused, seconds.",
    )
    leeway_s: int = Field(
        default=10, ge=0, le=30, description="Difference of clocks that is allowed, seconds."
    )
    max_bytes: int = Field(default=4096, ge=256, le=16_384, description="Longest token, bytes.")
    cache_s: int = Field(
        default=30,
        ge=0,
        le=60,
        description="Seconds for which a verified token is not verified again.",
    )
    cache_tokens: int = Field(
        default=4096, ge=1, le=1_048_576, description="Verified tokens that are remembered."
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
        description="`spiffe://...`, `dns:...`, `jwt:<sub>` or `uid:...`; one that ends in * matches every "
        "name that begins so.",
    )
    roles: list[Role] = Field(min_length=1, description="What it may do.")
    checkpoints: list[str] = Field(
        default=["*"], min_length=1, description="Where; a name that ends in * matches those that begin so."
    )
    tenant: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Principals of one tenant accept one another's decision tokens, such as the service that "
        "asks for decisions and the one that reports outcomes. Default: each is a tenant of its own.",
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
    """Who may call, and what for. With any grant, whatever is not granted is denied."""

    trust_domain: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9._-]{1,200}$",
        description="Trust domain of SPIFFE ids. Unset: any that the authorities vouch for.",
        examples=["example.org"],
    )
    grants: list[GrantSettings] = Field(
        default=[],
        max_length=10_000,
        description="Roles (score, select, report_outcomes, describe, observe, operate) of principals at "
        "checkpoints: `{ principal, roles, checkpoints }`.",
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
    """The settings as the data plane reads them; None without TLS."""
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


def client_tls_config(settings: ClientTlsSettings) -> dict[str, Any] | None:
    """The settings as the data plane reads them; None without TLS."""
    if settings.ca is None:
        return None
    return {
        "ca": str(settings.ca),
        "certificate": None if settings.certificate is None else str(settings.certificate),
        "key": None if settings.key is None else str(settings.key),
        "server_name": settings.server_name,
    }


def client_tls(settings: ClientTlsSettings) -> ClientTls | None:
    """The files of a client; None without TLS."""
    if settings.ca is None:
        return None
    return ClientTls(settings.ca, settings.certificate, settings.key, settings.server_name)


def identity_config(settings: IdentitySettings) -> dict[str, Any] | None:
    """The settings as the data plane reads them; None where callers need no grant."""
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
