"""A topic with events, read by a group of consumers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scorer.errors import FeedError, FeedUnavailableError
from scorer.feed.settings import FeedKafkaSection

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

_READ_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class FeedMessage:
    """A message of a partition.

    Attributes:
        offset: Offset in the partition.
        value: The bytes of the message.
        received_at_us: The broker's time of the message, in microseconds since the Unix epoch.
    """

    offset: int
    value: bytes
    received_at_us: int


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """What the brokers hold of a partition.

    Attributes:
        low: Offset of the oldest message.
        high: Offset after the newest message.
        committed: Offset that the group committed; None if there is none.
    """

    low: int
    high: int
    committed: int | None


@dataclass(slots=True)
class ReadMessages:
    """What one read returned.

    Attributes:
        messages: Messages by partition, in order.
        ends: Partitions whose end was reached after these messages, with the offset of the end.
    """

    messages: dict[int, list[FeedMessage]]
    ends: dict[int, int]


class TopicReader:
    """Reads a topic as a member of a group of consumers. Offsets are committed by `commit` only.

    Args:
        settings: The topic and the brokers.
        group: Name of the group.
        begin: Returns the offset at which the reading of a partition begins, when it is assigned.
        revoked: Called with partitions that are no longer assigned.
    """

    def __init__(
        self,
        settings: FeedKafkaSection,
        group: str,
        begin: Callable[[int, PartitionEnds], int],
        revoked: Callable[[Iterable[int]], None],
    ) -> None:
        self._settings, self._begin, self._revoked = settings, begin, revoked
        self._next: dict[int, int] = {}
        self._failure: Exception | None = None
        self._group = group
        self._consumer: Consumer | None = None
        self.partitions = 0

    def open(self) -> None:
        """Join the group.

        Raises:
            FeedUnavailableError: The brokers do not answer, or the topic does not exist.
        """
        from confluent_kafka import Consumer, KafkaException

        milliseconds = int(self._settings.timeout_seconds * 1000)
        self._consumer = consumer = Consumer(
            {
                "bootstrap.servers": self._settings.servers,
                "client.id": "scorer-feed",
                "group.id": self._group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                # The partitions of a killed process are read again after this time.
                "session.timeout.ms": 10_000,
                "queued.max.messages.kbytes": self._settings.queue_mb << 10,
                "fetch.max.bytes": max(1 << 20, self._settings.queue_mb << 19),
                "socket.timeout.ms": milliseconds,
                "socket.connection.setup.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 2_000,
                # The feed reports errors itself, on one line.
                "log_level": 0,
                "error_cb": _ignored,
                **self._settings.options,
            }
        )
        try:
            topic = consumer.list_topics(self._settings.topic, self._settings.timeout_seconds)
            found = topic.topics[self._settings.topic]
            if found.error is not None:
                raise FeedUnavailableError(
                    f'kafka: topic "{self._settings.topic}": {found.error.str()}; create it'
                )
            self.partitions = len(found.partitions)
            consumer.subscribe(
                [self._settings.topic],
                on_assign=self._assign,
                on_revoke=self._revoke,
                on_lost=self._revoke,
            )
        except KafkaException as error:
            raise self._converted(error.args[0]) from None

    def read(self, limit: int) -> ReadMessages:
        """Return the next messages, at most `limit`; none if there are none within a short time.

        Raises:
            FeedUnavailableError: The brokers do not answer.
        """
        from confluent_kafka import KafkaError

        messages: dict[int, list[FeedMessage]] = {}
        ends: dict[int, int] = {}
        for message in self._open.consume(limit, _READ_SECONDS):
            partition, offset = message.partition(), message.offset()
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF and partition is not None and offset is not None:
                    ends[partition] = offset
                    continue
                raise self._converted(error)
            if partition is None or offset is None:
                continue
            self._next[partition] = offset + 1
            messages.setdefault(partition, []).append(
                FeedMessage(offset, message.value() or b"", _received(message))
            )
        if self._failure is not None:
            raise self._failure
        return ReadMessages(messages, ends)

    @property
    def assigned(self) -> set[int]:
        """The partitions that this process reads."""
        return set(self._next)

    def ends(self, partition: int) -> PartitionEnds:
        """Ask the brokers for the ends of a partition.

        Raises:
            FeedUnavailableError: The brokers do not answer.
        """
        from confluent_kafka import KafkaException, TopicPartition

        where = TopicPartition(self._settings.topic, partition)
        seconds = self._settings.timeout_seconds
        try:
            low, high = self._open.get_watermark_offsets(where, seconds)
            committed = self._open.committed([where], seconds)[0].offset
        except KafkaException as error:
            raise self._converted(error.args[0]) from None
        return PartitionEnds(low, high, committed if committed >= 0 else None)

    def seek(self, partition: int, offset: int) -> None:
        """Continue to read a partition at an offset.

        Raises:
            FeedUnavailableError: The brokers do not answer.
        """
        from confluent_kafka import KafkaException, TopicPartition

        try:
            self._open.seek(TopicPartition(self._settings.topic, partition, offset))
        except KafkaException as error:
            raise self._converted(error.args[0]) from None
        self._next[partition] = offset

    def commit(self, partition: int, offset: int, *, wait: bool) -> None:
        """Commit the offset after the last message that was delivered.

        Args:
            partition: The partition.
            offset: Offset of the next message.
            wait: Whether to wait for the brokers.

        Raises:
            FeedUnavailableError: The brokers do not answer.
        """
        from confluent_kafka import KafkaException, TopicPartition

        offsets = [TopicPartition(self._settings.topic, partition, offset)]
        try:
            if wait:
                self._open.commit(offsets=offsets, asynchronous=False)
            else:
                self._open.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            raise self._converted(error.args[0]) from None

    def lag(self) -> int:
        """Return the number of messages after those that were read, as far as it is known."""
        from confluent_kafka import KafkaException, TopicPartition

        behind = 0
        for partition, offset in self._next.items():
            try:
                _, high = self._open.get_watermark_offsets(
                    TopicPartition(self._settings.topic, partition), cached=True
                )
            except KafkaException:
                continue
            behind += max(high - offset, 0)
        return behind

    def close(self) -> None:
        """Leave the group of consumers."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._next.clear()
        self._failure = None

    @property
    def _open(self) -> Consumer:
        if self._consumer is None:
            raise FeedUnavailableError(f"kafka {self._settings.servers}: not connected; try again")
        return self._consumer

    def _assign(self, consumer: Any, partitions: Any) -> None:
        try:
            for one in partitions:
                one.offset = self._begin(one.partition, self.ends(one.partition))
                self._next[one.partition] = one.offset
            consumer.assign(partitions)
        except FeedError as error:
            # The client would ignore an error of this callback.
            self._failure = error

    def _revoke(self, _: Any, partitions: Any) -> None:
        gone = [one.partition for one in partitions]
        for partition in gone:
            self._next.pop(partition, None)
        self._revoked(gone)

    def _converted(self, error: KafkaError) -> FeedUnavailableError:
        return FeedUnavailableError(f"kafka {self._settings.servers}: {error.str()}")


def _received(message: Message) -> int:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    kind, milliseconds = message.timestamp()
    return time.time_ns() // 1000 if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds * 1000


def _ignored(_: Any) -> None:
    """Ignore an error of the client's own threads. Calls return their errors."""
