"""The web application, which serves the pages and the REST API of one platform."""

from __future__ import annotations

import hmac
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from scorer.release import problems
from scorer.release.errors import NotAllowedError, NotAuthenticatedError, PlatformError
from scorer.release.store.keys import SharedKeys
from scorer.web import pages, rpc, statuses
from scorer.web.access_tokens import AccessTokens
from scorer.web.assets import Assets
from scorer.web.bodies import BodyLimit
from scorer.web.counters import WebCounters
from scorer.web.fragments import Fragments
from scorer.web.guard import RequestGuard
from scorer.web.identity import Identity
from scorer.web.oidc import OidcSignIn
from scorer.web.oidc_provider import OidcProvider
from scorer.web.rendering import environment, query
from scorer.web.sign_ins import SignIns
from scorer.web.sources import source_of

if TYPE_CHECKING:
    from scorer.release.open import PlatformServices
    from scorer.release.service import Service
    from scorer.release.settings import PlatformFile

API = "/api/"


@dataclass
class Web:
    """State that all pages share."""

    platform: PlatformServices
    settings: PlatformFile
    identity: Identity
    counters: WebCounters
    sign_ins: SignIns
    provider: OidcProvider | None = None
    oidc: OidcSignIn | None = None
    assets: Assets = field(default_factory=Assets)

    def __post_init__(self) -> None:
        self._templates = environment()
        self._templates.globals |= {"asset": self.assets.url, "assets": self.assets}
        self.fragments = Fragments(self.render)

    @property
    def public_url(self) -> str:
        """The platform's address for browsers and agents."""
        own = self.settings.platform
        return (own.public_url or f"http://{own.listen}").rstrip("/")

    @property
    def service(self) -> Service:
        """Operations of the platform's service layer."""
        return self.platform.service

    def render(self, template: str, **values: Any) -> str:
        """Render a template and return its text."""
        return self._templates.get_template(template).render(**values)


def create_app(platform: PlatformServices, settings: PlatformFile) -> FastAPI:
    """Create the web application.

    Args:
        platform: The platform.
        settings: The platform's settings.
    """
    own = settings.platform
    public = urlsplit(own.public_url or f"http://{own.listen}")
    secure = public.scheme == "https"
    counters = WebCounters()
    sign_ins = SignIns(platform.service.access, counters, attempts=settings.web.sign_in_attempts)
    identity = Identity(
        platform.service.access,
        keys=SharedKeys(platform.store, "forms", days=settings.web.key_days),
        secure=secure,
        proxied=_proxied(settings, sign_ins),
    )
    app = FastAPI(title="scorer", docs_url=None, redoc_url=None, openapi_url=None)
    web = app.state.web = Web(platform, settings, identity, counters, sign_ins)
    if settings.oidc.issuer:
        web.provider = OidcProvider(settings.oidc.issuer)
        web.oidc = OidcSignIn(settings.oidc, web.provider, web.public_url, identity)

    @app.get("/static/{address}", include_in_schema=False)
    def static(request: Request, address: str) -> Response:
        return web.assets.answer(request, address)

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return RedirectResponse(web.assets.url("icon.svg"), 307)

    for router in pages.routers():
        app.include_router(router, include_in_schema=False)
    _mount_api(app, web)
    app.add_exception_handler(PlatformError, _refused)
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_middleware(
        BodyLimit,
        settings=settings.web,
        upload_bytes=own.upload_mb << 20,
        counters=web.counters,
        answer=_page,
    )
    # A request passes the layer that was added last first.
    app.add_middleware(
        RequestGuard,
        hosts=[public.hostname or "", socket.gethostname()],
        secure=secure,
        failed=lambda request, identity: _page(
            request, 500, "The page could not be rendered because of an internal error.", identity
        ),
    )
    app.add_middleware(
        ProxyHeadersMiddleware, trusted_hosts=[str(each) for each in settings.web.trusted_proxies]
    )
    return app


def _mount_api(app: FastAPI, web: Web) -> None:
    from scorer.web.api import PATH, create_api

    api = create_api(web.platform, sessions=web.identity.of, counters=web.counters, sign_ins=web.sign_ins)
    app.mount(PATH, api)
    if web.settings.agents.enabled and web.settings.agents.mcp:
        _mount_mcp(app, web)


def _mount_mcp(app: FastAPI, web: Web) -> None:
    try:
        from scorer.web import mcp
    except ModuleNotFoundError as error:
        raise PlatformError(
            f"[agents] mcp is true and the package {error.name} is missing; install scorer[mcp], or set "
            "mcp = false, with which agents use `scorer mcp`"
        ) from None
    audience = web.settings.oidc.agent_audience
    access_tokens = None
    if web.provider is not None and audience is not None:
        access_tokens = AccessTokens(web.provider, web.service.access, audience)
        found = access_tokens.metadata(f"{web.public_url}{rpc.PATH}")
        app.add_api_route(rpc.RESOURCE_PATH, lambda: found, include_in_schema=False)
    endpoint = mcp.McpEndpoint(
        web.platform,
        web.sign_ins,
        body_bytes=web.settings.web.body_kb << 10,
        access_tokens=access_tokens,
        metadata_url=f"{web.public_url}{rpc.RESOURCE_PATH}" if access_tokens else "",
    )
    # A mount would redirect the path without a trailing slash, which clients send.
    app.router.routes.append(Route(rpc.PATH, endpoint))


def _proxied(settings: PlatformFile, sign_ins: SignIns) -> Any:
    """Return a function that reads the user whom a trusted proxy names; None without such a proxy.

    The name is accepted only with the proxy's secret. A request with a repeated header is rejected, because
    one of the values may be the client's.
    """
    header, file = settings.platform.trusted_proxy_header, settings.platform.trusted_proxy_secret_file
    if not header or not file:
        return None
    secret = file.read_bytes().strip()

    def named(request: Request) -> str | None:
        secrets, users = request.headers.getlist("x-proxy-secret"), request.headers.getlist(header)
        if len(secrets) > 1 or len(users) > 1:
            raise NotAllowedError(
                f"the request contains {header} or X-Proxy-Secret more than once; configure the proxy to "
                "remove these headers from clients' requests"
            )
        if not (secrets and users and users[0].strip() and secret):
            return None
        if not hmac.compare_digest(secrets[0].encode(), secret):
            sign_ins.failed("proxy", "", source_of(request.scope), "wrong X-Proxy-Secret")
            return None
        return users[0].strip()

    return named


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, PlatformError)  # noqa: S101 - as registered
    if isinstance(error, NotAuthenticatedError) and not request.url.path.startswith(API):
        return _sign_in(request)
    return _page(request, problems.kind_of(error).status, str(error))


def _sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, which returns to this page afterwards."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    web: Web = request.app.state.web
    cookie = web.identity.cookie in request.cookies
    if request.method != "GET":
        return RedirectResponse(f"/login{query(why='ended', next='/')}", 303)
    if not cookie and request.headers.get("sec-fetch-site") == "cross-site":
        # A link from another site: its first request has no cookie (SameSite=Strict). The page repeats it.
        return HTMLResponse(web.render("again.html", here=here))
    return RedirectResponse(f"/login{query(why='ended' if cookie else 'first', next=here)}", 303)


def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as registered
    words = "There is no page at this address." if error.status_code == 404 else str(error.detail)
    return _page(request, error.status_code, words)


def _unreadable(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as registered
    found = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors()[:5])
    return _page(request, 422, f"The address or the form is not valid: {found}.")


def _page(request: Request, status: int, words: str, identity: str = "") -> Response:
    identity = identity or str(getattr(request.state, "request_id", ""))
    if request.url.path == rpc.PATH:
        return rpc.rpc_refusal(status, words)
    if request.url.path.startswith(API):
        from scorer.web.api.problems import answer as problem

        # An address below /api/ that is not part of the API gets the same kind of error.
        return problem(request, "about:blank", HTTPStatus(status).phrase, status, words)
    web: Web = request.app.state.web
    title = statuses.TITLES.get(status) or HTTPStatus(status).phrase
    content = web.render(
        "error.html",
        status=status,
        title=title,
        words=words,
        remedy=statuses.REMEDIES.get(status, ""),
        identity=identity,
        back=_back(request),
        unsent=getattr(request.state, "unsent", None),
        path=request.url.path,
    )
    return HTMLResponse(content, status)


def _back(request: Request) -> str:
    """Return the address of the previous page if it is on the platform, else "/"."""
    came = urlsplit(request.headers.get("referer", ""))
    if came.netloc and came.netloc == request.headers.get("host"):
        return came.path + (f"?{came.query}" if came.query else "")
    return "/"
