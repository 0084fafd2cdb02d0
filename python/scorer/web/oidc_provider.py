"""Metadata and keys of an OpenID provider.

They are read on first use and cached for an hour. A token with an unknown key causes the keys to be read
again. After a read that failed, none is tried for some seconds, so that callers with forged tokens do not
make threads wait for a provider that does not respond.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from scorer.release.errors import NotAuthenticatedError, UnreachableError

LEEWAY_SECONDS = 60
"""Tolerance of times in tokens."""
TIMEOUT = (3.0, 5.0)
"""Seconds to connect, and to read."""
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Accepted algorithms, all with public keys. Shared secrets and "none" would let others forge tokens."""
_KEPT_SECONDS = 3600.0
_RETRY_SECONDS = 5.0
_MOST_BYTES = 1 << 20
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class OidcProvider:
    """Reads an OpenID provider. Safe to use from any thread.

    Args:
        issuer: Issuer URL.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self._lock = threading.Lock()
        self._metadata: dict[str, Any] = {}
        self._keys: Any = None
        self._read_at = self._keys_at = self._failed_at = float("-inf")

    def metadata(self) -> dict[str, Any]:
        """Return the provider's metadata (OpenID Connect Discovery). Raises UnreachableError."""
        with self._lock:
            now = time.monotonic()
            if now - self._read_at < _KEPT_SECONDS:
                return self._metadata
            with self._one_try():
                found = self.get(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
                self._check(found)
            self._metadata, self._read_at = found, now
            return found

    def decoded(self, token: str) -> Any:
        """Return a token whose signature is of a key of the provider, with its header and its claims.

        Raises:
            NotAuthenticatedError: The text is no token, or its signature is not the provider's.
            UnreachableError: The provider's keys cannot be read.
        """
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        try:
            try:
                return jwt.decode(token, self._key_set(), algorithms=_ALGORITHMS)
            except InvalidKeyIdError:
                return jwt.decode(token, self._key_set(fresh=True), algorithms=_ALGORITHMS)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise invalid_token(error) from error

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return a JSON document of the provider. Raises UnreachableError."""
        import requests

        try:
            with requests.get(
                url, headers=dict(headers or {}), timeout=TIMEOUT, allow_redirects=False, stream=True
            ) as answer:
                body = answer.raw.read(_MOST_BYTES + 1, decode_content=True)
                if answer.status_code != 200 or len(body) > _MOST_BYTES:
                    raise ValueError(f"status {answer.status_code}, {len(body)} bytes")  # noqa: TRY301
                found = json.loads(body)
        except (requests.RequestException, OSError, ValueError) as error:
            raise self.away(error) from error
        if not isinstance(found, dict):
            raise self.away(None)
        return found

    def away(self, error: Exception | None) -> UnreachableError:
        """Return the error of a provider that does not respond as it should."""
        about = f" ({type(error).__name__})" if error else ""
        return UnreachableError(
            f"the identity provider {self.issuer} does not respond{about}; retry, or use a token of the "
            "platform"
        )

    @contextmanager
    def _one_try(self) -> Iterator[None]:
        """Raise UnreachableError at once if a read failed a moment ago. The caller holds the lock."""
        if time.monotonic() - self._failed_at < _RETRY_SECONDS:
            raise self.away(None)
        try:
            yield
        except UnreachableError:
            self._failed_at = time.monotonic()
            raise

    def _check(self, metadata: Mapping[str, Any]) -> None:
        """Raise UnreachableError if the metadata are of another issuer or contain plain HTTP addresses."""
        if metadata.get("issuer") != self.issuer:
            raise UnreachableError(
                f"[oidc] issuer is {self.issuer}, but the provider's issuer is "
                f"{str(metadata.get('issuer'))[:200]}; set issuer to that"
            )
        optional = [name for name in ("userinfo_endpoint", "end_session_endpoint") if name in metadata]
        for name in (*_ENDPOINTS, *optional):
            url = metadata.get(name)
            scheme = urlsplit(url).scheme if isinstance(url, str) else ""
            if scheme not in ("https", urlsplit(self.issuer).scheme):
                raise UnreachableError(
                    f"the identity provider's {name} is not an https:// address; ask its operator"
                )

    def _key_set(self, *, fresh: bool = False) -> Any:
        from joserfc.jwk import KeySet

        url = self.metadata()["jwks_uri"]
        with self._lock:
            now = time.monotonic()
            age = now - self._keys_at
            if self._keys is None or age > (_RETRY_SECONDS if fresh else _KEPT_SECONDS):
                with self._one_try():
                    found = self.get(url)
                keys = [key for key in found.get("keys", ()) if key.get("kty") != "oct"]
                self._keys, self._keys_at = KeySet.import_key_set({"keys": keys}), now
            return self._keys


def invalid_token(error: Exception) -> NotAuthenticatedError:
    """Return the error of a token that breaks a rule of its format."""
    return NotAuthenticatedError(
        f"the identity provider's token is not valid ({type(error).__name__}: {str(error)[:150]})"
    )
