"""Tests of observe lanes in a real server process: set by the fleet, logged, restored, exported, searched."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from bundles import FEATURES, rows
from servers import RunningServer, scorer_in_process, settings, start_server
from waiting import wait_until

from scorer.log import LogReader
from scorer.log.source.indexed import IndexedLogs
from scorer.registry import Registry
from scorer.release.decisions import Decisions
from scorer.release.errors import RefusedError
from scorer.release.fleet import Fleet, Member
from scorer.release.fleet.logs import log_directories
from scorer.release.model import Actor, LaneSpec, Project
from scorer.v1 import scoring_pb2 as pb
from scorer.v1 import scoring_pb2_grpc

FRAUD = "fraud.checkout"
LARGE = '[{"feature": "amount", "op": ">=", "value": 80}]'


class Shop:
    """Scores rows with unique ids, and keeps the answers."""

    def __init__(self) -> None:
        self.rows = rows(60, seed=7).tolist()
        self.answers: dict[str, pb.ScoreResponse] = {}

    def buy(self, server: RunningServer, name: str) -> list[str]:
        stub = scoring_pb2_grpc.ScoringServiceStub(server.channel())
        ids = []
        for at, row in enumerate(self.rows):
            features = [pb.Feature(name=f, number=value) for f, value in zip(FEATURES, row, strict=True)]
            request = pb.ScoreRequest(
                checkpoint=FRAUD, request_id=f"{name}{at}", named=pb.NamedFeatures(features=features)
            )
            self.answers[f"{name}{at}"] = stub.Score(request, timeout=20, wait_for_ready=True)
            ids.append(f"{name}{at}")
        return ids

    def large(self, name: str) -> set[str]:
        return {f"{name}{at}" for at, row in enumerate(self.rows) if row[0] >= 80}


def observe(name: str, digest: str, sample: float = 1.0, filter_: str = "") -> LaneSpec:
    return LaneSpec(name, digest, "observe", sample=sample, filter=filter_)


def counters(fleet: Fleet, member: Member) -> dict[str, Any]:
    return {one["lane"]: one for one in fleet.status(member).observers}


def evaluated(fleet: Fleet, member: Member, **wanted: int) -> dict[str, Any]:
    """Wait until lanes have evaluated the given numbers of requests."""

    def there() -> dict[str, Any] | None:
        result = counters(fleet, member)
        done = {lane: result.get(lane, {}).get("evaluated") for lane in wanted}
        return result if done == wanted else None

    return wait_until(there, f"evaluated {wanted}") or {}


def seen(log: Path) -> Counter[tuple[str, str]]:
    """Return the decision ids and lanes of the observations in a log."""
    return Counter(
        (record.observation.decision.decision_id, record.observation.decision.lane)
        for _, record in LogReader(log).records()
        if record.WhichOneof("record") == "observation"
    )


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_observe_lane_is_set_evaluated_logged_and_shown(
    tmp_path: Path, registry: Registry, built_bundles: dict[str, Path], end: str
) -> None:
    live = registry.resolve("fraud-checkout@live").digest
    shadow = registry.push(built_bundles["score-2"])
    action = registry.resolve("action-authorise@live").digest
    shop, log = Shop(), tmp_path / "decisions"
    total, large = len(shop.rows), len(shop.large("a"))
    assert 0 < large < total

    with start_server(tmp_path, settings()) as server:
        member = Member("live-1", server.control, log=log)
        fleet = Fleet([member])
        lanes = [observe("aa", live), observe("cr-000001", shadow, filter_=LARGE)]
        fleet.set_observers(member, FRAUD, lanes, reason="cr-000001 table 1")
        assert server.event("observing")["reason"] == "cr-000001 table 1"
        for bad in (
            [observe("cr-000002", action)],
            [observe("a", shadow, filter_='[{"feature":"x","op":"missing"}]')],
        ):
            with pytest.raises(RefusedError):
                fleet.set_observers(member, FRAUD, bad, reason="another kind, an unknown feature")
        status = fleet.status(member)
        assert status.checkpoints is not None
        assert status.checkpoints[FRAUD].observe == tuple(lanes)
        assert status.checkpoints[FRAUD].answer == (LaneSpec("live", live, share=1.0),)
        assert status.checkpoints[FRAUD].following == "fraud-checkout@live"

        shop.buy(server, "a")
        result = evaluated(fleet, member, **{"aa": total, "cr-000001": large})
        assert (result["cr-000001"]["seen"], result["cr-000001"]["left_out"]) == (total, total - large)
        assert {answer.served.bundle for answer in shop.answers.values()} == {live}

        # The sampling rate is changed while the lane runs. A lower rate samples a subset of the
        # same requests.
        fleet.set_observers(
            member, FRAUD, [observe("aa", live), observe("cr-000001", shadow, 0.5)], reason=""
        )
        shop.buy(server, "b")
        result = evaluated(fleet, member, aa=2 * total)
        wait_until(
            lambda: (one := counters(fleet, member)["cr-000001"])["evaluated"] == one["taken"],
            "all requests to be evaluated",
        )
        half = counters(fleet, member)["cr-000001"]["taken"]
        assert 0 < half < total, "about half of the requests are evaluated"
        if end == "stop":
            assert server.stop() == 0
        else:
            wait_until(
                lambda: seen(log).total() == total + large + total + half,
                "the observation to be in the log's file",
            )
            server.kill()
        fleet.close()

    with start_server(tmp_path) as server:
        member = Member("live-1", server.control, log=log)
        fleet = Fleet([member])
        server.event("observing", cause="restart")
        status = fleet.status(member)
        assert status.checkpoints is not None
        assert status.checkpoints[FRAUD].observe == (
            observe("aa", live),
            observe("cr-000001", shadow, 0.5),
        )
        shop.buy(server, "c")
        evaluated(fleet, member, aa=total)
        fleet.set_observers(member, FRAUD, [], reason="over")
        assert counters(fleet, member) == {}
        shop.buy(server, "d")
        assert {answer.served.bundle for answer in shop.answers.values()} == {live}
        fleet.close()
        assert server.stop() == 0

    found_ids = seen(log)
    assert set(found_ids.values()) == {1}
    by_lane = {lane: {name for name, own in found_ids if own == lane} for lane in ("aa", "cr-000001")}
    assert by_lane["aa"] == {f"{name}{at}" for name in "abc" for at in range(total)}
    assert {one for one in by_lane["cr-000001"] if one.startswith("a")} == shop.large("a")
    sampled = {one[1:] for one in by_lane["cr-000001"] if one.startswith("b")}
    assert len(sampled) == half
    assert not any(one.startswith("d") for one in by_lane["cr-000001"])

    bundles = ("--bundles", str(tmp_path / "registry"))
    done = scorer_in_process("log", "verify", "--log", str(log), *bundles, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0, document
    assert (document["observed"], document["orphans"], document["unscored"]) == (
        sum(found_ids.values()),
        0,
        0,
    )
    assert document["verified"] == document["records"]["decision"] == 4 * total
    beside = tmp_path / "observations.parquet"
    to = tmp_path / "decisions.parquet"
    done = scorer_in_process(
        "log", "export", "--log", str(log), *bundles, "--to", str(to), "--observations", str(beside)
    )
    assert done.returncode == 0, done.stderr
    assert len(pq.read_table(to)) == 4 * total
    assert len(pq.read_table(beside)) == sum(found_ids.values())

    explorer = decisions(tmp_path, member, registry)
    wanted = sorted(shop.large("a"))[0]
    result = explorer.find(ACTOR, wanted)
    assert result["decision"]["score"] == shop.answers[wanted].score
    assert {one["lane"] for one in result["observations"]} == {"aa", "cr-000001"}
    (control,) = [one for one in result["observations"] if one["lane"] == "aa"]
    assert (control["score"], control["flipped"]) == (result["decision"]["score"], False)
    row = shop.rows[int(wanted[1:])]
    assert {one["name"]: one["value"] for one in result["features"]} == pytest.approx(
        dict(zip(FEATURES, row, strict=True)), rel=1e-6
    )
    newest = explorer.recent(ACTOR, FRAUD, limit=3)
    assert [one["decision_id"] for one in newest] == [f"d{total - at}" for at in (1, 2, 3)]
    explorer.close()


ACTOR = Actor("ada")


def decisions(base: Path, member: Member, registry: Registry) -> Decisions:
    platform: Any = SimpleNamespace(checkpoints={FRAUD: None})
    source = IndexedLogs(lambda: log_directories(Fleet([member])), base / "platform" / "decisions.sqlite")
    access: Any = SimpleNamespace(
        projects=lambda actor: [Project("all", "All")], checkpoints=lambda actor, known: set(known)
    )
    bundles: Any = SimpleNamespace(local=lambda digest: registry.resolve(digest).path)
    return Decisions(source, access, bundles, platform)


def test_a_bundle_that_no_longer_loads_loses_its_lane_and_answers_continue(
    tmp_path: Path, registry: Registry, built_bundles: dict[str, Path]
) -> None:
    shadow = registry.push(built_bundles["score-2"])
    with start_server(tmp_path, settings()) as server:
        assert (
            server.cli("observe", FRAUD, "aa=fraud-checkout@live:1", f"cr-000001={shadow}:1").returncode == 0
        )
        assert server.stop() == 0
    for copy in (tmp_path / "state" / "bundles", tmp_path / "registry" / "bundles"):
        forest = copy / shadow.removeprefix("sha256:") / "forest.bin"
        forest.chmod(0o644)
        forest.write_bytes(forest.read_bytes()[:-20])
    with start_server(tmp_path) as server:
        left = server.event("observer_left_out")
        assert (left["lane"], left["bundle"]) == ("cr-000001", shadow)
        server.event("observing", cause="restart")
        shop = Shop()
        shop.buy(server, "a")
        shown = server.cli("lanes").stdout
        assert "aa" in shown
        assert "cr-000001" not in shown
