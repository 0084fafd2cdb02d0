"""The protocol over HTTP at `/api/mcp`, with the tokens, hosts and limits of REST.

Each request stands for itself: there are no sessions. A revoked token is therefore rejected at the next
request, and clients take no memory between their requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request

from scorer.mcp.server import ToolBackend, tool_server
from scorer.release.access.secrets import PREFIX
from scorer.release.errors import NotAllowedError, NotAuthenticatedError, PlatformError
from scorer.release.problems import kind_of
from scorer.web.identity import is_same_origin
from scorer.web.rpc import rpc_refusal
from scorer.web.sources import source_of

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from starlette.types import Receive, Scope, Send

    from scorer.release.agent_answers import AgentTool, AgentToolResult
    from scorer.release.model import Actor
    from scorer.release.open import PlatformServices
    from scorer.web.access_tokens import AccessTokens
    from scorer.web.sign_ins import SignIns

_BLOCKED: Final = 16
"""Calls that threads wait for at the same time; further ones wait for their turn."""
_CHECKED: Final = 4
"""Access tokens that threads check at the same time. A check may wait for the identity provider."""
_ACTOR: Final = "agent_actor"


class McpEndpoint:
    """Serves the protocol for callers with a token.

    Args:
        platform: The platform.
        sign_ins: Limits failed sign-ins.
        body_bytes: Largest body of a request.
        access_tokens: Authenticates callers by access tokens of the identity provider; None: it has none.
        metadata_url: Address of the metadata of the protected resource; empty: there are none.
    """

    def __init__(
        self,
        platform: PlatformServices,
        sign_ins: SignIns,
        *,
        body_bytes: int,
        access_tokens: AccessTokens | None = None,
        metadata_url: str = "",
    ) -> None:
        self._platform, self._sign_ins, self._body_bytes = platform, sign_ins, body_bytes
        self._access_tokens, self._metadata_url = access_tokens, metadata_url
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._manager: StreamableHTTPSessionManager | None = None
        self._ready: asyncio.Event | None = None
        self._room: anyio.CapacityLimiter | None = None
        self._checks: anyio.CapacityLimiter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        manager = await self._started()
        try:
            actor = await self._admitted(request)
        except PlatformError as error:
            wait = getattr(error, "retry_after", None)
            headers = None if wait is None else {"Retry-After": str(wait)}
            refusal = rpc_refusal(kind_of(error).status, str(error), headers, metadata_url=self._metadata_url)
            await refusal(scope, receive, send)
            return
        if request.method != "POST":
            # A GET would open a stream of messages from the server, of which there are none.
            await rpc_refusal(405, "send POST to this path", {"Allow": "POST"})(scope, receive, send)
            return
        scope["state"][_ACTOR] = actor
        await manager.handle_request(scope, receive, send)

    async def _admitted(self, request: Request) -> Actor:
        """Return the caller. Raises PlatformError if the request is not one of a program with a token."""
        if request.headers.get("origin") is not None and not is_same_origin(request):
            raise NotAllowedError("a page of another site sent this request; use a program with a token")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise NotAuthenticatedError("no token was sent; send `Authorization: Bearer TOKEN`")
        token = token.strip()
        tokens = None if token.startswith(PREFIX) else self._access_tokens
        limiter = None if tokens is None else self._checks
        return await anyio.to_thread.run_sync(self._authenticated, request, token, tokens, limiter=limiter)

    def _authenticated(self, request: Request, token: str, tokens: AccessTokens | None) -> Actor:
        address = source_of(request.scope)
        # The beginnings of all access tokens are alike, so their failures are counted by address only.
        way, shown = ("bearer", token) if tokens is None else ("oidc", "")
        self._sign_ins.check(shown, address)
        try:
            if tokens is not None:
                return tokens.authenticate(token)
            return self._platform.service.access.authenticate(token)
        except NotAuthenticatedError as error:
            self._sign_ins.failed(way, shown, address, str(error))
            raise

    # --- the manager of the SDK, which lives as long as the event loop ---

    async def _started(self) -> StreamableHTTPSessionManager:
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._serving is None or self._serving.done():
            self._loop, self._ready = loop, asyncio.Event()
            self._room, self._checks = anyio.CapacityLimiter(_BLOCKED), anyio.CapacityLimiter(_CHECKED)
            self._manager = StreamableHTTPSessionManager(
                tool_server(self._backend),
                json_response=True,
                stateless=True,
                max_request_body_size=self._body_bytes,
            )
            self._serving = loop.create_task(self._serve(self._manager, self._ready))
        assert self._ready is not None  # noqa: S101 - set together with the task
        assert self._manager is not None  # noqa: S101
        await self._ready.wait()
        return self._manager

    @staticmethod
    async def _serve(manager: StreamableHTTPSessionManager, ready: asyncio.Event) -> None:
        async with manager.run():
            ready.set()
            await asyncio.Event().wait()

    def _backend(self, context: ServerRequestContext[Any, Any]) -> ToolBackend:
        request: Any = context.request
        actor: Actor = request.scope["state"][_ACTOR]
        agents = self._platform.service.agents

        async def tools() -> Sequence[AgentTool]:
            return await anyio.to_thread.run_sync(agents.list, actor, limiter=self._room)

        async def call(name: str, arguments: Mapping[str, Any], client: str) -> AgentToolResult:
            return await anyio.to_thread.run_sync(
                lambda: agents.call(actor, name, arguments, client=client), limiter=self._room
            )

        return ToolBackend(tools, call)
