"""Authentication of REST calls, by bearer token or by a browser's session with its CSRF header."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from scorer.release.errors import NotAllowedError, NotAuthenticatedError
from scorer.web.sources import source_of

if TYPE_CHECKING:
    from scorer.release.model import Actor
    from scorer.release.open import PlatformServices
    from scorer.release.service import Service
    from scorer.web.sign_ins import SignIns

CSRF_HEADER = "X-CSRF-Token"
_SAFE = ("GET", "HEAD", "OPTIONS")

Sessions = Callable[[Request], tuple["Actor", str]]
"""Returns the actor of a browser's session and its CSRF token. Raises NotAuthenticatedError."""

_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="A token of `scorer platform token create`."
)
_csrf = APIKeyHeader(
    name=CSRF_HEADER,
    auto_error=False,
    scheme_name="session",
    description="CSRF token of a browser's session, sent together with the session's cookie.",
)


@dataclass(frozen=True)
class RestCaller:
    """The user of a request and the platform."""

    actor: Actor
    platform: PlatformServices

    @property
    def service(self) -> Service:
        """Operations of the platform for this caller."""
        return self.platform.service


def _caller(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    csrf: Annotated[str | None, Security(_csrf)],
) -> RestCaller:
    state: Any = request.app.state
    platform: PlatformServices = state.platform
    if "authorization" in request.headers:
        if bearer is None or not bearer.credentials:
            raise NotAuthenticatedError(
                "the Authorization header contains no bearer token; send `Authorization: Bearer TOKEN`"
            )
        return RestCaller(_authenticate(request, platform, bearer.credentials), platform)
    sessions: Sessions | None = state.sessions
    if sessions is None:
        raise NotAuthenticatedError("no token was sent; send `Authorization: Bearer TOKEN`")
    actor, expected = sessions(request)
    if request.method not in _SAFE and not hmac.compare_digest((csrf or "").encode(), expected.encode()):
        raise NotAllowedError(
            f"the {CSRF_HEADER} header is missing or not this session's, so nothing was done; "
            f"load the page again"
        )
    return RestCaller(actor, platform)


def _authenticate(request: Request, platform: PlatformServices, token: str) -> Actor:
    sign_ins: SignIns = request.app.state.sign_ins
    address = source_of(request.scope)
    sign_ins.check(token, address)
    try:
        return platform.service.access.authenticate(token)
    except NotAuthenticatedError as error:
        sign_ins.failed("bearer", token, address, str(error))
        raise


By = Annotated[RestCaller, Depends(_caller)]
