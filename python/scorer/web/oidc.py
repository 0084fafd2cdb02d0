"""Sign-in at an OpenID provider, by authorization code with PKCE and Authlib.

The provider's metadata and keys are read on first use and cached for an hour. A token with an unknown key
causes the keys to be read again. The state of a sign-in between its two requests (state, nonce, verifier) is
in a signed cookie, so that any platform process can complete it.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from scorer.release.access.provided import ProvidedIdentity, highest, printable
from scorer.release.errors import NotAuthenticatedError, UnreachableError
from scorer.release.model import Role

if TYPE_CHECKING:
    from scorer.release.oidc_settings import OidcSettings
    from scorer.web.identity import Identity

CALLBACK = "/login/oidc/callback"
PENDING_SECONDS = 600
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Accepted algorithms, all with public keys. Shared secrets and "none" would let others forge tokens."""
_KEPT_SECONDS = 3600.0
_RETRY_SECONDS = 5.0
_TIMEOUT = (3.0, 5.0)
_MOST_BYTES = 1 << 20
_LEEWAY_SECONDS = 60
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True)
class Pending:
    """The state of a sign-in while the browser is at the provider."""

    state: str
    nonce: str
    verifier: str
    following: str
    until: int


class OidcSignIn:
    """Client of an OpenID provider.

    Args:
        settings: The provider, and the roles of its groups.
        public_url: Address of the platform for browsers.
        identity: Signs the cookie with a key that all platform processes share.
    """

    def __init__(self, settings: OidcSettings, public_url: str, identity: Identity) -> None:
        self._settings, self._signer = settings, identity
        self._issuer = settings.issuer or ""
        self._redirect = public_url.rstrip("/") + CALLBACK
        self._after = public_url.rstrip("/") + "/login?why=out"
        file = settings.client_secret_file
        self._secret = file.read_text().strip() if file else None
        self._lock = threading.Lock()
        self._metadata: dict[str, Any] = {}
        self._keys: Any = None
        self._read_at = self._keys_at = self._failed_at = float("-inf")

    # --- the two requests ---

    def begin(self, following: str) -> tuple[str, str]:
        """Start a sign-in. Returns the provider's address to redirect to, and the cookie's value."""
        pending = Pending(
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(48),
            following,
            int(time.time()) + PENDING_SECONDS,
        )
        with self._client() as client:
            url, _ = client.create_authorization_url(
                self._provider()["authorization_endpoint"],
                state=pending.state,
                code_verifier=pending.verifier,
                nonce=pending.nonce,
            )
        payload = base64.urlsafe_b64encode(json.dumps(vars(pending)).encode()).decode()
        return url, f"{payload}.{self._signer.sign(f'oidc:{payload}')}"

    def pending(self, cookie: str) -> Pending:
        """Read the cookie of a sign-in. Raises NotAuthenticatedError."""
        payload, _, signature = cookie.partition(".")
        if payload and self._signer.has_signed(f"oidc:{payload}", signature):
            pending = Pending(**json.loads(base64.urlsafe_b64decode(payload)))
            if pending.until >= time.time():
                return pending
        raise NotAuthenticatedError("the sign-in took too long or started in another browser; start again")

    def finish(self, pending: Pending, answer: Mapping[str, str]) -> ProvidedIdentity:
        """Complete a sign-in and return the authenticated user.

        Args:
            pending: State of the sign-in, from the cookie.
            answer: Query parameters of the provider's redirect.

        Raises:
            NotAuthenticatedError: The response does not belong to this sign-in, or is not valid.
            UnreachableError: The provider does not respond.
        """
        if not hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise NotAuthenticatedError("the response belongs to another sign-in; start again")
        if answer.get("iss", self._issuer) != self._issuer:
            raise NotAuthenticatedError("the response is of another identity provider; start again")
        if "error" in answer or not answer.get("code"):
            raise NotAuthenticatedError(
                f"the identity provider rejected the sign-in: {answer.get('error', 'it sent no code')[:100]}"
            )
        token = self._exchange(answer["code"], pending)
        claims = self._verified(str(token.get("id_token", "")), pending.nonce, token.get("access_token"))
        missing = {self._settings.user_claim, self._settings.groups_claim} - set(claims)
        if missing and token.get("access_token") and "userinfo_endpoint" in self._metadata:
            claims = {**self._user_information(str(token["access_token"]), str(claims["sub"])), **claims}
        return self._identity(claims)

    def end_url(self) -> str:
        """Return the provider's address that ends its session; empty if it has none."""
        endpoint = self._provider().get("end_session_endpoint", "")
        if not endpoint:
            return ""
        given = urlencode({"client_id": self._settings.client_id, "post_logout_redirect_uri": self._after})
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{given}"

    # --- the authenticated user ---

    def _identity(self, claims: Mapping[str, Any]) -> ProvidedIdentity:
        own = self._settings
        user = claims.get(own.user_claim)
        if not isinstance(user, str) or not printable(user):
            raise NotAuthenticatedError(f"the identity provider sent no {own.user_claim}; ask an admin")
        if own.user_claim == "email" and claims.get("email_verified") is not True:
            raise NotAuthenticatedError(
                f"the identity provider has not verified {user[:100]}; ask its operator"
            )
        sent = claims.get(own.groups_claim, ())
        groups = {each for each in ([sent] if isinstance(sent, str) else sent or ()) if isinstance(each, str)}
        granted = [grant for grant in own.grants if grant.group in groups]
        roles: dict[str, Role | None] = {grant.project: None for grant in own.grants if grant.project}
        for grant in granted:
            if grant.project:
                roles[grant.project] = highest(roles[grant.project], grant.role)
        if own.allowed_groups and not groups & set(own.allowed_groups):
            raise NotAuthenticatedError(f"{user[:100]} is in no group that may sign in; ask an admin")
        decides_admin = any(grant.role is Role.ADMIN for grant in own.grants)
        return ProvidedIdentity(
            subject=f"{self._issuer}#{claims['sub']}",
            user=user,
            is_known=bool(granted or own.allowed_groups),
            admin=any(grant.role is Role.ADMIN for grant in granted) if decides_admin else None,
            roles=roles,
        )

    def _verified(self, id_token: str, nonce: str, access_token: Any) -> dict[str, Any]:
        """Return the claims of an ID token after every check of OpenID Connect Core, 3.1.3.7."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        try:
            try:
                token = jwt.decode(id_token, self._key_set(), algorithms=_ALGORITHMS)
            except InvalidKeyIdError:
                token = jwt.decode(id_token, self._key_set(fresh=True), algorithms=_ALGORITHMS)
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": self._issuer},
                    "aud": {"essential": True, "value": self._settings.client_id},
                },
                params={
                    "nonce": nonce,
                    "client_id": self._settings.client_id,
                    "access_token": access_token,
                },
            )
            claims.validate(leeway=_LEEWAY_SECONDS)
            if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
                raise NotAuthenticatedError("the identity provider's token has no subject")
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise NotAuthenticatedError(
                f"the identity provider's token is not valid ({type(error).__name__}: {str(error)[:150]})"
            ) from error
        return dict(claims)

    def _user_information(self, access_token: str, subject: str) -> dict[str, Any]:
        found = self._get(self._metadata["userinfo_endpoint"], {"Authorization": f"Bearer {access_token}"})
        if found.get("sub") != subject:
            raise NotAuthenticatedError("the identity provider's user information is of another subject")
        return found

    # --- the provider ---

    def _client(self) -> Any:
        from authlib.integrations.requests_client import OAuth2Session

        return OAuth2Session(
            self._settings.client_id,
            self._secret,
            scope=" ".join(self._settings.scopes),
            redirect_uri=self._redirect,
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
        )

    def _exchange(self, code: str, pending: Pending) -> dict[str, Any]:
        from authlib.integrations.base_client import OAuthError
        from requests import RequestException

        endpoint = self._provider()["token_endpoint"]
        try:
            with self._client() as client:
                found: dict[str, Any] = client.fetch_token(
                    endpoint,
                    code=code,
                    grant_type="authorization_code",
                    code_verifier=pending.verifier,
                    timeout=_TIMEOUT,
                    allow_redirects=False,
                )
        except OAuthError as error:
            raise NotAuthenticatedError(
                f"the identity provider rejected the sign-in: {str(error)[:150]}"
            ) from error
        except (RequestException, ValueError) as error:
            raise self._away(error) from error
        return found

    def _provider(self) -> dict[str, Any]:
        """Return the provider's metadata (OpenID Connect Discovery)."""
        with self._lock:
            now = time.monotonic()
            if now - self._read_at < _KEPT_SECONDS:
                return self._metadata
            if now - self._failed_at < _RETRY_SECONDS:
                raise self._away(None)
            try:
                found = self._get(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
                self._check(found)
            except UnreachableError:
                self._failed_at = now
                raise
            self._metadata, self._read_at = found, now
            return found

    def _check(self, metadata: Mapping[str, Any]) -> None:
        """Raise UnreachableError if the metadata are of another issuer or contain plain HTTP addresses."""
        if metadata.get("issuer") != self._issuer:
            raise UnreachableError(
                f"[oidc] issuer is {self._issuer}, but the provider's issuer is "
                f"{str(metadata.get('issuer'))[:200]}; set issuer to that"
            )
        optional = [name for name in ("userinfo_endpoint", "end_session_endpoint") if name in metadata]
        for name in (*_ENDPOINTS, *optional):
            url = metadata.get(name)
            scheme = urlsplit(url).scheme if isinstance(url, str) else ""
            if scheme not in ("https", urlsplit(self._issuer).scheme):
                raise UnreachableError(
                    f"the identity provider's {name} is not an https:// address; ask its operator"
                )

    def _key_set(self, *, fresh: bool = False) -> Any:
        from joserfc.jwk import KeySet

        url = self._provider()["jwks_uri"]
        with self._lock:
            now = time.monotonic()
            age = now - self._keys_at
            if self._keys is None or age > (_RETRY_SECONDS if fresh else _KEPT_SECONDS):
                found = self._get(url)
                keys = [key for key in found.get("keys", ()) if key.get("kty") != "oct"]
                self._keys, self._keys_at = KeySet.import_key_set({"keys": keys}), now
            return self._keys

    def _get(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        import requests

        try:
            with requests.get(
                url, headers=dict(headers or {}), timeout=_TIMEOUT, allow_redirects=False, stream=True
            ) as answer:
                body = answer.raw.read(_MOST_BYTES + 1, decode_content=True)
                if answer.status_code != 200 or len(body) > _MOST_BYTES:
                    raise ValueError(f"status {answer.status_code}, {len(body)} bytes")  # noqa: TRY301
                found = json.loads(body)
        except (requests.RequestException, OSError, ValueError) as error:
            raise self._away(error) from error
        if not isinstance(found, dict):
            raise self._away(None)
        return found

    def _away(self, error: Exception | None) -> UnreachableError:
        about = f" ({type(error).__name__})" if error else ""
        return UnreachableError(
            f"the identity provider {self._issuer} does not respond{about}; retry, or sign in with a token"
        )
