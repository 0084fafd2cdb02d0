"""Tests that observations of a real server are verified bit for bit and compared with their decisions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import duckdb
import grpc
import pytest
from bundles import FEATURES, rows
from logs import write_segment
from servers import scorer_in_process
from waiting import wait_until

from scorer import bridge
from scorer.log import BundleShelf, LogReader, export, verify
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.log_pb2 import LogRecord
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

SCORE, ACTION = "fraud.checkout", "action.authorise"
COUNT = 40


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Path:
    """A log of scores and selections, each observed by two lanes at each checkpoint."""
    log = tmp_path_factory.mktemp("observed") / "log"
    settings = {
        "listen": "127.0.0.1:0",
        "threads": 1,
        "log": {"dir": str(log), "segment_bytes": 16384},
        "checkpoints": {
            SCORE: {"kind": "score", "p99_ms": 1000.0, "durability": "async"},
            ACTION: {"kind": "action", "p99_ms": 1000.0, "durability": "written"},
        },
    }
    server = bridge.Server(json.dumps(settings))
    digests = {}
    for name in ("score-1", "score-2", "action-1", "action-2"):
        digests[name] = BundleShelf([built_bundles[name]]).digests[0]
        server.load(str(built_bundles[name]), digests[name])

    def observer(lane: str, bundle: str) -> dict[str, object]:
        return {"name": lane, "bundle": digests[bundle], "sample": 1.0}

    table = {
        "version": 1,
        "checkpoints": {
            SCORE: [{"name": "live", "bundle": digests["score-1"], "share": 1.0}],
            ACTION: [{"name": "live", "bundle": digests["action-1"], "share": 1.0}],
        },
        "observe": {
            SCORE: [observer("aa", "score-1"), observer("cr-000001", "score-2")],
            ACTION: [observer("aa", "action-1"), observer("cr-000002", "action-2")],
        },
    }
    server.swap(json.dumps(table))
    (address,) = json.loads(server.addresses())["grpc"]
    data = rows(COUNT, seed=3)
    data[::7, 1] = math.nan
    try:
        with grpc.insecure_channel(address) as channel:
            stub = ScoringServiceStub(channel)
            for at, row in enumerate(data):
                named = pb.NamedFeatures(
                    features=[
                        pb.Feature(name=name, number=float(value))
                        for name, value in zip(FEATURES, row, strict=True)
                        if not math.isnan(value)
                    ]
                )
                eligible = {"eligible": pb.EligibleActions(mask=bytes([0b011011]))} if at % 3 == 0 else {}
                stub.Score(
                    pb.ScoreRequest(checkpoint=SCORE, request_id=f"s{at}", named=named), timeout=20,
                    wait_for_ready=True,
                )  # fmt: skip
                stub.SelectAction(
                    pb.SelectActionRequest(checkpoint=ACTION, request_id=f"x{at}", named=named, **eligible),
                    timeout=20,
                )
            wait_until(
                lambda: [one["evaluated"] for one in json.loads(server.status())["observers"]] == [COUNT] * 4,
                "all requests to be observed",
            )
    finally:
        server.drain(5.0)
    return log


def shelf(built_bundles: dict[str, Path], *names: str) -> BundleShelf:
    return BundleShelf([built_bundles[name] for name in names])


ALL = ("score-1", "score-2", "action-1", "action-2")


def test_every_observation_is_repeated_bit_for_bit(observed: Path, built_bundles: dict[str, Path]) -> None:
    report = verify(observed, shelf(built_bundles, *ALL))
    assert report.ok, report.mismatches
    assert (report.records["decision"], report.verified) == (2 * COUNT, 2 * COUNT)
    assert (report.records["observation"], report.observed) == (4 * COUNT, 4 * COUNT)
    assert (report.orphans, report.unscored, dict(report.unrepeated)) == (0, 0, {})


def test_the_bundle_of_an_observe_lane_may_be_missing(observed: Path, built_bundles: dict[str, Path]) -> None:
    report = verify(observed, shelf(built_bundles, "score-1", "action-1", "action-2"))
    assert report.ok
    (digest,) = shelf(built_bundles, "score-2").digests
    assert (report.observed, dict(report.unrepeated)) == (3 * COUNT, {digest: COUNT})
    done = scorer_in_process("log", "verify", "--log", str(observed), *[
        part for name in ("score-1", "action-1") for part in ("--bundles", str(built_bundles[name]))
    ])  # fmt: skip
    assert done.returncode == 0
    assert f"{4 * COUNT} observations, {2 * COUNT} repeated bit for bit" in done.stdout
    assert f"{COUNT} observations not repeated: bundle {digest[7:19]} is not here" in done.stdout


def altered(observed: Path, to: Path, change: Callable[[LogRecord], bool | None]) -> Path:
    """Return a copy of the log with changed records. Records for which `change` returns False are omitted."""
    kept = []
    for _, record in LogReader(observed).records():
        if change(record) is not False:
            kept.append(record.SerializeToString())
    write_segment(to / "log", 1, 1, kept)
    return to / "log"


def of(record: LogRecord, lane: str, decision_id: str) -> bool:
    own = record.observation.decision
    return record.WhichOneof("record") == "observation" and (own.lane, own.decision_id) == (lane, decision_id)


def test_one_altered_bit_of_an_observed_score_is_found(
    observed: Path, tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    def change(record: LogRecord) -> None:
        own = record.observation.decision
        if of(record, "cr-000001", "s7"):
            own.score = math.nextafter(own.score, 2)
        if of(record, "cr-000002", "x9"):
            own.propensity = math.nextafter(own.propensity, 2)

    report = verify(altered(observed, tmp_path, change), shelf(built_bundles, *ALL))
    assert not report.ok
    assert {(one.decision_id, one.field) for one in report.mismatches} == {
        ("s7", "score"),
        ("x9", "propensity"),
    }
    assert report.observed == 4 * COUNT - 2


@pytest.mark.parametrize("field", ["live_score", "live_lane", "live_decision", "live_exec_us", "live_bundle"])
def test_an_observation_of_another_answer_is_found(
    observed: Path, tmp_path: Path, built_bundles: dict[str, Path], field: str
) -> None:
    def change(record: LogRecord) -> None:
        if of(record, "cr-000001", "s7"):
            value = getattr(record.observation, field)
            other = value + 1 if isinstance(value, int | float) else value[:-1]
            setattr(record.observation, field, other)

    report = verify(altered(observed, tmp_path, change), shelf(built_bundles, *ALL))
    (mismatch,) = report.mismatches
    assert (mismatch.decision_id, mismatch.field) == ("s7", "live answer")
    assert "its decision has other values" in str(mismatch)


def test_a_missing_decision_is_counted_once(
    observed: Path, tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    def change(record: LogRecord) -> bool:
        return record.WhichOneof("record") != "decision" or record.decision.decision_id not in {"s7", "x9"}

    report = verify(altered(observed, tmp_path, change), shelf(built_bundles, *ALL))
    assert (report.orphans, report.mismatched, report.ok) == (2, 0, True)


def test_an_observation_without_a_score_is_not_repeated(
    observed: Path, tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    def change(record: LogRecord) -> None:
        if of(record, "cr-000001", "s7"):
            record.observation.error = "panic"
            record.observation.decision.score = 0.0

    report = verify(altered(observed, tmp_path, change), shelf(built_bundles, *ALL))
    assert (report.ok, report.unscored, report.observed) == (True, 1, 4 * COUNT - 1)


def test_exported_observations_can_be_joined_to_their_decisions(
    observed: Path, tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    to, beside = tmp_path / "decisions.parquet", tmp_path / "observations.parquet"
    done = export(observed, to, observations_to=beside, bundles=shelf(built_bundles, *ALL))
    assert (done.decisions, done.observations, done.unnamed) == (2 * COUNT, 4 * COUNT, ())
    joined = duckdb.sql(
        "SELECT count(*), count(*) FILTER (o.lane = 'aa' AND o.score IS DISTINCT FROM d.score), "
        "count(*) FILTER (o.lane = 'aa' AND o.action IS DISTINCT FROM d.action), "
        "count(*) FILTER (o.lane = 'aa' AND o.features::VARCHAR != d.features::VARCHAR), "
        "count(*) FILTER (o.live_score IS DISTINCT FROM d.score OR o.live_action IS DISTINCT FROM d.action), "
        "count(*) FILTER (o.answered_at < d.decided_at), count(o.feature_amount), "
        "count(*) FILTER (o.lane = 'cr-000001' AND o.score != d.score) "
        f"FROM '{beside}' o JOIN '{to}' d USING (checkpoint, decision_id)"
    ).fetchall()
    ((total, *different, named, differ),) = joined
    assert (total, different, named) == (4 * COUNT, [0] * 5, 4 * COUNT)
    assert differ > COUNT / 2, "another model has other scores"
