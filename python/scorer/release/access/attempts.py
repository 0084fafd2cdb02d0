"""Limits failed sign-ins by source, in the memory of this process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable


class Attempts:
    """A bucket of failures per source (an address): `limit` at once, then one more every `seconds`/`limit`.

    A secret of 256 bits is not found by guessing; this keeps guessers from using up the database and the log.
    Sources are forgotten, oldest first, beyond `sources`, so that made-up ones do not fill the memory.
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
        """Seconds until the source may try again; 0: now."""
        with self._lock:
            owed = self._full_again.get(source, 0.0) - self._clock()
        return max(0.0, owed - (self._limit - 1) * self._per_failure)

    def failed(self, source: str) -> None:
        """Count a failed attempt to sign in."""
        with self._lock:
            now = self._clock()
            self._full_again[source] = max(self._full_again.pop(source, now), now) + self._per_failure
            while len(self._full_again) > self._most:
                self._full_again.popitem(last=False)
