"""In-memory rate limit of failed sign-ins by source."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable


class Attempts:
    """A token bucket of failures per source, usually an IP address.

    A secret of 256 bits cannot be guessed. The limit protects the database and the log from failed attempts.

    Args:
        limit: Failures that a source may have in a burst. It regains one every `seconds`/`limit` seconds.
        seconds: Time in seconds after which a source regains all its attempts.
        sources: Limit on the sources kept in memory. The oldest one is dropped first.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        *,
        limit: int = 20,
        seconds: float = 60.0,
        sources: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._per_failure = seconds / limit
        self._most = sources
        self._clock = clock
        self._full_again: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, source: str) -> float:
        """Return the seconds until the source may try again; 0: now."""
        with self._lock:
            owed = self._full_again.get(source, 0.0) - self._clock()
        return max(0.0, owed - (self._limit - 1) * self._per_failure)

    def failed(self, source: str) -> None:
        """Count a failed sign-in of a source."""
        with self._lock:
            now = self._clock()
            self._full_again[source] = max(self._full_again.pop(source, now), now) + self._per_failure
            while len(self._full_again) > self._most:
                self._full_again.popitem(last=False)
