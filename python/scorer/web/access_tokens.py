"""Access tokens of the identity provider, with which agents call tools (RFC 9068).

An agent obtains such a token at the provider for a user, who has signed in on the pages before. The platform
is the token's resource: it publishes where to obtain one (RFC 9728), checks it, and stores nothing of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from scorer.release.errors import NotAuthenticatedError
from scorer.web.oidc_provider import LEEWAY_SECONDS, OidcProvider, invalid_token

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.release.model import Actor

_TYPES = ("at+jwt", "application/at+jwt")
_MOST_CHARACTERS = 255


class AccessTokens:
    """Authenticates callers by access tokens of the provider.

    Args:
        provider: The provider.
        access: Looks up the user of a token's subject.
        audience: Audience of the tokens.
    """

    def __init__(self, provider: OidcProvider, access: Access, audience: str) -> None:
        self._provider, self._access, self._audience = provider, access, audience

    def authenticate(self, token: str) -> Actor:
        """Return the agent that acts for the user of a token.

        Raises:
            NotAuthenticatedError: The token is not one of the provider for this platform, has expired, or its
                user has not signed in on the pages or was removed.
            UnreachableError: The provider's keys cannot be read.
        """
        decoded = self._provider.decoded(token)
        subject, client = self._checked(decoded.header, decoded.claims)
        return self._access.by_subject(f"{self._provider.issuer}#{subject}", client)

    def _checked(self, header: dict[str, Any], claims: dict[str, Any]) -> tuple[str, str]:
        """Return subject and client of a token after the checks of RFC 9068, section 4."""
        from joserfc.errors import JoseError
        from joserfc.jwt import JWTClaimsRegistry

        # Without this check, an ID token would be accepted in place of an access token.
        if str(header.get("typ", "")).lower() not in _TYPES:
            raise NotAuthenticatedError(
                "the identity provider's token is no access token (its type is not at+jwt); request one for "
                f'the audience "{self._audience}"'
            )
        rules = JWTClaimsRegistry(
            now=lambda: int(time.time()),
            leeway=LEEWAY_SECONDS,
            iss={"essential": True, "value": self._provider.issuer},
            aud={"essential": True, "value": self._audience},
            exp={"essential": True},
            sub={"essential": True},
            client_id={"essential": True},
        )
        try:
            rules.validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            raise invalid_token(error) from error
        found = [claims["sub"], claims["client_id"]]
        if not all(isinstance(one, str) and 0 < len(one) <= _MOST_CHARACTERS for one in found):
            raise NotAuthenticatedError("the identity provider's token has no subject or no client")
        return found[0], found[1]

    def metadata(self, resource: str) -> dict[str, Any]:
        """Return the metadata of the protected resource, by which clients find the provider.

        Args:
            resource: Address of the protocol, which is the audience that clients request.
        """
        return {
            "resource": resource,
            "authorization_servers": [self._provider.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "scorer",
        }
