"""A real server writes a log while shipper, server and broker are killed: every record is delivered once."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import components
import pytest
from bundles import ACTIONS
from kafka_broker import KafkaBroker, headers_of
from logs import write_segment
from servers import settings, start_server
from shipping import Key, delta_keys, delta_rows, keys_of, mixed, shipper, write_log, write_settings
from waiting import wait_until

from scorer.client import Client, ClientError, RetryPolicy
from scorer.registry import Registry

CHECKPOINT = "action.authorise"
# `make ship-kills` runs 100.
ROUNDS = int(os.environ.get("SCORER_SHIP_KILLS", "6"))


class Traffic:
    """Selects actions and reports outcomes until it is stopped or the server ends."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name
        self._stop = threading.Event()
        self.answered: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        chance = random.Random(self._name)
        with Client(self._address, timeout=5, retry=RetryPolicy(attempts=1)) as client:
            while not self._stop.wait(0.001):
                request = f"{self._name}-{len(self.answered)}"
                context = {"amount": chance.uniform(1, 300), "hour": chance.randrange(24)}
                try:
                    client.select_action(CHECKPOINT, context, request_id=request, eligible=ACTIONS)
                    client.report_outcome(CHECKPOINT, request, "authorised", float(chance.random() < 0.8))
                except ClientError:
                    return
                self.answered.append(request)

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.answered


class DeltaTables:
    """Tables in a directory, which no process of their own serves."""

    def __init__(self, directory: Path) -> None:
        self._url = str(directory / "lake")
        self.settings: dict[str, Any] = {"delta": {"url": "lake", "compact_commits": 5}}

    def disturb(self) -> None:
        """Do nothing: a directory has no process that can be killed."""

    def keys(self) -> Counter[Key]:
        return delta_keys(self._url)

    def decisions(self) -> set[str]:
        return {row["decision_id"] for row in delta_rows(self._url, columns=["decision_id"])}


class Topic:
    """A topic of a broker that is killed and started again."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self.kills = 0
        self.settings: dict[str, Any] = {
            "kafka": {
                "servers": broker.servers,
                "topic": "decisions",
                "positions": "positions",
                "partitions": 3,
                "timeout_seconds": 10.0,
            }
        }

    def disturb(self) -> None:
        """Kill the broker in the middle of what it does, and start it again."""
        self._broker.kill()
        self._broker.start()
        self.kills += 1

    def keys(self) -> Counter[Key]:
        headers = headers_of(self._broker.messages("decisions"))
        return Counter((one["server"], one["segment"], int(one["sequence"])) for one in headers)

    def decisions(self) -> set[str]:
        messages = self._broker.messages("decisions")
        kinds = headers_of(messages)
        return {
            one.key().decode()
            for one, of in zip(messages, kinds, strict=True)
            if of["kind"] == "decision" and one.key() is not None
        }


@contextmanager
def destination(kind: str, directory: Path) -> Iterator[DeltaTables | Topic]:
    """Where the records go."""
    if kind == "delta":
        yield DeltaTables(directory)
        return
    components.require("Kafka")
    with KafkaBroker() as broker:
        yield Topic(broker)


@pytest.mark.slow
@pytest.mark.timeout(180 + 60 * ROUNDS)
@pytest.mark.parametrize("kind", ["delta", "kafka"])
def test_kills_of_shipper_server_and_broker_lose_and_double_nothing(
    tmp_path: Path, registry: Registry, kind: str
) -> None:
    """Segments are small, so that the log has several, and batches too, so that kills hit commits."""
    chance = random.Random(20261126)
    # The log keeps every record, because the delivered ones are compared with it.
    own = settings(log="segment_mb = 1")
    answered: list[str] = []
    shipped = killed = 0
    with destination(kind, tmp_path) as held:
        config = write_settings(tmp_path, **held.settings, ship={"flush_rows": 150})
        for turn in range(ROUNDS):
            with start_server(tmp_path, own) as server:
                traffic = Traffic(server.address, f"t{turn}")
                for _ in range(2):
                    with shipper(tmp_path, "--config", str(config)) as process:
                        wanted = shipped + chance.randrange(20, 300)
                        if chance.random() < 0.3:
                            held.disturb()
                        wait_until(
                            lambda wanted=wanted, process=process: (
                                _mark(tmp_path) > wanted or process.process.poll() is not None
                            ),
                            "deliveries",
                            seconds=90,
                        )
                        assert process.process.poll() is None, process.text
                        process.kill()
                        killed += 1
                        shipped = _mark(tmp_path)
                if chance.random() < 0.5:
                    server.kill()
                    killed += 1
                answered += traffic.stop()
        # The kills leave a backlog that grows with the rounds.
        with shipper(tmp_path, "--config", str(config), "--once") as process:
            assert process.wait(60 + 10 * ROUNDS) == 0, process.text
        delivered = held.keys()
        assert delivered == keys_of(tmp_path / "decisions")
        assert max(delivered.values()) == 1
        assert set(answered) <= held.decisions(), "an answered decision was delivered"
        broker_kills = held.kills if isinstance(held, Topic) else 0
    assert killed >= 2 * ROUNDS and (kind == "delta" or broker_kills)
    assert len(answered) > 50 * ROUNDS // 2
    print(
        f"{kind}: {killed} kills of shipper and server, {broker_kills} of the broker; "
        f"{delivered.total():,} records delivered, none lost, none doubled"
    )


def _mark(directory: Path) -> int:
    path = directory / "decisions/SHIPPED"
    return int(path.read_text()) if path.exists() else 0


def test_sigterm_finishes_the_present_delivery(tmp_path: Path) -> None:
    log = write_log(tmp_path / "decisions", [400])
    config = write_settings(tmp_path, delta={"url": "lake"}, ship={"flush_rows": 10})
    with shipper(tmp_path, "--config", str(config)) as process:
        wait_until(lambda: _mark(tmp_path) > 20, "deliveries", seconds=60)
        assert process.stop() == 0, process.text
    held = delta_keys(str(tmp_path / "lake"))
    assert held.total() == _mark(tmp_path) - 1 < 400
    assert "records in" in process.text
    with shipper(tmp_path, "--config", str(config), "--once") as process:
        assert process.wait() == 0, process.text
    assert delta_keys(str(tmp_path / "lake")) == keys_of(log)


def test_a_second_process_on_a_log_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "decisions", [5])
    config = write_settings(tmp_path, delta={"url": "lake"})
    with shipper(tmp_path, "--config", str(config)) as first:
        wait_until(lambda: _mark(tmp_path) == 6, "the first one", seconds=60)
        with shipper(tmp_path, "--config", str(config), "--once") as second:
            assert second.wait() == 1
        (line,) = second.text.splitlines()
        assert line.startswith("error: log ") and "is shipped by another process" in line
        first.kill()
    with shipper(tmp_path, "--config", str(config), "--once") as third:
        assert third.wait() == 0, "the lock of a killed process is released"


def test_a_running_process_ships_what_is_appended(tmp_path: Path) -> None:
    log = write_log(tmp_path / "decisions", [5])
    config = write_settings(tmp_path, delta={"url": "lake"})
    with shipper(tmp_path, "--config", str(config)) as process:
        wait_until(lambda: _mark(tmp_path) == 6, "the first records", seconds=60)
        write_segment(log, 1, 1, [mixed(n) for n in range(1, 9)])
        write_segment(log, 2, 9, [mixed(9)], sealed=False)
        wait_until(lambda: _mark(tmp_path) == 10, "the later records", seconds=60)
        assert process.stop() == 0
    assert delta_keys(str(tmp_path / "lake")) == keys_of(log)
