"""The writer of a feed on a real Redis: equal to the offline values, and exactly once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import components
import numpy as np
import pyarrow as pa
import pytest
from feeding import CANONICAL, DOCUMENT, TOPIC, feed_of, payment, values, write
from redis_server import RedisServer, SlowProxy

from loadtests.feature_events import event_table, random_decisions, random_events, random_set, seeded
from scorer.errors import FeedError, FeedUnavailableError, PositionMovedError
from scorer.features import canonical_json, parse_set
from scorer.features.events import EventTable
from scorer.features.parity import compare
from scorer.v1.scoring_pb2 import Event

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def running() -> Iterator[RedisServer]:
    components.require("Redis")
    with RedisServer() as running:
        yield running


@pytest.fixture
def redis(running: RedisServer) -> RedisServer:
    """The server of the module, emptied."""
    running.command("FLUSHALL")
    return running


def encoded(kind: str, event: Any) -> bytes:
    def given(fields: Any) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value is not None}

    return Event(
        kind=kind,
        id=event["id"],
        occurred_at_us=event["occurred_at"],
        keys=given(event["keys"]),
        numbers=given(event["numbers"]),
        texts=given(event["texts"]),
    ).SerializeToString()


def test_a_replay_with_duplicates_late_events_and_kills_equals_the_offline_values(redis: RedisServer) -> None:
    """Writers are replaced in between, and each repeats messages from before its position."""
    rng = seeded(3)
    declared = random_set(rng, 20)
    events = random_events(rng, 6000, days=20, keys=40)
    decisions = random_decisions(rng, 600, days=22, keys=40)
    received = {event["received_at"] for of in events.values() for event in of}
    for decision in decisions:
        while decision["time"] in received:
            decision["time"] += 1
    queue = [(event["received_at"], kind, event) for kind, of in events.items() for event in of]
    queue += [(decision["time"], "", decision) for decision in decisions]
    queue.sort(key=lambda one: one[0])
    names = [feature.name for feature in declared.features]
    definition = canonical_json(declared)
    feed = feed_of(redis.address, definition)
    log: list[tuple[bytes, int]] = []
    delivered, served = 0, []

    def flush() -> None:
        nonlocal delivered, feed
        while delivered < len(log):
            if rng.random() < 0.05:
                feed = feed_of(redis.address, definition)
                position = feed.position(TOPIC, 0)
                assert (position or (0, False))[0] == delivered
            part = log[delivered : delivered + rng.randint(1, 300)]
            begin = feed.position(TOPIC, 0)
            after = (delivered + len(part), False)
            feed.write(TOPIC, 0, begin, after, [one for one, _ in part], [at for _, at in part])
            delivered += len(part)

    for at, kind, row in queue:
        if kind:
            log.append((encoded(kind, row), at))
            continue
        flush()
        keys = {entity: [row.get(entity)] for entity in declared.entities}
        found = np.frombuffer(feed.read_batch(names, keys, [at]), np.float32).tolist()
        served.append({**row, **{f"served {name}": one for name, one in zip(names, found, strict=True)}})
    flush()
    tables = {kind: EventTable(event_table(declared, kind, of)) for kind, of in events.items()}
    report = compare(declared, tables, pa.Table.from_pylist(served))
    assert report.passed, report.document()
    assert [one.compared for one in report.features] == [600] * len(declared.features)


def test_a_write_whose_reply_is_lost_is_neither_lost_nor_counted_twice(redis: RedisServer) -> None:
    with SlowProxy(redis.port) as proxy:
        slow = feed_of(proxy.address, timeout_ms=150)
        assert write(slow, [payment(0)]) == ["new"]
        position = slow.position(TOPIC, 0)
        assert position is not None
        proxy.delay = 0.6
        with pytest.raises(FeedUnavailableError, match="no reply within 150 ms"):
            slow.write(TOPIC, 0, position, (2, True), [payment(1)], [0])
        proxy.delay = 0.0
        # The delay was in the reply to WATCH: nothing was applied, and the position states it.
        assert slow.position(TOPIC, 0) == position
        assert write(slow, [payment(1), payment(1)]) == ["new", "duplicate"]
        assert values(slow, ["payments_1d"], card="card-1") == [2.0]


def test_a_stale_writer_changes_nothing(redis: RedisServer) -> None:
    first, second = feed_of(redis.address), feed_of(redis.address)
    write(first, [payment(0)])
    position = second.position(TOPIC, 0)
    write(first, [payment(1)])
    with pytest.raises(PositionMovedError, match="moved by another process"):
        second.write(TOPIC, 0, position, (2, True), [payment(2)], [0])
    assert values(first, ["payments_1d"], card="card-1") == [2.0]


def test_writers_of_two_partitions_share_an_entity(redis: RedisServer) -> None:
    """Each retries when the other has changed the card in between."""
    failures: list[BaseException] = []

    def run(partition: int) -> None:
        try:
            feed = feed_of(redis.address)
            for number in range(100):
                write(feed, [payment(1000 * partition + number)], partition, last=False)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(partition,)) for partition in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    assert values(feed_of(redis.address), ["payments_1d"], card="card-1") == [200.0]


def test_another_definition_of_the_same_version_is_refused(redis: RedisServer) -> None:
    write(feed_of(redis.address), [payment(0)])
    changed = {**DOCUMENT, "text": "changed"}
    other = feed_of(redis.address, canonical_json(parse_set(changed)))
    with pytest.raises(FeedError, match="raise the version of the set"):
        other.position(TOPIC, 0)
    higher = feed_of(redis.address, canonical_json(parse_set({**changed, "version": 2})))
    assert higher.position(TOPIC, 0) is None


def test_a_damaged_state_is_begun_again_and_counted(redis: RedisServer) -> None:
    feed = feed_of(redis.address)
    write(feed, [payment(0)])
    key = b"scorer:cards@1:e:card:card-1"
    blob = redis.command("GET", key)
    redis.command("SET", key, blob[:-1] + bytes([blob[-1] ^ 1]))
    with pytest.raises(FeedUnavailableError, match="Corrupt"):
        values(feed, ["payments_1d"], card="card-1")
    _, _, replaced = feed.write(TOPIC, 0, (1, True), (2, True), [payment(1)], [2**62])
    assert replaced == 0, "a refused event touches no state"
    position = feed.position(TOPIC, 0)
    assert position == (2, True)
    assert write(feed, [payment(2)]) == ["new"]
    assert values(feed, ["payments_1d"], card="card-1") == [1.0]


def test_refusals_have_the_reasons_of_the_store(redis: RedisServer) -> None:
    feed = feed_of(redis.address)
    card_number = Event(kind="payment", id="4111111111111111", keys={"card": "a"}).SerializeToString()
    assert write(
        feed, [b"\xff", card_number, payment(1, ago=-60), payment(2, ago=8 * 86_400), payment(3)]
    ) == [
        "message",
        "privacy",
        "future",
        "late",
        "new",
    ]


def test_the_state_is_complete_when_every_partition_has_caught_up(redis: RedisServer) -> None:
    feed = feed_of(redis.address)
    write(feed, [payment(0)], 0, last=False)
    assert feed.complete(TOPIC, 2) is False
    feed.write(TOPIC, 0, (1, False), (1, True), [], [])
    assert feed.complete(TOPIC, 2) is False
    feed.write(TOPIC, 1, None, (0, True), [], [])
    assert feed.complete(TOPIC, 2) is True
    assert redis.keys("*complete") == [b"scorer:cards@1:complete"]
    redis.command("DEL", "scorer:cards@1:p:events:1")
    feed.write(TOPIC, 1, None, (0, False), [], [])
    assert redis.keys("*complete") == [], "a partition that begins again makes the state incomplete"


def test_states_and_ids_expire_after_their_last_use(redis: RedisServer) -> None:
    feed = feed_of(redis.address)
    write(feed, [payment(random.randint(0, 9))])
    day = 86_400_000
    blob = redis.command("PTTL", "scorer:cards@1:e:card:card-1")
    # Windows of seven days with tiles of 6 h, seven days for late events, and a day to spare.
    assert 15 * day < blob <= 15.25 * day
    (ids,) = [key for key in redis.keys("*") if b":i:" in key]
    assert 7.9 * day < redis.command("PTTL", ids) <= 8 * day
    assert CANONICAL
