"""`scorer ship` to a real Kafka broker: kills of shipper and broker, lost topics, two processes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import components
import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka_broker import KafkaBroker, headers_of
from logs import write_segment
from shipping import (
    SERVER,
    Key,
    every_kind,
    keys_of,
    mixed,
    shipper,
    write_log,
    write_settings,
)
from waiting import wait_until

from scorer.errors import ShipError, SinkUnavailableError
from scorer.ship.kafka import KafkaSink
from scorer.ship.settings import KafkaSection
from scorer.ship.source import LogSource

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    components.require("Kafka")
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of its own for each test."""
    return str(request.node.name)[:100]


def kafka(broker: KafkaBroker, topic: str, **own: Any) -> dict[str, Any]:
    values = {"servers": broker.servers, "topic": topic, "positions": f"{topic}-positions", "partitions": 3}
    return values | {"timeout_seconds": 10.0} | own


def keys_in(broker: KafkaBroker, topic: str, *, committed: bool = True) -> Counter[Key]:
    headers = headers_of(broker.messages(topic, committed=committed))
    return Counter((one["server"], one["segment"], int(one["sequence"])) for one in headers)


def mark_of(directory: Path) -> int:
    path = directory / "decisions/SHIPPED"
    return int(path.read_text()) if path.exists() else 0


def test_every_record_is_a_message_with_its_origin(tmp_path: Path, broker: KafkaBroker, topic: str) -> None:
    log = tmp_path / "decisions"
    write_segment(log, 1, 1, every_kind(), sealed=False)
    config = write_settings(tmp_path, kafka=kafka(broker, topic))
    with shipper(tmp_path, "--config", str(config), "--once") as process:
        assert process.wait() == 0, process.text
    messages = sorted(broker.messages(topic), key=lambda one: int(dict(one.headers())["sequence"]))
    assert [one.value() for one in messages] == every_kind()
    headers = headers_of(messages)
    assert [one["kind"] for one in headers] == [
        "decision", "decision", "outcome", "observation", "withdrawn", "delivery", "lane_table", "recovery",
        "unknown",
    ]  # fmt: skip
    assert {one["server"] for one in headers} == {SERVER}
    assert {one["log"] for one in headers} == {f"{7:032x}"}
    keys = [one.key() for one in messages]
    assert keys == [b"d1", b"d2", b"d1", b"d1", b"d1", b"d1", None, None, None]
    of_one = {one.partition() for one in messages if one.key() == b"d1"}
    assert len(of_one) == 1, "the records of a decision are in one partition"


def test_kills_lose_and_double_nothing(tmp_path: Path, broker: KafkaBroker, topic: str) -> None:
    chance = random.Random(5)
    log = write_log(tmp_path / "decisions", [3000, 3000])
    config = write_settings(tmp_path, kafka=kafka(broker, topic), ship={"flush_rows": 60})
    kills = 0
    while mark_of(tmp_path) < 5800:
        with shipper(tmp_path, "--config", str(config)) as process:
            wanted = min(mark_of(tmp_path) + chance.randrange(1, 1600), 6001)
            wait_until(
                lambda wanted=wanted, process=process: (
                    mark_of(tmp_path) >= wanted or process.process.poll() is not None
                ),
                "deliveries",
                seconds=60,
            )
            assert process.process.poll() is None, process.text
            process.kill()
            kills += 1
    with shipper(tmp_path, "--config", str(config), "--once") as process:
        assert process.wait() == 0, process.text
    assert kills > 2
    assert keys_in(broker, topic) == keys_of(log)


def test_a_broker_that_is_killed_gets_everything_once(
    tmp_path: Path, broker: KafkaBroker, topic: str
) -> None:
    log = write_log(tmp_path / "decisions", [3000])
    config = write_settings(tmp_path, kafka=kafka(broker, topic), ship={"flush_rows": 20})
    with shipper(tmp_path, "--config", str(config)) as process:
        wait_until(lambda: mark_of(tmp_path) > 200, "deliveries", seconds=60)
        broker.kill()
        # Without further records, a fast shipper could have delivered everything before.
        write_segment(log, 2, 3001, [mixed(n) for n in range(3001, 3061)], sealed=False)
        wait_until(lambda: "next try in" in process.text, "a retry", seconds=60)
        broker.start()
        wait_until(lambda: mark_of(tmp_path) == 3061, "the rest", seconds=120)
        assert process.stop() == 0, process.text
    assert keys_in(broker, topic) == keys_of(log)


def test_a_topic_that_was_deleted_is_filled_again(tmp_path: Path, broker: KafkaBroker, topic: str) -> None:
    log = write_log(tmp_path / "decisions", [50])
    config = write_settings(tmp_path, kafka=kafka(broker, topic))
    with shipper(tmp_path, "--config", str(config)) as process:
        wait_until(lambda: mark_of(tmp_path) == 51, "the first records", seconds=60)
        broker.delete_topic(topic)
        write_segment(log, 2, 51, [mixed(n) for n in range(51, 61)], sealed=False)
        wait_until(lambda: mark_of(tmp_path) == 61, "the later records", seconds=120)
        assert process.stop() == 0, process.text
    assert keys_in(broker, topic) == keys_of(log)
    assert "next try in" in process.text


def test_a_topic_that_does_not_exist_is_named(tmp_path: Path, broker: KafkaBroker, topic: str) -> None:
    sink = KafkaSink(KafkaSection(**kafka(broker, topic, create_topics=False)), SERVER)
    with pytest.raises(SinkUnavailableError, match=f'topic "{topic}" does not exist; create it'):
        sink.open()


def test_a_second_process_with_the_same_id_ends_the_first(
    tmp_path: Path, broker: KafkaBroker, topic: str
) -> None:
    log = write_log(tmp_path / "decisions", [30])
    section = KafkaSection(**kafka(broker, topic))
    first, second = KafkaSink(section, SERVER), KafkaSink(section, SERVER)
    source = LogSource(log, SERVER, max_records=10, max_bytes=1 << 20)
    position = first.open()
    assert position is None
    batch = source.read(position)
    assert batch is not None
    first.deliver(batch)
    assert second.open() == batch.end
    later = source.read(batch.end)
    assert later is not None
    with pytest.raises(ShipError, match="another process ships with the id") as stopped:
        first.deliver(later)
    assert not isinstance(stopped.value, SinkUnavailableError) and "\n" not in str(stopped.value)
    second.deliver(later)
    first.close()
    second.close()
    assert keys_in(broker, topic).total() == 20
    assert max(keys_in(broker, topic).values()) == 1


def test_what_an_earlier_process_has_not_committed_is_invisible(
    tmp_path: Path, broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent and acknowledged; only consumers that read uncommitted messages see it twice."""
    log = write_log(tmp_path / "decisions", [20])
    section = KafkaSection(**kafka(broker, topic))
    sink = KafkaSink(section, SERVER)
    source = LogSource(log, SERVER, max_records=100, max_bytes=1 << 20)
    batch = source.read(sink.open())
    assert batch is not None

    class LostError(Exception):
        pass

    class Producer:
        """A producer whose process ends before it commits."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def commit_transaction(self, *_: Any) -> None:
            assert self._real.flush(30) == 0
            raise LostError

    monkeypatch.setattr(sink, "_producer", Producer(sink._producer))
    with pytest.raises(LostError):
        sink.deliver(batch)
    second = KafkaSink(section, SERVER)
    assert second.open() is None
    second.deliver(batch)
    second.close()
    assert keys_in(broker, topic) == keys_of(log)
    assert set(keys_in(broker, topic, committed=False).values()) == {2}


def test_a_broker_may_hear_of_the_topic_of_positions_later(
    broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = [KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART]

    class Consumer(confluent_kafka.Consumer):
        def get_watermark_offsets(self, *arguments: Any, **named: Any) -> tuple[int, int]:
            if unknown:
                raise KafkaException(KafkaError(unknown.pop()))
            return super().get_watermark_offsets(*arguments, **named)

    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)
    sink = KafkaSink(KafkaSection(**kafka(broker, topic)), SERVER)
    assert sink.open() is None
    assert not unknown
    sink.close()


def test_a_broker_that_does_not_answer_ends_the_process_with_a_reason(tmp_path: Path) -> None:
    from real_server import free_port

    write_log(tmp_path / "decisions", [5])
    away = {"servers": f"127.0.0.1:{free_port()}", "timeout_seconds": 1.0}
    config = write_settings(tmp_path, kafka=away, ship={"retry_seconds": 2.0})
    with shipper(tmp_path, "--config", str(config), "--once") as process:
        assert process.wait(60) == 1
    last = process.text.splitlines()[-1]
    assert last.startswith("error: kafka 127.0.0.1:") and "given up, a restart continues" in last
    assert mark_of(tmp_path) == 0


def test_both_sinks_hold_the_same_records(tmp_path: Path, broker: KafkaBroker, topic: str) -> None:
    from shipping import delta_keys

    log = write_log(tmp_path / "decisions", [500])
    config = write_settings(
        tmp_path, kafka=kafka(broker, topic), delta={"url": "lake"}, ship={"flush_rows": 70}
    )
    with shipper(tmp_path, "--config", str(config), "--once") as process:
        assert process.wait() == 0, process.text
    assert keys_in(broker, topic) == delta_keys(str(tmp_path / "lake")) == keys_of(log)
    assert mark_of(tmp_path) == 501
