"""Limits on connections: total number, number per address, and time to receive a request's head.

uvicorn has no time limit for the head of a request, and responds to all clients with 503 at its limit of
connections. Here, a connection without a complete request is closed in favour of a new one.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from scorer.web.sources import source

if TYPE_CHECKING:
    from scorer.release.web_settings import WebSettings
    from scorer.web.counters import WebCounters

HEAD_BYTES = 32 << 10
"""Largest head of a request in bytes."""


class ConnectionLimits:
    """Limits and state that the connections of one listener share.

    Args:
        settings: Limits.
        counters: Counts closed connections.
    """

    def __init__(self, settings: WebSettings, counters: WebCounters) -> None:
        self._settings, self._counters = settings, counters
        self._open: Counter[str] = Counter()
        self._waiting: OrderedDict[BoundedProtocol, None] = OrderedDict()

    @property
    def head_seconds(self) -> float:
        """Time limit for receiving the head of a request, in seconds."""
        return self._settings.header_seconds

    def open(self, connection: BoundedProtocol) -> bool:
        """Count a new connection, and return whether it is within the limits."""
        address = connection.source
        self._open[address] += 1
        if self._open[address] > self._settings.connections_per_address and not self._is_proxy(connection):
            self._counters.count("connections_closed", "per_address")
            return False
        if self._open.total() > self._settings.max_connections:
            self._counters.count("connections_closed", "total")
            if not self._waiting:
                return False
            oldest, _ = self._waiting.popitem(last=False)
            oldest.abort()
        return True

    def closed(self, connection: BoundedProtocol) -> None:
        """Remove a connection that has ended."""
        self._waiting.pop(connection, None)
        self._open[connection.source] -= 1
        if self._open[connection.source] <= 0:
            del self._open[connection.source]

    def waits(self, connection: BoundedProtocol) -> None:
        """Record that a connection waits for a request."""
        self._waiting[connection] = None

    def works(self, connection: BoundedProtocol) -> None:
        """Record that a connection has received the complete head of a request."""
        self._waiting.pop(connection, None)

    @property
    def write_seconds(self) -> float:
        """Time limit for a client to read what was written, in seconds."""
        return self._settings.body_seconds

    def late(self, connection: BoundedProtocol) -> None:
        """Close a connection whose request's head did not arrive in time."""
        self._counters.count("connections_closed", "head_seconds")
        connection.abort()

    def stalled(self, connection: BoundedProtocol) -> None:
        """Close a connection whose client does not read the response."""
        self._counters.count("connections_closed", "slow_reader")
        connection.abort()

    def _is_proxy(self, connection: BoundedProtocol) -> bool:
        try:
            address = ipaddress.ip_address(connection.client[0] if connection.client else "")
        except ValueError:
            return False
        return any(address in network for network in self._settings.trusted_proxies)


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, within the limits."""

    limits: ConnectionLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or close it immediately."""
        super().connection_made(transport)
        self.source = source(self.client[0] if self.client else "")
        self._late: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        if self.limits.open(self):
            self._wait()
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers of the connection and remove it."""
        self._arrived()
        self._unstall()
        self.limits.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process data. The time limit of the head ends when it is complete, not when data arrive."""
        super().data_received(data)
        if self._is_at_work():
            self._arrived()
            self.limits.works(self)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self._is_at_work() and not self.transport.is_closing():
            self._wait()

    def pause_writing(self) -> None:
        """Start the time limit for the client to read the buffered response."""
        super().pause_writing()
        self._unstall()
        self._stalled = self.loop.call_later(self.limits.write_seconds, self.limits.stalled, self)

    def resume_writing(self) -> None:
        """Stop the time limit and continue the response."""
        self._unstall()
        super().resume_writing()

    def abort(self) -> None:
        """Close the connection immediately and discard buffered data."""
        self.transport.abort()

    def _is_at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._arrived()
        self._late = self.loop.call_later(self.limits.head_seconds, self.limits.late, self)
        self.limits.waits(self)

    def _unstall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def bounded(settings: WebSettings, counters: WebCounters) -> type[asyncio.Protocol]:
    """Return the protocol of a listener with its own limits."""
    made: Any = type("BoundedProtocol", (BoundedProtocol,), {"limits": ConnectionLimits(settings, counters)})
    protocol: type[asyncio.Protocol] = made
    return protocol
