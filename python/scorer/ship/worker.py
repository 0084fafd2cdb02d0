"""The thread that delivers a log to one sink."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scorer.errors import ScorerError, ShipError, SinkUnavailableError
from scorer.log.shipped.position import ShipPosition
from scorer.ship.backoff import Backoff
from scorer.ship.lag import age
from scorer.ship.metrics import ShipMetrics
from scorer.ship.sinks import Sink
from scorer.ship.source import LogSource


@dataclass
class Delivered:
    """Counts of what a worker has delivered."""

    records: int = 0
    bytes: int = 0
    gap_records: int = 0
    erased: int = 0
    retries: int = 0
    slowest_seconds: float = 0.0
    """Greatest age of a record when its delivery ended."""


class Worker(threading.Thread):
    """Delivers the records of a log to one sink until it is stopped, or until the log's end.

    Args:
        source: The log.
        sink: The sink. Its position determines where the delivery begins, also after an error.
        stop: Set it to end after the present delivery.
        metrics: The metrics of the process.
        say: Prints a line for the operator.
        flush_seconds: Interval of deliveries.
        retry_seconds: Time without a successful delivery after which the worker fails.
        once: Whether to end at the end of the log.
        delivered: Called with the sink's name and the sequence below which everything is delivered.

    Attributes:
        error: The error that ended the worker; None if it was stopped or has reached the end.
        counts: Counts of the records.
        sequence: Records below it are delivered; None before the position is known.
    """

    def __init__(
        self,
        source: LogSource,
        sink: Sink,
        *,
        stop: threading.Event,
        metrics: ShipMetrics,
        say: Callable[[str], None],
        flush_seconds: float,
        retry_seconds: float,
        once: bool,
        delivered: Callable[[str, int], None],
    ) -> None:
        super().__init__(name=f"ship-{sink.name}")
        self.sink = sink
        self.error: Exception | None = None
        self.counts = Delivered()
        self.sequence: int | None = None
        self._source, self._stop_event, self._metrics, self._say = source, stop, metrics, say
        self._flush_seconds, self._once, self._delivered = flush_seconds, once, delivered
        self._backoff = Backoff(retry_seconds)

    @property
    def directory(self) -> Path:
        """Directory of the log that is shipped."""
        return self._source.directory

    def run(self) -> None:
        """Deliver until the end, a stop or an error."""
        try:
            while not self._try():
                pass
        except ScorerError as error:
            self.error = error
        except Exception as error:
            self.error = error
        finally:
            self._source.forget()
            self.sink.close()
            if self.error is not None:
                self._stop_event.set()

    def _try(self) -> bool:
        """Deliver until an error that another try may avoid. Return whether the worker has ended."""
        try:
            self._ship(self.sink.open())
        except SinkUnavailableError as error:
            self._source.forget()
            self.counts.retries += 1
            self._metrics.add("scorer_ship_retries", self.sink.name, 1)
            self._metrics.set("scorer_ship_failing", self.sink.name, 1)
            wait = self._backoff.failed()
            if wait is None:
                raise ShipError(f"{error}; given up, a restart continues where it ended") from None
            self._say(f"{self.sink.name}: {error}; next try in {wait:.1f} s")
            return self._stop_event.wait(wait)
        return True

    def _ship(self, position: ShipPosition | None) -> None:
        self._reached(position)
        due = time.monotonic()
        while not self._stop_event.is_set():
            batch = self._source.read(position)
            self._take_notes()
            if batch is not None:
                for gap in batch.gaps:
                    self.counts.gap_records += gap.records
                    self._metrics.add("scorer_ship_gap_records", self.sink.name, gap.records)
                    self._say(f"{self.sink.name}: {gap}")
                before = self.sink.commits
                self.sink.deliver(batch)
                position = batch.end
                self._count(
                    len(batch), batch.size, batch.erased, self.sink.commits - before, age(batch.payloads)
                )
                self._reached(position)
            self._backoff.succeeded()
            self._metrics.set("scorer_ship_failing", self.sink.name, 0)
            self._report(self.sink.upkeep())
            if batch is not None and batch.is_full:
                due = time.monotonic()
                continue
            if self._once:
                self._report(self.sink.finish())
                return
            due = max(due + self._flush_seconds, time.monotonic())
            self._stop_event.wait(due - time.monotonic())

    def _count(self, records: int, size: int, erased: int, commits: int, delay: float) -> None:
        counts, metrics, name = self.counts, self._metrics, self.sink.name
        counts.records += records
        counts.bytes += size
        counts.erased += erased
        counts.slowest_seconds = max(counts.slowest_seconds, delay)
        metrics.add("scorer_ship_records", name, records)
        metrics.add("scorer_ship_bytes", name, size)
        metrics.add("scorer_ship_erased_records", name, erased)
        metrics.add("scorer_ship_commits", name, commits)
        metrics.set("scorer_ship_delay_seconds", name, delay)

    def _reached(self, position: ShipPosition | None) -> None:
        self.sequence = 0 if position is None else position.sequence
        self._metrics.set("scorer_ship_sequence", self.sink.name, self.sequence)
        if position is not None:
            self._delivered(self.sink.name, position.sequence)

    def _take_notes(self) -> None:
        while self._source.notes:
            self._report(self._source.notes.pop(0))

    def _report(self, message: str) -> None:
        if message:
            self._say(f"{self.sink.name}: {message}")
