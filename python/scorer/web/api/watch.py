"""Waiting for events of change requests: one poll of the database for all who wait, and a bound on them."""

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
"""While nothing happens, the database is read less and less often."""


class Watch:
    """Clients that wait for events.

    Args:
        newest: Reads the id of the newest event of each of some change requests.
        stopping: Whether the process is about to end, so that nobody must wait any longer.
        settings: How many may wait.
        counters: Count them, and those that were refused.
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
        """How often the database was read."""

    @property
    def stream_seconds(self) -> float:
        """Longest life of a stream."""
        return self._settings.stream_minutes * 60

    @property
    def is_over(self) -> bool:
        """Whether the process is about to end."""
        return self._stopping()

    def check(self, user: str) -> None:
        """Reject one more request that waits.

        Raises:
            QuotaError: The user has as many as a user may have, or all users together do.
        """
        most = self._settings.streams_per_user
        if self._users[user] >= most:
            self._counters.count("requests_refused", "streams_per_user")
            raise QuotaError(
                f"{user} waits for events with {most} requests already (streams_per_user); close one of them"
            )
        if self._users.total() >= self._settings.streams:
            self._counters.count("requests_refused", "streams")
            raise QuotaError(
                "too many clients wait for events (streams); ask again without waiting, or later"
            )

    @contextmanager
    def waiting(self, user: str) -> Iterator[None]:
        """Count a request that waits."""
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
        """Wait until a change request has an event after a known one; return whether it has."""
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
        """Read the newest events of all that is waited for, until nobody waits."""
        pause = _POLL_SECONDS
        while self._watched:
            try:
                self.polls += 1
                found = await run_in_threadpool(self._newest, sorted(self._watched))
            except ScorerError:
                found = {}  # the database is away; a client whose time is over reads it and gets the error
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
        """Wake those who wait."""
        self.moved.set()
        self.moved = asyncio.Event()
