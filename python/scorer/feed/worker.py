"""The thread that brings the events of a topic to one target."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from scorer.errors import FeedError, FeedUnavailableError, PositionMovedError
from scorer.feed.kafka import FeedMessage, TopicReader
from scorer.feed.metrics import FeedMetrics
from scorer.feed.settings import FeedSettings
from scorer.feed.targets import RedisTarget, ServerTarget
from scorer.ship.backoff import Backoff

_CHECK_SECONDS: Final = 5.0
_PROGRESS_SECONDS: Final = 10.0


class FeedWorker(threading.Thread):
    """Delivers the events of a topic to one target until it is stopped, or until the topic's end.

    Args:
        settings: The settings.
        target: The target.
        stop: Set it to end after the present delivery.
        metrics: The metrics of the process.
        say: Prints a line for the operator.
        once: Whether to end at the end of the topic.

    Attributes:
        error: The error that ended the worker; None if it was stopped or has reached the end.
        results: Number of events by result.
    """

    def __init__(
        self,
        settings: FeedSettings,
        target: RedisTarget | ServerTarget,
        *,
        stop: threading.Event,
        metrics: FeedMetrics,
        say: Callable[[str], None],
        once: bool,
    ) -> None:
        super().__init__(name=f"feed-{target.name}")
        self.target = target
        self.error: Exception | None = None
        self.results: Counter[str] = Counter()
        self._settings, self._stop_event, self._metrics, self._say = settings, stop, metrics, say
        self._once = once
        self._backoff = Backoff(settings.feed.retry_seconds)
        kafka = settings.kafka
        self._reader = TopicReader(kafka, kafka.group + target.group, target.begin, target.forget)
        self._ended: set[int] = set()
        self._reported = (0.0, 0, "")

    def run(self) -> None:
        """Deliver until the end, a stop or an error."""
        try:
            while not self._try():
                pass
        except Exception as error:
            self.error = error
        finally:
            self.target.close()
            if self.error is not None:
                self._stop_event.set()

    def _try(self) -> bool:
        """Deliver until an error that another try may avoid. Return whether the worker has ended."""
        try:
            self._reader.open()
            for line in self.target.open(self._settings.kafka.topic, self._reader.partitions):
                self._say(f"{self.target.name}: {line}")
            self._feed()
        except FeedUnavailableError as error:
            self._metrics.add("scorer_feed_retries", self.target.name, 1)
            self._metrics.set("scorer_feed_failing", self.target.name, 1)
            wait = self._backoff.failed()
            if wait is None:
                raise FeedError(f"{error}; given up, a restart continues where it ended") from None
            self._say(f"{self.target.name}: {error}; next try in {wait:.1f} s")
            return self._stop_event.wait(wait)
        finally:
            self._reader.close()
        return True

    def _feed(self) -> None:
        self._ended.clear()
        due = time.monotonic() + _CHECK_SECONDS
        while not self._stop_event.is_set():
            read = self._reader.read(self._settings.feed.batch)
            for partition, messages in read.messages.items():
                self._deliver(partition, messages)
            for partition, end in read.ends.items():
                self._guarded(partition, partial(self.target.reached_end, partition, end))
                self._ended.add(partition)
            if time.monotonic() >= due:
                due = time.monotonic() + _CHECK_SECONDS
                self._check()
            if self._once and self._reader.assigned and self._ended >= self._reader.assigned:
                self._check()
                return

    def _deliver(self, partition: int, messages: list[FeedMessage]) -> None:
        name, end = self.target.name, messages[-1].offset + 1

        def deliver() -> None:
            results = self.target.deliver(partition, messages, end)
            self.results += results
            self._metrics.add_events(name, results)
            self._metrics.add("scorer_feed_writes", name, 1)
            oldest = min(message.received_at_us for message in messages)
            self._metrics.set("scorer_feed_delay_seconds", name, max(time.time() - oldest / 1e6, 0.0))
            self._reader.commit(partition, end, wait=self.target.commits_first)
            self._succeeded()

        self._guarded(partition, deliver)
        self._progress()

    def _guarded(self, partition: int, action: Callable[[], None]) -> None:
        """Do something with a partition. If its position was moved, continue at the position."""
        try:
            action()
        except PositionMovedError as error:
            self._moved(error, [partition])

    def _moved(self, error: PositionMovedError, partitions: list[int]) -> None:
        self._metrics.add("scorer_feed_moved", self.target.name, 1)
        self._say(f"{self.target.name}: {error}")
        for partition in partitions:
            if partition in self._reader.assigned:
                self._ended.discard(partition)
                self._reader.seek(partition, self.target.begin(partition, self._reader.ends(partition)))

    def _check(self) -> None:
        try:
            complete = self.target.check()
        except PositionMovedError as error:
            self._moved(error, sorted(self._reader.assigned))
            complete = False
        name = self.target.name
        self._metrics.set("scorer_feed_complete", name, int(complete))
        self._metrics.set("scorer_feed_lag_messages", name, self._reader.lag())
        self._metrics.set("scorer_feed_gap_messages", name, self.target.gap)
        self._metrics.set("scorer_feed_states_replaced", name, self.target.replaced)
        self._succeeded()

    def _succeeded(self) -> None:
        self._backoff.succeeded()
        self._metrics.set("scorer_feed_failing", self.target.name, 0)

    def _progress(self) -> None:
        """Print a line at intervals while there is something new, with the newest refusal."""
        at, before, refusal = self._reported
        now, total = time.monotonic(), self.results.total()
        if now - at < _PROGRESS_SECONDS:
            return
        rate = f", {(total - before) / (now - at):,.0f}/s" if at else ""
        self._say(f"{self.target.name}: {total:,} events{rate}, {self._reader.lag():,} behind")
        if self.target.refusal and self.target.refusal != refusal:
            self._say(f"{self.target.name}: refused: {self.target.refusal}")
        self._reported = (now, total, self.target.refusal)
