"""Counters of rejected connections, requests and sign-ins, for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter

_KINDS = {
    "connections_closed": ("reason", "Connections closed because of a limit."),
    "requests_refused": ("reason", "Requests rejected because of a limit, before they were read."),
    "sign_in_failures": ("way", "Sign-ins that failed."),
    "sign_ins_locked": ("by", "Sign-ins rejected because of too many earlier failures."),
}


class WebCounters:
    """Counters of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self.streams = 0
        """Number of clients that wait for events."""

    def count(self, kind: str, label: str) -> None:
        """Add one to a counter. `kind` and `label` are constants and never a client's text."""
        with self._lock:
            self._counts[kind, label] += 1

    def value(self, kind: str, label: str) -> int:
        """Return the present value of a counter."""
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
