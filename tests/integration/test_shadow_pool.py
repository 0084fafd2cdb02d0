"""Tests of a live server and its shadow pool as processes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bundles import ACTIONS, rows, tiny_action_bundle, tiny_score_bundle
from real_server import free_port
from servers import ACTION, SCORE, RunningServer, settings, start_server
from waiting import wait_until

from scorer.bundle import Bundle
from scorer.client import Client
from scorer.log.reading import LogReader
from scorer.registry import Registry
from scorer.v1 import control_pb2, control_pb2_grpc
from scorer.v1.log_pb2 import ObservationRecord

FRAUD, CHOICE = "fraud.checkout", "action.authorise"


class World:
    """One registry, and the separate directories of a live server and of a server of the shadow pool."""

    def __init__(self, base: Path) -> None:
        self.registry = Registry(base / "registry")
        self.live, self.pool = base / "live", base / "pool"
        self.port = free_port()
        for kind, name, build in (
            ("score", "fraud-checkout", tiny_score_bundle),
            ("action", "action-authorise", tiny_action_bundle),
        ):
            for variant in (1, 2):
                build(base / f"{kind}-{variant}", variant=variant)
                digest = self.registry.push(base / f"{kind}-{variant}")
                if variant == 1:
                    self.registry.alias(name, "live", digest)
                else:
                    setattr(self, kind, digest)
        self.candidate = Bundle.load(base / "score-2")
        own = f'path = "{self.registry.path}"\n'
        self.live.mkdir()
        self.pool.mkdir()
        to_pool = f'shadow_pool = "127.0.0.1:{self.port}"\n'
        (self.live / "scorer.toml").write_text(settings(server=to_pool, registry=own))
        # The pool could use the same settings. Settings of a pool alone need no aliases.
        bare = "".join(line + "\n" for line in (SCORE + ACTION).splitlines() if not line.startswith("alias"))
        text = settings(bare, server='role = "shadow"\n', registry=own)
        (self.pool / "scorer.toml").write_text(
            text.replace('listen = "127.0.0.1:0"', f'listen = "127.0.0.1:{self.port}"', 1)
        )

    score: str
    action: str


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def set_observers(server: RunningServer, checkpoint: str, *lanes: control_pb2.Lane) -> None:
    with grpc.insecure_channel(server.control) as channel:
        control = control_pb2_grpc.ControlServiceStub(channel)
        request = control_pb2.SetObserversRequest(
            checkpoint=checkpoint, lanes=lanes, reason="cr-000001 table 1"
        )
        control.SetObservers(request, timeout=30)


def status(server: RunningServer) -> control_pb2.GetStatusResponse:
    with grpc.insecure_channel(server.control) as channel:
        return control_pb2_grpc.ControlServiceStub(channel).GetStatus(
            control_pb2.GetStatusRequest(), timeout=30
        )


def metrics(server: RunningServer) -> str:
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics") as page:
        return str(page.read().decode())


def observations(directory: Path) -> Iterator[ObservationRecord]:
    for _, record in LogReader(directory / "decisions").records():
        if record.WhichOneof("record") == "observation":
            yield record.observation


def observe_everything(world: World, *servers: RunningServer) -> None:
    for server in servers:
        for checkpoint, bundle in ((FRAUD, world.score), (CHOICE, world.action)):
            lane = control_pb2.Lane(name="cr-000001", bundle=bundle, sample=1.0, pool=True)
            set_observers(server, checkpoint, lane)


def connected(server: RunningServer) -> None:
    wait_until(lambda: status(server).pool.connected or None, "the connection to the pool")


def settled(server: RunningServer, taken: int) -> control_pb2.PoolStatus:
    """Return the counts when the pool has reported the result of every request, which is counted once."""

    def find() -> control_pb2.PoolStatus | None:
        pool = status(server).pool
        return pool if pool.taken == taken and pool.waiting == 0 else None

    pool = wait_until(find, "every request to be counted")
    assert pool.taken == pool.accepted + pool.refused + pool.dropped, pool
    return pool


def test_the_pool_observes_what_the_live_server_answers(world: World) -> None:
    inputs = rows(40)
    with start_server(world.pool) as pool, start_server(world.live) as live:
        assert (status(pool).role, status(live).role) == ("shadow", "live")
        assert not status(pool).HasField("pool")
        assert all(not entry.following for entry in status(pool).checkpoints)
        observe_everything(world, pool, live)
        assert [bundle.digest for bundle in status(live).bundles if bundle.digest == world.score] == []
        connected(live)
        with Client(live.address) as client:
            scores = {
                f"s{at}": client.score(FRAUD, row, request_id=f"s{at}") for at, row in enumerate(inputs)
            }
            for at, row in enumerate(inputs):
                client.select_action(
                    CHOICE, row, request_id=f"a{at}", eligible=[*ACTIONS[:3]] if at % 2 else None
                )
        assert settled(live, 80).accepted == 80
        wait_until(
            lambda: sum(lane.evaluated for lane in status(pool).observers) == 80 or None,
            "all requests to be evaluated",
        )
        # The pool refuses requests for answers.
        with (
            Client(pool.address) as client,
            pytest.raises(Exception, match=r"shadow pool.* answers no requests"),
        ):
            client.score(FRAUD, inputs[0])
        assert 'scorer_shadow_pool_requests_total{outcome="accepted"} 80' in metrics(live)
        assert 'outcome="accepted"} 80' in metrics(pool).partition("scorer_shadow_received_total{")[2]
        assert pool.stop() == 0
        assert live.stop() == 0
        assert not pool.noise and not live.noise
    expected = dict(zip(scores, world.candidate.score(inputs).scores, strict=True))
    result = {record.decision.decision_id: record for record in observations(world.pool)}
    assert len(result) == 80
    for identifier, scored in scores.items():
        record = result[identifier]
        assert record.decision.score == float(expected[identifier])
        assert record.decision.bundle.hex() == world.score.removeprefix("sha256:")
        assert (record.live_score, record.live_decision) == (scored.score, scored.decision)
        assert f"sha256:{record.live_bundle.hex()}" == scored.served.bundle
    choice = result["a1"]
    assert choice.live_action and 0 < choice.live_propensity <= 1
    assert choice.decision.action in ACTIONS[:3]
    assert list(observations(world.live)) == [], "only the live server records the decisions"


def test_a_kill_and_restart_of_the_pool_changes_no_answer(world: World) -> None:
    inputs = rows(300)
    with start_server(world.live) as live:
        # The pool is not running at first. The live server serves, and reports the address of the pool.
        pool_status = status(live).pool
        assert (pool_status.address, pool_status.connected) == (f"127.0.0.1:{world.port}", False)
        lane = control_pb2.Lane(name="cr-000001", bundle=world.score, sample=1.0, pool=True)
        set_observers(live, FRAUD, lane)
        answered = 0
        with Client(live.address) as client:

            def send_requests(count: int) -> None:
                nonlocal answered
                for row in inputs[answered : answered + count]:
                    scored = client.score(FRAUD, row, request_id=f"s{answered}", timeout=10)
                    assert scored.served.by_model
                    answered += 1

            with start_server(world.pool) as pool:
                set_observers(pool, FRAUD, lane)
                connected(live)
                send_requests(100)
                wait_until(
                    lambda: status(pool).observers[0].evaluated or None, "some requests to be evaluated"
                )
                pool.kill()
            send_requests(100)
            wait_until(lambda: not status(live).pool.connected or None, "the lost connection to be detected")
            assert status(live).pool.error
            assert live.event("shadow_pool_lost")["address"] == f"127.0.0.1:{world.port}"
            with start_server(world.pool) as pool:
                wait_until(
                    lambda: len(status(pool).observers) or None, "the lanes of the pool to be restored"
                )
                connected(live)
                send_requests(100)
                counted = settled(live, 300)
                wait_until(
                    lambda: status(pool).observers[0].waiting == 0 or None,
                    "every accepted request to be evaluated",
                )
                assert pool.stop() == 0
        assert counted.accepted >= 100
        assert live.stop() == 0
    records = [*observations(world.pool)]
    assert len({record.decision.decision_id for record in records}) == len(records)
    assert {f"s{at}" for at in range(200, 300)} <= {record.decision.decision_id for record in records}
    decisions = [
        record.decision
        for _, record in LogReader(world.live / "decisions").records()
        if record.WhichOneof("record") == "decision"
    ]
    assert len(decisions) == 300
    assert not [decision for decision in decisions if decision.fallback_reason]


def test_one_settings_file_serves_both_roles(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    tiny_score_bundle(tmp_path / "built")
    digest = registry.push(tmp_path / "built")
    registry.alias("fraud-checkout", "live", digest)
    (tmp_path / "scorer.toml").write_text(
        settings(SCORE, server='shadow_pool = "127.0.0.1:1"\nstate_dir = "state-of-the-pool"\n')
    )
    with start_server(tmp_path, more=["--role", "shadow"]) as server:
        state = status(server)
        assert (state.role, state.HasField("pool")) == ("shadow", False)
        assert [list(entry.lanes) for entry in state.checkpoints] == [[]]
        assert json.loads(server.cli("status", "--json").stdout)["role"] == "shadow"
        refused = server.cli("swap", FRAUD, digest, "--reason", "by mistake")
        assert refused.returncode != 0
        assert "answers nobody" in refused.stderr
        assert server.stop() == 0
