"""Counts of a client's calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClientStats:
    """A snapshot of a client's counters.

    Attributes:
        calls: Number of calls that passed the checks before sending.
        retries: Number of attempts after the first attempt of a call.
        errors: Number of failed calls by error class, including those that the client's fallback answered.
        fallbacks: Number of answers of the client's fallback by reason.
        hedges: Number of second copies of scores.
    """

    calls: int = 0
    retries: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    hedges: int = 0


class Counters:
    """Counters of calls and attempts, safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._retries = 0
        self._hedges = 0
        self._errors: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()

    def call(self) -> None:
        """Count a call that was started."""
        with self._lock:
            self._calls += 1

    def retry(self) -> None:
        """Count an attempt after the first one."""
        with self._lock:
            self._retries += 1

    def hedge(self) -> None:
        """Count a second copy of a score."""
        with self._lock:
            self._hedges += 1

    def error(self, name: str) -> None:
        """Count a failed call by the name of its error."""
        with self._lock:
            self._errors[name] += 1

    def fallback(self, reason: str) -> None:
        """Count an answer of the client's fallback by its reason."""
        with self._lock:
            self._fallbacks[reason] += 1

    def snapshot(self) -> ClientStats:
        """Return the counts so far."""
        with self._lock:
            return ClientStats(
                self._calls, self._retries, dict(self._errors), dict(self._fallbacks), self._hedges
            )
