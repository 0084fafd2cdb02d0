"""Waiting for events of change requests, with one database poll for a limited number of clients."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fastapi.concurrency import run_in_threadpool

from scorer.errors import ScorerError
from scorer.release.errors import QuotaError

if TYPE_CHECKING:
    from scorer.release.web_settings import WebSettings
    from scorer.web.counters import WebCounters

_LOG = logging.getLogger("scorer.web.api")
_POLL_SECONDS = 0.25
_SLOWEST_POLL_SECONDS = 2.0
"""The interval of polls grows up to this value while there are no events."""


class Watch:
    """Wakes clients that wait for events.

    Args:
        newest: Returns the id of the newest event by change request.
        stopping: Whether the process is stopping, which ends all waits.
        settings: Limits on waiting clients.
        counters: Counts waiting and rejected clients.
    """

    def __init__(
        self,
        newest: Callable[[list[str]], Mapping[str, int]],
        stopping: Callable[[], bool],
        settings: WebSettings,
        counters: WebCounters,
    ) -> None:
        self._newest, self._stopping = newest, stopping
        self._settings, self._counters = settings, counters
        self._users: Counter[str] = Counter()
        self._watched: dict[str, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self.polls = 0
        """Number of polls of the database."""

    @property
    def stream_seconds(self) -> float:
        """Duration in seconds after which a stream ends."""
        return self._settings.stream_minutes * 60

    @property
    def is_over(self) -> bool:
        """Whether the process is stopping."""
        return self._stopping()

    def check(self, user: str) -> None:
        """Check whether one more request may wait.

        Raises:
            QuotaError: The user, or all users together, have reached the limit.
        """
        most = self._settings.streams_per_user
        if self._users[user] >= most:
            self._counters.count("requests_refused", "streams_per_user")
            raise QuotaError(
                f"{user} has {most} requests that wait for events (streams_per_user); close one of them"
            )
        if self._users.total() >= self._settings.streams:
            self._counters.count("requests_refused", "streams")
            raise QuotaError(
                "too many clients wait for events (streams); repeat the request without waiting, or later"
            )

    @contextmanager
    def waiting(self, user: str) -> Iterator[None]:
        """Count a request as waiting within the block."""
        self._users[user] += 1
        self._counters.streams += 1
        try:
            yield
        finally:
            self._counters.streams -= 1
            self._users[user] -= 1
            if not self._users[user]:
                del self._users[user]

    async def changed(self, change: str, after: int, seconds: float) -> bool:
        """Wait until a change request has an event after a known one, and return whether it has.

        Args:
            change: Id of the change request.
            after: Id of the known event.
            seconds: Longest wait in seconds.
        """
        watched = self._watched.setdefault(change, _Watched())
        watched.clients += 1
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(seconds):
                while watched.newest <= after:
                    if self._stopping():
                        return False
                    await watched.moved.wait()
        except TimeoutError:
            return False
        else:
            return True
        finally:
            watched.clients -= 1
            if not watched.clients:
                del self._watched[change]

    async def _poll(self) -> None:
        """Read the newest events of all watched change requests, until no client waits."""
        pause = _POLL_SECONDS
        while self._watched:
            try:
                self.polls += 1
                found = await run_in_threadpool(self._newest, sorted(self._watched))
            except ScorerError:
                found = {}  # the database is unreachable; clients get the error after their wait
            except Exception:
                _LOG.exception("reading the newest events failed")
                found = {}
            is_new = False
            for change, watched in list(self._watched.items()):
                newest = found.get(change, 0)
                if newest > watched.newest or self._stopping():
                    watched.newest = max(newest, watched.newest)
                    is_new = True
                    watched.move()
            pause = _POLL_SECONDS if is_new else min(pause * 1.5, _SLOWEST_POLL_SECONDS)
            self._arrived.clear()
            await asyncio.sleep(_POLL_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause - _POLL_SECONDS):
                    await self._arrived.wait()
                    pause = _POLL_SECONDS


class _Watched:
    """One change request that clients wait for."""

    def __init__(self) -> None:
        self.clients = 0
        self.newest = 0
        self.moved = asyncio.Event()

    def move(self) -> None:
        """Wake the clients that wait for this change request."""
        self.moved.set()
        self.moved = asyncio.Event()
