"""Limits on request bodies, applied before a body is parsed: bytes, time and total memory.

Starlette limits only the bytes of one body. This layer also limits the time in which a body must arrive, and
the memory that the bodies of all requests use together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scorer.web import rpc
from scorer.web.sources import source_of

if TYPE_CHECKING:
    from scorer.release.web_settings import WebSettings
    from scorer.web.counters import WebCounters

SIGN_IN_BYTES = 16 << 10
_PER_SECOND = 64 << 10
"""Minimum rate of a large body in bytes per second."""
_DISCARDED = 32 << 20
"""Bytes of a rejected body of the protocol of agents that are received before the response."""


class BodyLimit:
    """Rejects bodies that are too large, too slow, or too many at once.

    Args:
        app: The application.
        settings: Limits.
        upload_bytes: Largest upload.
        counters: Counts rejected requests.
        answer: Creates the response for a request, a status and an explanation.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: WebSettings,
        upload_bytes: int,
        counters: WebCounters,
        answer: Callable[[Request, int, str], Response],
    ) -> None:
        self._app, self._settings, self._counters, self._answer = app, settings, counters, answer
        self._most = settings.body_kb << 10
        self._upload = upload_bytes + self._most
        self._memory = settings.bodies_mb << 20
        self._held: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, is_upload = self._limit(scope)
        source = source_of(scope)
        length = dict(scope["headers"]).get(b"content-length", b"0")
        refused: tuple[str, int, str] | None = None
        if not length.isdigit() or int(length) > most:
            refused = "body_bytes", 413, _too_large(most)
        elif self._requests[source] >= self._settings.connections_per_address:
            refused = (
                "per_address",
                429,
                "This address has too many active requests; try again in a moment.",
            )
        if refused is not None:
            reason, status, words = refused
            self._counters.count("requests_refused", reason)
            if scope["path"] == rpc.PATH:
                await self._discard(receive)
            response = self._answer(Request(scope), status, words)
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        reading = _Reading(self, source, receive, most, is_upload=is_upload)

        self._requests[source] += 1
        try:
            await self._app(scope, reading.receive, send)
        finally:
            reading.close()
            self._requests[source] -= 1
            if not self._requests[source]:
                del self._requests[source]

    async def _discard(self, receive: Receive) -> None:
        """Receive a body without keeping it, so that a client that sends it whole can read the reason."""
        received, has_more = 0, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.body_seconds):
                while has_more and received <= _DISCARDED:
                    message = await receive()
                    received += len(message.get("body", b""))
                    has_more = message["type"] == "http.request" and message.get("more_body", False)

    def _limit(self, scope: Scope) -> tuple[int, bool]:
        path = scope["path"]
        if path in ("/login", "/logout"):
            return SIGN_IN_BYTES, False
        is_upload = scope["method"] == "POST" and (
            path in ("/models", "/builds")
            or (path.startswith("/api/") and path.endswith(("/bundles", "/builds")))
        )
        return (self._upload, True) if is_upload else (self._most, False)

    def refuse(self, status: int, reason: str, words: str) -> HTTPException:
        """Count a rejected body and return its error."""
        self._counters.count("requests_refused", reason)
        return HTTPException(status, words, {"Connection": "close", "Retry-After": "5"})

    def take(self, source: str, size: int) -> None:
        """Reserve memory for a part of a body. Raises HTTPException."""
        if self._held.total() + size > self._memory or self._held[source] + size > max(
            self._memory // 4, self._most
        ):
            raise self.refuse(
                503, "body_memory", "Too many requests are being received at once; try again in a moment."
            )
        self._held[source] += size

    def give_back(self, source: str, size: int) -> None:
        """Release what a request has reserved."""
        self._held[source] -= size
        if self._held[source] <= 0:
            del self._held[source]

    @property
    def seconds(self) -> float:
        """Time limit of a body in seconds, without the allowance for its size."""
        return self._settings.body_seconds


class _Reading:
    """Receives the body of one request within the limits."""

    def __init__(
        self, limit: BodyLimit, source: str, receive: Receive, most: int, *, is_upload: bool
    ) -> None:
        self._limit, self._receive, self._most, self._is_upload = limit, receive, most, is_upload
        self._source = source
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._bytes = 0
        self._held = 0
        self._is_over = False

    async def receive(self) -> Message:
        """Return the next part."""
        if self._is_over:
            return await self._receive()
        end = self._began + self._limit.seconds + self._bytes / _PER_SECOND
        try:
            async with asyncio.timeout(end - self._clock()):
                message = await self._receive()
        except TimeoutError:
            raise self._limit.refuse(408, "body_seconds", "The body took too long to arrive.") from None
        if message["type"] != "http.request":
            self._is_over = True
            return message
        size = len(message.get("body", b""))
        self._bytes += size
        if self._bytes > self._most:
            raise self._limit.refuse(413, "body_bytes", _too_large(self._most))
        if not self._is_upload and size:  # uploads go to disk as they arrive
            self._limit.take(self._source, size)
            self._held += size
        self._is_over = not message.get("more_body", False)
        return message

    def close(self) -> None:
        """Release the memory of the body."""
        if self._held:
            self._limit.give_back(self._source, self._held)


def _too_large(most: int) -> str:
    return f"The body is larger than the limit of {most:,} bytes; send a smaller one."
