"""Counters and gauges of a feed in Prometheus' text format."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

_METRICS: Final = {
    "scorer_feed_events": ("counter", "Events, by result: new, duplicate, or the reason of a refusal."),
    "scorer_feed_writes": ("counter", "Writes that were acknowledged."),
    "scorer_feed_retries": ("counter", "Attempts that failed and were made again."),
    "scorer_feed_moved": ("counter", "Positions that another process moved, or that were lost."),
    "scorer_feed_gap_messages": ("counter", "Messages that the brokers deleted before they were read."),
    "scorer_feed_states_replaced": ("counter", "States that could not be used and were begun again."),
    "scorer_feed_lag_messages": ("gauge", "Messages of the assigned partitions that are not read."),
    "scorer_feed_delay_seconds": ("gauge", "Age of the oldest message of the newest write, when it ended."),
    "scorer_feed_failing": ("gauge", "1 while writes fail."),
    "scorer_feed_complete": ("gauge", "1 if the state of all partitions is complete."),
}


class FeedMetrics:
    """The metrics of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str], float] = defaultdict(float)
        self._lock = threading.Lock()

    def start(self, target: str) -> None:
        """Report every metric of a target from now on, as 0."""
        with self._lock:
            for name in _METRICS:
                self._values[name, target, "new" if name == "scorer_feed_events" else ""] += 0

    def add(self, name: str, target: str, value: float) -> None:
        """Increase a counter by a number."""
        with self._lock:
            self._values[name, target, ""] += value

    def add_events(self, target: str, results: Mapping[str, int]) -> None:
        """Count events of a target by result."""
        with self._lock:
            for result, count in results.items():
                self._values["scorer_feed_events", target, result] += count

    def set(self, name: str, target: str, value: float) -> None:
        """Set a gauge or a counter to a value."""
        with self._lock:
            self._values[name, target, ""] = value

    def text(self) -> str:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, (kind, about) in _METRICS.items():
            shown = f"{name}_total" if kind == "counter" else name
            lines += [f"# HELP {shown} {about}", f"# TYPE {shown} {kind}"]
            for (of, target, result), value in sorted(values.items()):
                if of == name:
                    labels = f'target="{target}"' + (f',result="{result}"' if result else "")
                    lines.append(f"{shown}{{{labels}}} {value:.17g}")
        return "".join(f"{line}\n" for line in lines)
