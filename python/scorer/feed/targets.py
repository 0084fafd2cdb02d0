"""The targets of a feed: the store of a server, and Redis."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from scorer.errors import ConfigError, FeedError, FeedUnavailableError
from scorer.feed.kafka import FeedMessage, PartitionEnds
from scorer.feed.settings import FeedPrivacySection, FeedRedisSection, FeedServersSection

if TYPE_CHECKING:
    from scorer.client import Client
    from scorer.v1.scoring_pb2 import Event

UNREADABLE: Final = "message"
"""The result of a message that is not an event."""


class FeedTarget(Protocol):
    """Takes the events of a topic.

    Attributes:
        name: Name in metrics and messages.
        group: What the name of its group of consumers ends with.
        commits_first: Whether the committed offset of the group is the position. Otherwise the target has it.
    """

    name: str
    group: str
    commits_first: bool

    def open(self, topic: str, partitions: int) -> list[str]:
        """Connect. Return lines for the operator."""

    def begin(self, partition: int, ends: PartitionEnds) -> int:
        """Return the offset of the first message that the target needs of a partition."""

    def deliver(self, partition: int, messages: Sequence[FeedMessage], end: int) -> Counter[str]:
        """Deliver messages durably, and move the position to `end`. Return the number of events by result."""

    def reached_end(self, partition: int, end: int) -> None:
        """Note that every message of a partition up to `end` has been delivered."""

    def check(self) -> bool:
        """Check the positions. Return whether the state is complete.

        Raises:
            PositionMovedError: A position is not the expected one.
        """

    def forget(self, partitions: Iterable[int]) -> None:
        """Forget partitions that another process reads."""

    def close(self) -> None:
        """End the connection to the target."""


def event_of(message: bytes, form: str) -> Event | None:
    """Return the event of a message in the form `protobuf` or `json`; None if it is none."""
    from google.protobuf.json_format import Parse, ParseError
    from google.protobuf.message import DecodeError

    from scorer.v1.scoring_pb2 import Event

    try:
        if form == "json":
            # The parser accepts an empty list as well.
            return Parse(message, Event()) if message.lstrip().startswith(b"{") else None
        return Event.FromString(message)
    except (DecodeError, ParseError, UnicodeDecodeError, RecursionError):
        return None


class RedisTarget:
    """Writes the state of entities to Redis, by the rules of the store.

    Each write is one transaction with the states, the ids and the position, so that neither a kill nor a lost
    reply loses an event or counts it twice.

    Args:
        settings: The connection and the feature set.
        privacy: The rules for stored keys.
        form: Form of the messages.

    Attributes:
        replaced: Number of states that could not be used and were begun again.
        refusal: The message of the newest refusal.
        gap: Number of messages that the brokers deleted before they were read.
    """

    name = "redis"
    group = ""
    commits_first = False

    def __init__(self, settings: FeedRedisSection, privacy: FeedPrivacySection, form: str) -> None:
        from scorer.bridge import FeatureFeed
        from scorer.config.features import redis_config

        if settings.set is None:
            raise ConfigError("redis.set is not set; name the file of the feature set")
        try:
            definition = settings.set.read_bytes()
        except OSError as error:
            raise ConfigError(
                f'redis.set: "{settings.set}" cannot be read: {error.strerror or error}'
            ) from None
        document: dict[str, Any] = {
            "redis": redis_config(settings),
            "privacy": {
                "card_numbers": privacy.card_numbers,
                "entities": privacy.entities,
                "key_file": None if privacy.key_file is None else str(privacy.key_file),
            },
        }
        self._feed = FeatureFeed(json.dumps(document), definition)
        self._form = form
        self._topic, self._partitions = "", 0
        self._positions: dict[int, tuple[int, bool] | None] = {}
        self._is_complete = False
        self.replaced = 0
        self.refusal = ""
        self.gap = 0

    def open(self, topic: str, partitions: int) -> list[str]:
        """Connect, and state how the server evicts keys."""
        self._topic, self._partitions = topic, partitions
        self._is_complete = False
        policy = self._feed.eviction_policy()
        if policy in ("", "noeviction"):
            return []
        return [
            f"warning: the server evicts keys (maxmemory-policy {policy}), and an evicted entity then reads "
            "as never seen; set noeviction, and enough memory"
        ]

    def begin(self, partition: int, ends: PartitionEnds) -> int:
        """Return the position in Redis; without one, the oldest message."""
        position = self._feed.position(self._topic, partition)
        self._positions[partition] = position
        if position is None:
            return ends.low
        if position[0] > ends.high:
            raise FeedError(
                f"redis: the position {position[0]:,} is after the end of partition {partition} of topic "
                f'"{self._topic}", {ends.high:,}; the topic was created again: use another prefix, or raise '
                "the version of the set"
            )
        self.gap += max(ends.low - position[0], 0)
        return max(position[0], ends.low)

    def deliver(self, partition: int, messages: Sequence[FeedMessage], end: int) -> Counter[str]:
        """Apply the events of messages, and write their entities with the position in one transaction."""
        values = [message.value for message in messages]
        if self._form == "json":
            events = [event_of(value, "json") for value in values]
            # These bytes are no event in the other form either.
            values = [b"\xff" if event is None else event.SerializeToString() for event in events]
        received = [message.received_at_us for message in messages]
        return self._write(partition, end, values, received)

    def _write(self, partition: int, end: int, values: list[bytes], received: list[int]) -> Counter[str]:
        position = self._positions.get(partition)
        after = (end, position is not None and position[1])
        results, refusal, replaced = self._feed.write(
            self._topic, partition, position, after, values, received
        )
        self._positions[partition] = after
        self.replaced += replaced
        self.refusal = refusal or self.refusal
        return Counter(results)

    def reached_end(self, partition: int, end: int) -> None:
        """Note in Redis that the partition was read to its end once."""
        position = self._positions.get(partition)
        if position is not None and position[1]:
            return
        after = (end if position is None else max(end, position[0]), True)
        self._feed.write(self._topic, partition, position, after, [], [])
        self._positions[partition] = after
        self.check()

    def check(self) -> bool:
        """Compare the positions with those in Redis, and mark the state as complete when it is."""
        from scorer.errors import PositionMovedError

        for partition, position in self._positions.items():
            if self._feed.position(self._topic, partition) != position:
                raise PositionMovedError(
                    f"redis: the position of partition {partition} was moved or lost; it is read again"
                )
        if self._positions:
            self._is_complete = self._feed.complete(self._topic, self._partitions)
        return self._is_complete

    def forget(self, partitions: Iterable[int]) -> None:
        """Forget the positions of partitions."""
        for partition in partitions:
            self._positions.pop(partition, None)

    def close(self) -> None:
        """Forget all positions. The connection is replaced when it ends."""
        self._positions.clear()


class ServerTarget:
    """Records events in the store of one server.

    Args:
        address: Address of the server.
        settings: TLS, token and time limit.
        form: Form of the messages.

    Attributes:
        replaced: 0; servers replace no states.
        refusal: The message of the newest refusal.
        gap: Number of messages that the brokers deleted before they were read.
    """

    commits_first = True

    def __init__(self, address: str, settings: FeedServersSection, form: str) -> None:
        self.name, self.group = address, "." + address.replace(":", ".").replace("[", "").replace("]", "")
        self._settings, self._form = settings, form
        self._client: Client | None = None
        self.replaced = 0
        self.refusal = ""
        self.gap = 0

    def open(self, topic: str, partitions: int) -> list[str]:
        """Open a client of the server."""
        from scorer.client import Client
        from scorer.config.identity import client_tls

        self.close()
        tls = client_tls(self._settings.tls)
        metadata: list[tuple[str, str]] = []
        if self._settings.token_file is not None:
            try:
                token = self._settings.token_file.read_text("utf-8").strip()
            except OSError as error:
                raise ConfigError(f"servers.token_file: {error.strerror or error}") from None
            metadata.append(("authorization", f"Bearer {token}"))
        self._client = Client(
            self.name,
            timeout=self._settings.timeout_seconds,
            credentials=None if tls is None else tls.channel_credentials(),
            metadata=metadata,
        )
        return []

    def begin(self, partition: int, ends: PartitionEnds) -> int:
        """Return the committed offset of the group; without one, the oldest message."""
        if ends.committed is None:
            return ends.low
        self.gap += max(ends.low - ends.committed, 0)
        return max(ends.committed, ends.low)

    def deliver(self, partition: int, messages: Sequence[FeedMessage], end: int) -> Counter[str]:
        """Record the events. The server replies after they are in its journal."""
        from scorer.client import Event

        results: Counter[str] = Counter()
        events = []
        for message in messages:
            read = event_of(message.value, self._form)
            if read is None:
                results[UNREADABLE] += 1
                continue
            events.append(
                Event(
                    read.kind,
                    read.id,
                    read.occurred_at_us,
                    dict(read.keys),
                    dict(read.numbers),
                    dict(read.texts),
                )
            )
        if events:
            results += self._record(events)
        return results

    def _record(self, events: Sequence[Any]) -> Counter[str]:
        from scorer.client import errors

        if self._client is None:
            raise FeedUnavailableError(f"{self.name}: not connected; try again")
        results: Counter[str] = Counter()
        try:
            recorded = self._client.record_events(events)
        except errors.InvalidRequestError:
            if len(events) == 1:
                return Counter({UNREADABLE: 1})
            # The others of the batch are valid.
            for one in events:
                results += self._record([one])
            return results
        except (errors.AccessError, errors.PreconditionError) as error:
            raise FeedError(f"{self.name}: {error}") from None
        except errors.ClientError as error:
            raise FeedUnavailableError(f"{self.name}: {error}") from None
        for result in recorded:
            results[{"recorded": "new"}.get(result.status, result.reason or result.status)] += 1
            self.refusal = result.error or self.refusal
        return results

    def reached_end(self, partition: int, end: int) -> None:
        """Do nothing: a server answers from what it has."""

    def check(self) -> bool:
        """Do nothing: the brokers hold the position."""
        return True

    def forget(self, partitions: Iterable[int]) -> None:
        """Do nothing: the brokers hold the position."""

    def close(self) -> None:
        """Close the client of the server."""
        if self._client is not None:
            self._client.close()
            self._client = None
