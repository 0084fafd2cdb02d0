"""The Kafka sink: one transaction per batch, which holds the records and the position after them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from scorer.errors import ShipError, SinkUnavailableError
from scorer.log.shipped.position import ShipPosition
from scorer.ship.batch import Batch
from scorer.ship.decoding import kind_of, record_class
from scorer.ship.settings import KafkaSection

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

_POLL_SECONDS: Final = 0.1


class KafkaSink:
    """Delivers the encoded records to a topic, keyed by decision id.

    The producer is idempotent and transactional. The position of each server is a message in a compacted
    topic, in the same transaction as its records, so consumers that read committed messages see every record
    once. The position belongs to the topic's id: a topic that was deleted and created again is filled from
    the log's first record.

    Args:
        settings: The settings of the sink.
        server: Id of the server, from which the transactional id is made. A second producer with the same id
            ends the first one's transactions.
    """

    name = "kafka"

    def __init__(self, settings: KafkaSection, server: str) -> None:
        self._settings, self._server = settings, server
        self._producer: Producer | None = None
        self._admin: AdminClient | None = None
        self._topic_id = ""
        self.commits = 0

    def open(self) -> ShipPosition | None:
        """Create or check the topics, start a producer, and return the position of the server."""
        from confluent_kafka import KafkaException, Producer
        from confluent_kafka.admin import AdminClient

        self.close()
        try:
            self._admin = AdminClient(self._client())
            self._create_missing(self._admin)
            self._topic_id = self._id_of_topic(self._admin)
            self._producer = Producer(self._client() | self._producing())
            # Ends what an earlier process with this id has begun, and waits for it.
            self._producer.init_transactions(self._settings.timeout_seconds)
            return self._position()
        except KafkaException as error:
            raise self._converted(error) from None

    def deliver(self, batch: Batch) -> None:
        """Send the records of a batch and the position after it in one transaction."""
        from confluent_kafka import KafkaException

        producer, admin = self._producer, self._admin
        if producer is None or admin is None:
            raise SinkUnavailableError(f"kafka {self._settings.servers}: not connected; try again")
        try:
            if self._id_of_topic(admin) != self._topic_id:
                raise SinkUnavailableError(
                    f'kafka: topic "{self._settings.topic}" was deleted and created again; it is filled from '
                    "the log's first record"
                )
            producer.begin_transaction()
            deadline = time.monotonic() + self._settings.timeout_seconds
            topic = {"topic": self._settings.topic}
            for message in _messages(batch):
                self._produce(producer, deadline, topic | message)
            position = {"key": self._key, "value": json.dumps(batch.end.values()).encode()}
            self._produce(producer, deadline, {"topic": self._settings.positions, "partition": 0} | position)
            # Waits for every acknowledgement, and fails if a message was not acknowledged.
            producer.commit_transaction(self._settings.timeout_seconds)
        except KafkaException as error:
            raise self._converted(error) from None
        self.commits += 1

    def upkeep(self) -> str:
        """Do nothing: the brokers maintain their topics."""
        return ""

    def finish(self) -> str:
        """Do nothing: the brokers maintain their topics."""
        return ""

    def close(self) -> None:
        """Drop the producer with the messages that are not sent. Their transaction is not committed."""
        if self._producer is not None:
            # Otherwise the release of the producer waits until its messages are sent.
            self._producer.purge(in_queue=True, in_flight=True, blocking=True)
            self._producer = None
        self._admin = None

    def _client(self) -> dict[str, Any]:
        seconds = self._settings.timeout_seconds
        return {
            "bootstrap.servers": self._settings.servers,
            "client.id": f"scorer-ship-{self._server}",
            "socket.timeout.ms": int(seconds * 1000),
            "socket.connection.setup.timeout.ms": 5_000,
            "reconnect.backoff.max.ms": 2_000,
            # The shipper reports errors itself, on one line.
            "log_level": 0,
            "error_cb": _ignored,
            **self._settings.options,
        }

    def _producing(self) -> dict[str, Any]:
        milliseconds = int(self._settings.timeout_seconds * 1000)
        return {
            "transactional.id": f"scorer-ship/{self._server}/{self._settings.topic}",
            "transaction.timeout.ms": milliseconds,
            "message.timeout.ms": milliseconds,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.kbytes": self._settings.queue_mb << 10,
            "queue.buffering.max.messages": 200_000,
        }

    def _produce(self, producer: Producer, deadline: float, message: dict[str, Any]) -> None:
        """Put a message into the queue, waiting while the queue is full."""
        while True:
            try:
                producer.produce(**message)
            except BufferError:
                if time.monotonic() > deadline:
                    raise SinkUnavailableError(
                        f"kafka {self._settings.servers}: the queue of {self._settings.queue_mb} MB stays "
                        "full; the brokers are too slow"
                    ) from None
                producer.poll(_POLL_SECONDS)
            else:
                return

    @property
    def _key(self) -> bytes:
        """Key of the server's position."""
        return f"{self._server}/{self._topic_id}".encode()

    def _create_missing(self, admin: AdminClient) -> None:
        """Create the topics that do not exist."""
        known = admin.list_topics(timeout=self._settings.timeout_seconds).topics
        wanted = {
            self._settings.topic: (self._settings.partitions, {}),
            self._settings.positions: (
                1,
                {"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"},
            ),
        }
        for topic, (partitions, configuration) in wanted.items():
            if topic not in known:
                self._create(admin, topic, partitions, configuration)

    def _id_of_topic(self, admin: AdminClient) -> str:
        """Return the id of the topic of records, which a topic that is created again does not keep."""
        from confluent_kafka import TopicCollection

        seconds = self._settings.timeout_seconds
        topics = TopicCollection([self._settings.topic])
        described = admin.describe_topics(topics, request_timeout=seconds)[self._settings.topic]
        return str(described.result(seconds).topic_id)

    def _create(self, admin: Any, topic: str, partitions: int, configuration: dict[str, str]) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        if not self._settings.create_topics:
            raise SinkUnavailableError(
                f'kafka: topic "{topic}" does not exist; create it, or set create_topics'
            )
        new = NewTopic(topic, partitions, self._settings.replication, config=configuration)
        try:
            admin.create_topics([new], request_timeout=self._settings.timeout_seconds)[topic].result(
                self._settings.timeout_seconds
            )
        except KafkaException as error:
            # Another server's shipper may create it at the same time.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _position(self) -> ShipPosition | None:
        """Return the newest committed position of the server in the topic of positions."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition
        from confluent_kafka import KafkaException as Failure

        consumer = Consumer(
            self._client()
            | {
                "group.id": f"scorer-ship-{self._server}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            partition = TopicPartition(self._settings.positions, 0)
            seconds = self._settings.timeout_seconds
            end = self._end_of(consumer, partition)
            found: bytes | None = None
            consumer.assign([TopicPartition(self._settings.positions, 0, 0)])
            # Transactions of other servers that are open now end or expire within their time limit.
            deadline = time.monotonic() + 2 * seconds
            reached = end == 0
            while not reached:
                message = consumer.poll(_POLL_SECONDS)
                if time.monotonic() > deadline:
                    raise SinkUnavailableError(
                        f'kafka: the positions in topic "{self._settings.positions}" cannot be read up to '
                        "their end"
                    )
                if message is None:
                    continue
                problem = message.error()
                if problem is None:
                    if message.key() == self._key:
                        found = message.value()
                elif problem.code() == KafkaError._PARTITION_EOF:
                    reached = (message.offset() or 0) >= end
                else:
                    raise Failure(problem)
        finally:
            consumer.close()
        return None if found is None else self._parsed(found)

    def _end_of(self, consumer: Consumer, partition: TopicPartition) -> int:
        """Return the offset after the last message of a partition."""
        from confluent_kafka import KafkaError, KafkaException

        # A broker may hear of a topic some moments after another one has created it.
        unknown = {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
        deadline = time.monotonic() + self._settings.timeout_seconds
        while True:
            try:
                return int(consumer.get_watermark_offsets(partition, self._settings.timeout_seconds)[1])
            except KafkaException as error:
                if error.args[0].code() not in unknown or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _parsed(self, text: bytes) -> ShipPosition:
        try:
            position = ShipPosition.of(json.loads(text))
        except (ValueError, TypeError, AttributeError):
            position = None
        if position is None:
            raise ShipError(
                f'kafka: the position of server "{self._server}" in topic "{self._settings.positions}" is '
                "not one of "
                "this version; upgrade scorer, or name another topic"
            )
        return position

    def _converted(self, failure: KafkaException) -> ShipError:
        """Return the error of the shipper for an error of the client."""
        error: KafkaError = failure.args[0]
        where = f"kafka {self._settings.servers}"
        if error.name() in _FENCED:
            return ShipError(
                f'{where}: another process ships with the id of server "{self._server}"; give each server an '
                "id of "
                "its own"
            )
        text = " ".join(str(error.str()).split())
        if error.name() == "MSG_SIZE_TOO_LARGE":
            return ShipError(
                f"{where}: {text}; raise message.max.bytes here and max.message.bytes of the topic"
            )
        if error.name() in _FORBIDDEN:
            return ShipError(f"{where}: {text}; check the credentials and the access control lists")
        return SinkUnavailableError(f"{where}: {text}")


_FENCED: Final = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
_FORBIDDEN: Final = {
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "_AUTHENTICATION",
    "_INVALID_ARG",
}
"""Errors that another try does not change."""


def _ignored(_: Any) -> None:
    """Ignore an event of the client: the call that needs the broker reports the error."""


def _messages(batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield key, value and headers of each record."""
    decode = record_class().FromString
    server, log = ("server", batch.server.encode()), ("log", batch.log.encode())
    for run, part in batch.slices():
        segment = ("segment", run.name.encode())
        for sequence, payload in zip(batch.sequences[part], batch.payloads[part], strict=True):
            kind = kind_of(payload)
            headers = [
                server,
                log,
                segment,
                ("sequence", b"%d" % sequence),
                ("kind", kind.encode()),
            ]
            yield {"key": _key(decode(payload), kind), "value": payload, "headers": headers}


def _key(record: Any, kind: str) -> bytes | None:
    """Return the decision id; None for records that belong to no decision."""
    if kind == "observation":
        return str(record.observation.decision.decision_id).encode()
    if kind in {"decision", "outcome", "withdrawn", "delivery"}:
        return str(getattr(record, kind).decision_id).encode()
    return None
