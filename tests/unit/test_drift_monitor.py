"""Tests of the drift monitor: positions, alerts with their causes, and its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drifting import (
    CHECKPOINT,
    DIGEST,
    PLAN,
    SETTINGS,
    START,
    Change,
    FakeLog,
    fill,
    monitor_of,
    outcome,
)
from logs import write_segment

from scorer.drift.counting import HOUR_US, BundleFacts
from scorer.drift.monitor import alerts, latest
from scorer.drift.quantities import LaneName, load
from scorer.drift.state import DriftState
from scorer.errors import LogError
from scorer.log.scanning import Entry
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, WithdrawnRecord

DAYS = 27
NOW = START + DAYS * 24 * HOUR_US


def look_hourly(folder: Path, log: FakeLog, first_day: int) -> list[str]:
    """Read and look at each six hours; return the summaries of new alerts."""
    summaries = []
    every = list(log.entries)
    for hour in range(first_day * 24, DAYS * 24 + 1, 6):
        end = START + hour * HOUR_US
        log.entries = [one for one in every if _at(one) < end]
        monitor = monitor_of(folder, [log], end)
        monitor.read()
        summaries += [one.summary for one in monitor.look()]
        monitor.state.close()
    return summaries


def _at(entry: Entry) -> int:
    if entry.kind == "outcome":
        return int(entry.record.received_at_us)
    return int(entry.record.decided_at_us)


def test_a_stable_stream_opens_no_alert(tmp_path: Path) -> None:
    log = FakeLog()
    fill(log, DAYS, Change())
    assert look_hourly(tmp_path, log, 22) == []
    (lane, found), *_ = latest(DriftState(tmp_path / "drift.sqlite"))
    assert lane == LaneName(CHECKPOINT, "live", "answer")
    judged = {one["quantity"] for one in found["findings"] if one["judged"]}
    assert {"feature:amount", "feature:issuer", "missing:amount", "score", "decision", "outcome"} <= judged


@pytest.mark.parametrize(
    ("change", "quantity", "cause"),
    [
        (Change(24, amount=4.0), "feature:amount", "feature amount: share of"),
        (Change(24, missing=0.3), "missing:amount", "missing amount: rate rose from 0.00%"),
        (Change(24, fraud=0.4), "outcome", "outcome: rate rose"),
    ],
)
def test_an_alert_names_the_cause(tmp_path: Path, change: Change, quantity: str, cause: str) -> None:
    log = FakeLog()
    fill(log, DAYS, change)
    summaries = look_hourly(tmp_path, log, 23)
    assert len(summaries) == 1
    (alert,) = alerts(DriftState(tmp_path / "drift.sqlite"), CHECKPOINT)
    assert quantity in alert.quantities
    assert any(one.startswith(cause) for one in alert.evidence["causes"]), alert.evidence["causes"]
    if change.fraud:
        assert alert.evidence["slices"][0]["name"] == "issuer=south"
    monitor = monitor_of(tmp_path, [log], NOW)
    assert [one.id for one in monitor.untold()] == [alert.id]
    monitor.told(alert.id)
    assert monitor.untold() == []
    assert monitor.look() == []


def test_performance_is_measured_and_estimated(tmp_path: Path) -> None:
    log = FakeLog()
    fill(log, DAYS, Change())
    monitor = monitor_of(tmp_path, [log], NOW)
    monitor.read()
    monitor.look()
    ((_, found),) = latest(monitor.state)
    own = found["performance"]
    assert own["bundle"] == DIGEST
    assert own["auc_estimated"] == pytest.approx(own["auc_matured"], abs=0.1)
    assert own["auc_reference"] > 0.6
    assert own["rate_observed"] == pytest.approx(own["rate_expected"], rel=0.35)
    assert own["shifted"] == []


def test_a_withdrawn_outcome_is_not_counted(tmp_path: Path) -> None:
    log = FakeLog()
    log.append("decision", DecisionRecord(
        decision_id="p", checkpoint=CHECKPOINT, lane="live", bundle=bytes.fromhex(DIGEST[7:]),
        decided_at_us=START, decision="approve", score=0.1, features=[1, 0],
    ))  # fmt: skip
    log.append("outcome", outcome("p", START + HOUR_US))
    monitor = monitor_of(tmp_path, [log], START + 4 * HOUR_US)
    monitor.read()
    assert _outcomes(monitor.state) == 1
    log.append("withdrawn", WithdrawnRecord(sequence=2, checkpoint=CHECKPOINT, decision_id="p", kind="fraud"))
    monitor.read()
    assert _outcomes(monitor.state) == 0


def _outcomes(state: DriftState) -> int:
    begin = START // HOUR_US
    with state.reading() as connection:
        assert connection is not None
        facts = BundleFacts(lambda _: state.path.parent / "bundle")
        lane = LaneName(CHECKPOINT, "live", "answer")
        counts = load(connection, lane, begin, begin + 48, PLAN, facts, SETTINGS.detection)
    assert counts is not None
    (group,) = [one for one in counts.groups if one.kind == "outcome"]
    return int(group.counts[:, 0, 0].sum())


def test_a_log_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    class Broken(FakeLog):
        def records(self, identity: str, start: int) -> None:  # type: ignore[override]
            raise LogError("no such directory")

    log = FakeLog(name="scorer-2")
    fill(log, 1, Change())
    monitor = monitor_of(tmp_path, [Broken(), log], NOW)
    result = monitor.read()
    assert result.records == len(log.entries)
    assert result.problems == ("the log of scorer-1 cannot be read: no such directory",)


def test_a_state_of_another_version_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    state = DriftState(tmp_path / "drift.sqlite")
    with state.writing() as connection:
        connection.execute("PRAGMA user_version = 9")
    state.close()
    with pytest.raises(LogError, match="has version 9, and this program reads 1; delete the file"):
        alerts(state)
    state.path.write_bytes(b"x" * 8_192)
    with pytest.raises(LogError, match="it is damaged; delete it"):
        alerts(state)


def test_the_command_counts_a_log_and_shows_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], built_bundles: dict[str, Path]
) -> None:
    from typer.testing import CliRunner

    from scorer.bundle import read_manifest
    from scorer.commands.drift import app

    bundle = built_bundles["score-1"]
    records = [
        LogRecord(
            decision=DecisionRecord(
                decision_id=f"d{at}",
                checkpoint=CHECKPOINT,
                lane="live",
                bundle=bytes.fromhex(read_manifest(bundle).digest[7:]),
                decided_at_us=START + at * HOUR_US // 20,
                decision="approve",
                score=0.1,
            )
        )
        for at in range(100)
    ]
    write_segment(tmp_path / "log", 0, 1, [one.SerializeToString() for one in records])
    arguments = ["run", str(tmp_path / "state"), "--log", str(tmp_path / "log"), "--bundles", str(bundle)]
    arguments += ["--checkpoint", CHECKPOINT, "--until", "2025-11-24T00:00"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "100 records read, 0 new alerts" in done.output
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(again.output) == {"records": 0, "alerts": []}
    shown = CliRunner().invoke(app, ["status", str(tmp_path / "state"), "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.output)["alerts"] == []
