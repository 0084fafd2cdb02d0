"""Counts of what the web side refuses, for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter

_KINDS = {
    "connections_closed": ("reason", "Connections closed because of a limit."),
    "requests_refused": ("reason", "Requests refused because of a limit, before they were read."),
    "sign_in_failures": ("way", "Sign-ins that failed."),
    "sign_ins_locked": ("by", "Sign-ins refused because of too many failures before."),
}


class WebCounters:
    """Counters of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self.streams = 0
        """Clients that wait for events now."""

    def count(self, kind: str, label: str) -> None:
        """Add one to a counter; `kind` and `label` are names of ours, never of a client."""
        with self._lock:
            self._counts[kind, label] += 1

    def value(self, kind: str, label: str) -> int:
        """Return a counter's present value, 0 before the first count."""
        with self._lock:
            return self._counts[kind, label]

    def lines(self) -> list[str]:
        """Return the counters in Prometheus' text format."""
        with self._lock:
            counts = dict(self._counts)
        found = []
        for kind, (key, about) in _KINDS.items():
            name = f"scorer_platform_{kind}_total"
            found += [f"# HELP {name} {about}", f"# TYPE {name} counter"]
            found += [
                f'{name}{{{key}="{label}"}} {n}' for (k, label), n in sorted(counts.items()) if k == kind
            ]
        name = "scorer_platform_event_waiters"
        return [
            *found,
            f"# HELP {name} Clients that wait for events of change requests.",
            f"# TYPE {name} gauge",
            f"{name} {self.streams}",
        ]
