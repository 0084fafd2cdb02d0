"""`scorer features feed` from a real Kafka broker: kills, flushes, refusals, servers and Redis."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import components
import pytest
from bundles import tiny_score_bundle
from feeding import CANONICAL, feed_of, feeding, payment, values, write_feed_settings
from google.protobuf.json_format import MessageToJson
from kafka_broker import KafkaBroker
from redis_server import RedisServer
from servers import SCORE, settings, start_server
from waiting import wait_until

from scorer.registry import Registry
from scorer.v1.scoring_pb2 import Event

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    components.require("Kafka")
    with KafkaBroker() as running:
        yield running


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


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: KafkaBroker) -> str:
    """A topic of its own for each test, with three partitions."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    name = str(request.node.name)[:100]
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
    return name


def produce(broker: KafkaBroker, topic: str, messages: Sequence[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 5})
    for number, message in enumerate(messages):
        producer.produce(topic, message, partition=number % 3)
    assert producer.flush(60) == 0


def feed_settings(broker: KafkaBroker, topic: str, target: str, *, kafka: str = "", feed: str = "") -> str:
    return (
        f'[feed]\nmetrics_listen = "off"\nretry_seconds = 60.0\n{feed}\n'
        f'[kafka]\nservers = "{broker.servers}"\n'
        f'topic = "{topic}"\ngroup = "{topic}"\n{kafka}\n{target}'
    )


def to_redis(redis: RedisServer) -> str:
    return f'[redis]\naddress = "{redis.address}"\nset = "cards.json"\n'


def count(redis: RedisServer, card: str = "card-1") -> float:
    return values(feed_of(redis.address), ["payments_1d"], card=card)[0]


def test_kills_lose_nothing_and_count_nothing_twice(
    tmp_path: Path, broker: KafkaBroker, redis: RedisServer, topic: str
) -> None:
    chance = random.Random(5)
    events = [payment(number, card=f"card-{number % 7}") for number in range(3000)]
    # A tenth of the messages are sent again.
    produce(broker, topic, [*events, *chance.sample(events, 300)])
    write_feed_settings(tmp_path, feed_settings(broker, topic, to_redis(redis), feed="batch = 20"))
    kills = 0
    for _ in range(4):
        with feeding(tmp_path) as process:
            goal = min(len(redis.keys("scorer:cards@1:i:*")) + 200, 2900)

            def has_advanced(goal: int = goal) -> bool:
                return len(redis.keys("scorer:cards@1:i:*")) >= goal

            wait_until(has_advanced, "progress", seconds=90)
            process.kill()
            kills += 1
    assert kills == 4
    with feeding(tmp_path, "--once") as process:
        assert process.wait() == 0, process.text
    expected = [float(sum(number % 7 == card for number in range(3000))) for card in range(7)]
    assert [count(redis, f"card-{card}") for card in range(7)] == expected
    assert redis.keys("*complete") == [b"scorer:cards@1:complete"]
    with feeding(tmp_path, "--once") as process:
        assert process.wait() == 0, process.text
        assert "redis: no events" in process.text


def test_a_state_that_redis_lost_is_built_again(
    tmp_path: Path, broker: KafkaBroker, redis: RedisServer, topic: str
) -> None:
    produce(broker, topic, [payment(number) for number in range(50)])
    write_feed_settings(tmp_path, feed_settings(broker, topic, to_redis(redis)))
    with feeding(tmp_path) as process:
        wait_until(lambda: redis.keys("*complete"), "the state", seconds=90)
        assert count(redis) == 50
        redis.command("FLUSHALL")
        wait_until(lambda: redis.keys("*complete"), "the state after its loss", seconds=90)
        produce(broker, topic, [payment(50)])
        wait_until(lambda: count(redis) == 51, "the newest event", seconds=60)
        process.process.terminate()
        assert process.wait() == 0, process.text
        assert "was moved or lost" in process.text


def test_a_restart_of_redis_under_load_loses_nothing(tmp_path: Path, broker: KafkaBroker, topic: str) -> None:
    components.require("Redis")
    with RedisServer("appendonly yes", "appendfsync everysec") as redis:
        produce(broker, topic, [payment(number) for number in range(2000)])
        write_feed_settings(tmp_path, feed_settings(broker, topic, to_redis(redis), feed="batch = 10"))
        with feeding(tmp_path) as process:
            wait_until(lambda: len(redis.keys("scorer:cards@1:i:*")) > 100, "progress", seconds=90)
            redis.kill()
            redis.start()
            wait_until(lambda: redis.keys("*complete"), "the state", seconds=120)
            wait_until(lambda: count(redis) == 2000, "all events", seconds=60)
            process.process.terminate()
            assert process.wait() == 0, process.text


def test_json_and_unreadable_messages(
    tmp_path: Path, broker: KafkaBroker, redis: RedisServer, topic: str
) -> None:
    good = [MessageToJson(Event.FromString(payment(number))).encode() for number in range(3)]
    produce(broker, topic, [*good, b"{", b"[1]", b"\xff\xfe", b"", good[0]])
    write_feed_settings(tmp_path, feed_settings(broker, topic, to_redis(redis), kafka='format = "json"'))
    with feeding(tmp_path, "--once") as process:
        assert process.wait() == 0, process.text
        assert "1 duplicate, 4 message, 3 new" in process.text
    assert count(redis) == 3


def test_events_reach_the_store_of_a_server_through_kills_of_both(
    tmp_path: Path, broker: KafkaBroker, topic: str
) -> None:
    home = tmp_path / "server"
    home.mkdir()
    (home / "cards.json").write_bytes(CANONICAL)
    registry = Registry(home / "registry")
    tiny_score_bundle(home / "score")
    registry.alias("fraud-checkout", "live", registry.push(home / "score"))
    config = settings(SCORE) + '\n[features]\nsets = ["cards.json"]\ndirectory = "features"\n'
    produce(broker, topic, [payment(number) for number in range(900)])
    with start_server(home, config) as server:
        address = server.address
        config = config.replace('listen = "127.0.0.1:0"', f'listen = "{address}"', 1)
        write_feed_settings(
            tmp_path,
            feed_settings(broker, topic, f'[servers]\naddresses = ["{address}"]\n', feed="batch = 20"),
        )
        with feeding(tmp_path) as process:
            wait_until(
                lambda: int(server.status()["feature_store"]["recorded"]) > 100, "progress", seconds=90
            )
            process.kill()
        server.kill()
    with start_server(home, config) as server, feeding(tmp_path, "--once") as process:
        assert process.wait() == 0, process.text
        opened = server.event("feature_store_opened")
        recorded = int(server.status()["feature_store"]["recorded"])
        assert opened["events"] + recorded == 900, "each event was recorded once"
        assert server.stop() == 0


def test_metrics_state_results_and_lag(
    tmp_path: Path, broker: KafkaBroker, redis: RedisServer, topic: str
) -> None:
    import re
    import urllib.request

    produce(broker, topic, [payment(1), payment(1), b"\xff"])
    text = feed_settings(broker, topic, to_redis(redis)).replace('"off"', '"127.0.0.1:0"', 1)
    write_feed_settings(tmp_path, text)
    with feeding(tmp_path) as process:
        wait_until(lambda: redis.keys("*complete"), "the state", seconds=90)
        found = re.search(r"http://\S+/metrics", process.text)
        assert found is not None
        url = found[0]

        def lines() -> list[str]:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return list(reply.read().decode().splitlines())

        wait_until(lambda: 'scorer_feed_complete{target="redis"} 1' in lines(), "the check", seconds=60)
        for line in (
            'scorer_feed_events_total{target="redis",result="new"} 1',
            'scorer_feed_events_total{target="redis",result="duplicate"} 1',
            'scorer_feed_events_total{target="redis",result="message"} 1',
            'scorer_feed_lag_messages{target="redis"} 0',
            'scorer_feed_failing{target="redis"} 0',
        ):
            assert line in lines()
