"""Counters and gauges of the shipper in Prometheus' text format."""

from __future__ import annotations

from typing import Final

from scorer.exposition import Exposition

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


class ShipMetrics(Exposition):
    """The metrics of this process, by sink. Safe to use from any thread."""

    def __init__(self) -> None:
        super().__init__(_METRICS)

    def start(self, sink: str) -> None:
        """Report every metric of a sink from now on, as 0."""
        for name in _METRICS:
            self.add(name, sink, 0)

    def add(self, name: str, sink: str, value: float) -> None:
        """Increase a counter by a number."""
        self.increase(name, (("sink", sink),), value)

    def set(self, name: str, sink: str, value: float) -> None:
        """Set a gauge to a value."""
        self.put(name, (("sink", sink),), value)

    def value(self, name: str, sink: str) -> float:
        """Return the present value of a metric."""
        return self.get(name, (("sink", sink),))
