"""Sign-in at an OpenID provider, by authorization code with PKCE and Authlib.

The state of a sign-in between its two requests (state, nonce, verifier) is in a signed cookie, so that any
platform process can complete it.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from scorer.release.access.provided import ProvidedIdentity, highest, printable
from scorer.release.errors import NotAuthenticatedError
from scorer.release.model import Role
from scorer.web.oidc_provider import LEEWAY_SECONDS, TIMEOUT, invalid_token

if TYPE_CHECKING:
    from scorer.release.oidc_settings import OidcSettings
    from scorer.web.identity import Identity
    from scorer.web.oidc_provider import OidcProvider

CALLBACK = "/login/oidc/callback"
PENDING_SECONDS = 600


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
        settings: Client and scopes, and the roles of the provider's groups.
        provider: The provider.
        public_url: Address of the platform for browsers.
        identity: Signs the cookie with a key that all platform processes share.
    """

    def __init__(
        self, settings: OidcSettings, provider: OidcProvider, public_url: str, identity: Identity
    ) -> None:
        self._settings, self._provider, self._signer = settings, provider, identity
        self._redirect = public_url.rstrip("/") + CALLBACK
        self._after = public_url.rstrip("/") + "/login?why=out"
        file = settings.client_secret_file
        self._secret = file.read_text().strip() if file else None

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
                self._provider.metadata()["authorization_endpoint"],
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
        if answer.get("iss", self._provider.issuer) != self._provider.issuer:
            raise NotAuthenticatedError("the response is of another identity provider; start again")
        if "error" in answer or not answer.get("code"):
            raise NotAuthenticatedError(
                f"the identity provider rejected the sign-in: {answer.get('error', 'it sent no code')[:100]}"
            )
        token = self._exchange(answer["code"], pending)
        claims = self._verified(str(token.get("id_token", "")), pending.nonce, token.get("access_token"))
        missing = {self._settings.user_claim, self._settings.groups_claim} - set(claims)
        if missing and token.get("access_token") and "userinfo_endpoint" in self._provider.metadata():
            claims = {**self._user_information(str(token["access_token"]), str(claims["sub"])), **claims}
        return self._identity(claims)

    def end_url(self) -> str:
        """Return the provider's address that ends its session; empty if it has none."""
        endpoint = self._provider.metadata().get("end_session_endpoint", "")
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
            subject=f"{self._provider.issuer}#{claims['sub']}",
            user=user,
            is_known=bool(granted or own.allowed_groups),
            admin=any(grant.role is Role.ADMIN for grant in granted) if decides_admin else None,
            roles=roles,
        )

    def _verified(self, id_token: str, nonce: str, access_token: Any) -> dict[str, Any]:
        """Return the claims of an ID token after every check of OpenID Connect Core, 3.1.3.7."""
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        token = self._provider.decoded(id_token)
        try:
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": self._provider.issuer},
                    "aud": {"essential": True, "value": self._settings.client_id},
                },
                params={
                    "nonce": nonce,
                    "client_id": self._settings.client_id,
                    "access_token": access_token,
                },
            )
            claims.validate(leeway=LEEWAY_SECONDS)
            if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
                raise NotAuthenticatedError("the identity provider's token has no subject")
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise invalid_token(error) from error
        return dict(claims)

    def _user_information(self, access_token: str, subject: str) -> dict[str, Any]:
        url = self._provider.metadata()["userinfo_endpoint"]
        found = self._provider.get(url, {"Authorization": f"Bearer {access_token}"})
        if found.get("sub") != subject:
            raise NotAuthenticatedError("the identity provider's user information is of another subject")
        return found

    # --- requests to the provider ---

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

        endpoint = self._provider.metadata()["token_endpoint"]
        try:
            with self._client() as client:
                found: dict[str, Any] = client.fetch_token(
                    endpoint,
                    code=code,
                    grant_type="authorization_code",
                    code_verifier=pending.verifier,
                    timeout=TIMEOUT,
                    allow_redirects=False,
                )
        except OAuthError as error:
            raise NotAuthenticatedError(
                f"the identity provider rejected the sign-in: {str(error)[:150]}"
            ) from error
        except (RequestException, ValueError) as error:
            raise self._provider.away(error) from error
        return found
