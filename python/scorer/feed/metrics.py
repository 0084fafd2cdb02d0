"""Counters and gauges of a feed in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scorer.exposition import Exposition

_EVENTS: Final = "scorer_feed_events"
_METRICS: Final = {
    _EVENTS: ("counter", "Events, by result: new, duplicate, or the reason of a refusal."),
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


class FeedMetrics(Exposition):
    """The metrics of this process, by target. Safe to use from any thread."""

    def __init__(self) -> None:
        super().__init__(_METRICS)

    def start(self, target: str) -> None:
        """Report every metric of a target from now on, as 0."""
        for name in _METRICS:
            if name == _EVENTS:
                self.add_events(target, {"new": 0})
            else:
                self.add(name, target, 0)

    def add(self, name: str, target: str, value: float) -> None:
        """Increase a counter by a number."""
        self.increase(name, (("target", target),), value)

    def add_events(self, target: str, results: Mapping[str, int]) -> None:
        """Count events of a target by result."""
        for result, count in results.items():
            self.increase(_EVENTS, (("target", target), ("result", result)), count)

    def set(self, name: str, target: str, value: float) -> None:
        """Set a gauge or a counter to a value."""
        self.put(name, (("target", target),), value)
