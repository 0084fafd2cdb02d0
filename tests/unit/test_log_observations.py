"""Tests of observations in a log: summary, export and learning, on logs of an independent writer."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from logs import write_segment
from servers import scorer_in_process

from scorer.log import export, summarise
from scorer.v1.log_pb2 import DESCRIPTOR, DecisionRecord, LogRecord, ObservationRecord, OutcomeRecord

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp() * 1e6)
LIVE, SHADOW = bytes(range(32)), bytes(range(1, 33))


def decision(decision_id: str, at_us: int = NOON_US) -> bytes:
    record = DecisionRecord(
        decision_id=decision_id,
        checkpoint="fraud.checkout",
        lane="live",
        bundle=LIVE,
        decided_at_us=at_us,
        features=[1.5, 2.5],
        score=0.25,
        margin=-1.0,
        decision="approve",
    )
    return LogRecord(decision=record).SerializeToString()


def seen(decision_id: str, lane: str = "cr-000001", *, at_us: int = NOON_US, error: str = "") -> bytes:
    own = DecisionRecord(
        decision_id=decision_id,
        checkpoint="fraud.checkout",
        lane=lane,
        bundle=SHADOW,
        decided_at_us=at_us + 700,
        entity="shopper",
        features=[2.5, float("nan"), 3.5],
        schema_fingerprint=2**63 + 1,
        exec_us=12,
        data_load_us=3,
        faulted_functions=["surprise"],
    )
    if not error:
        own.margin, own.score, own.decision = 0.5, 0.625, "review"
    record = ObservationRecord(
        decision=own,
        live_lane="live",
        live_bundle=LIVE,
        live_margin=-1.0,
        live_score=0.25,
        live_decision="approve",
        live_exec_us=9,
        live_data_load_us=4,
        error=error,
        absent_features=[1],
        lag_us=650,
        answered_at_us=at_us,
    )
    return LogRecord(observation=record).SerializeToString()


def chosen(decision_id: str, *, error: str = "") -> bytes:
    own = DecisionRecord(
        decision_id=decision_id,
        checkpoint="action.authorise",
        lane="cr-000002",
        bundle=SHADOW,
        features=[1.0],
    )
    if not error:
        own.pmf[:] = [0.0, 0.75, 0.25]
        own.eligible_mask = bytes([0b110])
        own.action_index, own.action, own.propensity, own.expected_reward = 1, "b", 0.75, 0.5
    record = ObservationRecord(
        decision=own,
        live_lane="live",
        live_bundle=LIVE,
        live_action="c",
        live_propensity=0.5,
        live_expected_reward=0.25,
        live_fallback_reason="deadline",
        answered_at_us=NOON_US,
        error=error,
    )
    return LogRecord(observation=record).SerializeToString()


def outcome(decision_id: str) -> bytes:
    record = OutcomeRecord(checkpoint="fraud.checkout", decision_id=decision_id, kind="fraud", value=1.0)
    return LogRecord(outcome=record).SerializeToString()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    write_segment(directory, 1, 1, [
        decision("a"), seen("a"), seen("a", "cr-000003"), seen("a"), outcome("a"),
        decision("b"), seen("b", error="panic"), chosen("x"), chosen("y", error="non_finite"),
    ])  # fmt: skip
    write_segment(
        directory, 2, 10, [seen("late", at_us=NOON_US + 86_400_000_000), decision("c")], sealed=False
    )
    return directory


def test_observations_are_counted_separately_from_decisions(log: Path) -> None:
    summary = summarise(log)
    assert summary.records == {"decision": 3, "observation": 7, "outcome": 1}
    assert summary.checkpoints == {"fraud.checkout": 3}
    assert summary.bundles == {f"sha256:{LIVE.hex()}": 3}
    assert summary.observations == {
        "fraud.checkout cr-000001": 4,
        "fraud.checkout cr-000003": 1,
        "action.authorise cr-000002": 2,
    }
    assert summary.unscored == {
        "fraud.checkout cr-000001 (panic)": 1,
        "action.authorise cr-000002 (non_finite)": 1,
    }
    assert summary.decided_us == (NOON_US, NOON_US)


def test_an_export_has_every_field_and_every_lane_once(log: Path, tmp_path: Path) -> None:
    to, beside = tmp_path / "decisions.parquet", tmp_path / "observations.parquet"
    done = export(log, to, observations_to=beside)
    assert (done.decisions, done.with_outcome, done.orphans) == (3, 1, 0)
    assert (done.observations, done.observations_repeated, done.observations_unwritten) == (6, 1, 0)
    table = pq.read_table(beside)
    rows = {(row["decision_id"], row["lane"]): row for row in table.to_pylist()}
    assert len(rows) == len(table) == 6
    row = rows["a", "cr-000001"]
    assert math.isnan(row["features"][1])
    row["features"][1] = None
    assert row == {
        "sequence": 2,
        "decision_id": "a",
        "checkpoint": "fraud.checkout",
        "kind": "score",
        "lane": "cr-000001",
        "lane_table": 0,
        "bundle": f"sha256:{SHADOW.hex()}",
        "entity": "shopper",
        "schema_fingerprint": 2**63 + 1,
        "features": [2.5, None, 3.5],
        "margin": 0.5,
        "score": 0.625,
        "decision": "review",
        "eligible": None,
        "pmf": None,
        "action_index": None,
        "action": None,
        "propensity": None,
        "expected_reward": None,
        "reasons": [],
        "feature_reasons": [],
        "rules": None,
        "ruled_score": None,
        "queue": None,
        "faulted_functions": ["surprise"],
        "data_load_us": 3,
        "exec_us": 12,
        "answered_at": NOON,
        "observed_at": NOON.replace(microsecond=700),
        "lag_us": 650,
        "error": None,
        "absent_features": [1],
        "withheld": [],
        "live_lane": "live",
        "live_bundle": f"sha256:{LIVE.hex()}",
        "live_margin": -1.0,
        "live_score": 0.25,
        "live_decision": "approve",
        "live_action": None,
        "live_propensity": None,
        "live_expected_reward": None,
        "live_fallback_reason": None,
        "live_data_load_us": 4,
        "live_exec_us": 9,
    }
    failed = rows["b", "cr-000001"]
    assert (failed["error"], failed["margin"], failed["score"], failed["decision"]) == (
        "panic",
        None,
        None,
        None,
    )
    assert failed["live_score"] == 0.25
    action = rows["x", "cr-000002"]
    assert (action["kind"], action["pmf"], action["eligible"]) == (
        "action",
        [0, 0.75, 0.25],
        [False, True, True],
    )
    assert (action["action"], action["live_action"], action["live_propensity"]) == ("b", "c", 0.5)
    assert (action["live_fallback_reason"], action["live_score"], action["score"]) == ("deadline", None, None)
    failed = rows["y", "cr-000002"]
    assert (failed["kind"], failed["error"], failed["action"], failed["propensity"]) == (
        "action",
        "non_finite",
        None,
        None,
    )
    joined = duckdb.sql(
        f"SELECT o.score - d.score FROM '{beside}' o JOIN '{to}' d USING (checkpoint, decision_id) "
        "WHERE o.error IS NULL ORDER BY o.lane"
    ).fetchall()
    assert joined == [(0.375,), (0.375,)]


def test_a_window_selects_by_the_time_of_the_answers(log: Path, tmp_path: Path) -> None:
    to, beside = tmp_path / "decisions.parquet", tmp_path / "observations.parquet"
    done = export(log, to, observations_to=beside, until=NOON.replace(hour=13))
    assert (done.decisions, done.observations) == (3, 5)
    assert "late" not in pq.read_table(beside)["decision_id"].to_pylist()
    done = export(log, to, observations_to=beside, since=NOON.replace(hour=13))
    assert (done.decisions, done.observations) == (0, 1)


def test_observations_that_are_not_exported_are_counted_and_reported(log: Path, tmp_path: Path) -> None:
    to = tmp_path / "decisions.parquet"
    done = export(log, to)
    assert (done.observations, done.observations_unwritten) == (0, 7)
    said = scorer_in_process("log", "export", "--log", str(log), "--to", str(to))
    assert "7 observations not written: name a file for them with --observations" in said.stdout
    beside = tmp_path / "observations.parquet"
    said = scorer_in_process(
        "log", "export", "--log", str(log), "--to", str(to), "--observations", str(beside)
    )
    assert f"6 observations to {beside}" in said.stdout
    assert "not written" not in said.stdout
    assert len(pq.read_table(beside)) == 6


def test_stat_shows_observations(log: Path) -> None:
    shown = scorer_in_process("log", "stat", "--log", str(log)).stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["observations", "fraud.checkout", "cr-000001", "4"] in lines
    assert ["without", "a", "score", "fraud.checkout", "cr-000001", "(panic)", "1"] in lines
    document = json.loads(scorer_in_process("log", "stat", "--log", str(log), "--json").stdout)
    assert document["observations"]["fraud.checkout cr-000003"] == 1


def test_a_log_without_observations_exports_an_empty_table(tmp_path: Path) -> None:
    write_segment(tmp_path / "log", 1, 1, [decision("a")])
    beside = tmp_path / "observations.parquet"
    done = export(tmp_path / "log", tmp_path / "d.parquet", observations_to=beside)
    assert (done.observations, done.unnamed) == (0, (f"sha256:{LIVE.hex()}",))
    assert len(pq.read_table(beside)) == 0


def test_progress_counts_every_pass(log: Path, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    export(
        log,
        tmp_path / "d.parquet",
        observations_to=tmp_path / "o.parquet",
        advance=lambda done, total: progress.append((done, total)),
    )
    done = [one for one, _ in progress]
    assert done == sorted(done)
    assert progress[-1][0] == progress[-1][1]


def test_a_reader_without_observations_counts_them_as_unknown() -> None:
    """A reader of the previous release does not know field 5 of LogRecord."""
    older = descriptor_pb2.FileDescriptorProto()
    DESCRIPTOR.CopyToProto(older)
    older.name, older.package = "older/log.proto", "older.v1"
    for message in older.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(".scorer.v1.", ".older.v1.")
    del older.dependency[:]
    # Fields whose types are in another file, which the older reader does not have.
    for record, names in (("DecisionRecord", ("feature_reasons", "rules")), ("OutcomeRecord", ("source",))):
        (fields,) = [one.field for one in older.message_type if one.name == record]
        for at in reversed(range(len(fields))):
            if fields[at].name in names:
                del fields[at]
    (log_record,) = [message for message in older.message_type if message.name == "LogRecord"]
    del log_record.field[4:]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(older)
    cls = message_factory.GetMessageClass(pool.FindMessageTypeByName("older.v1.LogRecord"))
    assert cls.FromString(seen("a")).WhichOneof("record") is None
    assert cls.FromString(decision("a")).WhichOneof("record") == "decision"
