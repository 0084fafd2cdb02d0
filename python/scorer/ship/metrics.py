"""Counters and gauges of the shipper in Prometheus' text format."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Final

_METRICS: Final = {
    "scorer_ship_records": ("counter", "Records delivered, by sink."),
    "scorer_ship_bytes": ("counter", "Encoded size of the records delivered."),
    "scorer_ship_commits": ("counter", "Commits of tables, or transactions of Kafka."),
    "scorer_ship_retries": ("counter", "Deliveries that failed and were tried again."),
    "scorer_ship_gap_records": ("counter", "Records that the log lost before they were delivered."),
    "scorer_ship_erased_records": ("counter", "Records left out because their entity was erased."),
    "scorer_ship_sequence": ("gauge", "Records below this sequence are delivered."),
    "scorer_ship_lag_records": ("gauge", "Records of the log that are not delivered."),
    "scorer_ship_lag_seconds": ("gauge", "Age of the oldest record that is not delivered."),
    "scorer_ship_delay_seconds": ("gauge", "Age of the oldest record of the newest delivery, when it ended."),
    "scorer_ship_failing": ("gauge", "1 while deliveries fail."),
}


class ShipMetrics:
    """The metrics of this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], float] = defaultdict(float)
        self._lock = threading.Lock()

    def start(self, sink: str) -> None:
        """Report every metric of a sink from now on, as 0."""
        with self._lock:
            for name in _METRICS:
                self._values[name, sink] += 0

    def add(self, name: str, sink: str, value: float) -> None:
        """Increase a counter by a number."""
        with self._lock:
            self._values[name, sink] += value

    def set(self, name: str, sink: str, value: float) -> None:
        """Set a gauge to a value."""
        with self._lock:
            self._values[name, sink] = value

    def value(self, name: str, sink: str) -> float:
        """Return the present value of a metric."""
        with self._lock:
            return self._values.get((name, sink), 0.0)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, (kind, about) in _METRICS.items():
            shown = f"{name}_total" if kind == "counter" else name
            lines += [f"# HELP {shown} {about}", f"# TYPE {shown} {kind}"]
            lines += [
                f'{shown}{{sink="{sink}"}} {value:.17g}'
                for (of, sink), value in sorted(values.items())
                if of == name
            ]
        return "".join(f"{line}\n" for line in lines)
