"""Intervals between tries that fail."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

_FIRST, _MOST = 0.2, 30.0


class Backoff:
    """Intervals that double up to 30 s, with jitter, until a time limit.

    Args:
        limit: Time without success after which the tries end, in seconds.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._since: float | None = None
        self._interval = _FIRST

    def succeeded(self) -> None:
        """Begin again with the shortest interval."""
        self._since, self._interval = None, _FIRST

    def failed(self) -> float | None:
        """Return the seconds to wait before the next try; None if the time limit has passed."""
        now = self._clock()
        if self._since is None:
            self._since = now
        left = self._limit - (now - self._since)
        if left <= 0:
            return None
        interval, self._interval = self._interval, min(self._interval * 2, _MOST)
        return min(interval * random.uniform(0.8, 1.0), left)  # noqa: S311 - jitter
