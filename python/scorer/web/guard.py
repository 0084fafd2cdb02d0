"""The outermost layer: checks the host, sets security headers, and gives failed requests an id."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Callable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOG = logging.getLogger("scorer.web")

# Plotly creates one empty <style> and fills it by CSSOM, so the hash is that of the empty string. Its labels
# have style attributes, which cannot run scripts. Only the platform's own script files are allowed.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='",
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class RequestGuard:
    """Checks the Host header, adds security headers and handles unexpected exceptions.

    Args:
        app: The application.
        hosts: Accepted host names. Numeric addresses and localhost are always accepted, because DNS rebinding
            cannot produce them.
        secure: Whether browsers use https.
        failed: Creates the error page from the request and its id.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        secure: bool,
        failed: Callable[[Request, str], Response],
    ) -> None:
        self._app, self._failed = app, failed
        self._hosts = {host.lower() for host in hosts} | {"localhost"}
        self._headers = dict(HEADERS)
        if secure:
            self._headers["Strict-Transport-Security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity, begun = secrets.token_hex(6), False
        scope.setdefault("state", {})["request_id"] = identity

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                headers["X-Request-Id"] = identity
            await send(message)

        if not self._ours(Headers(scope=scope).get("host", "")):
            words = "Unknown host name; set [platform] public_url to the address that users open."
            await PlainTextResponse(words, 400)(scope, receive, with_headers)
            return
        try:
            await self._app(scope, receive, with_headers)
        except Exception:
            _LOG.exception("request %s: %s %s failed", identity, scope["method"], scope["path"])
            if begun:
                raise
            await self._failed(Request(scope, receive), identity)(scope, receive, with_headers)

    def _ours(self, host: str) -> bool:
        name = (
            host.lower().rsplit("]", 1)[0].lstrip("[") if host.startswith("[") else host.lower().split(":")[0]
        )
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True
