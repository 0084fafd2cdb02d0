"""Tests of collecting the fleet's logs: incremental, restartable, and the same after a kill at any point."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observing import ADMIN, START, Log, World, files

from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.model import GateSpec, LaneSpec, Outcome
from scorer.release.readout import keep, load, parts
from scorer.release.store import tables as t
from scorer.v1.log_pb2 import LogRecord, OutcomeRecord, WithdrawnRecord


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> World:
    return World(tmp_path, built_bundles["score-1"], built_bundles["score-2"])


def shadow(world: World) -> Any:
    return world.readouts._evidence(world.change).shadow


def test_observations_are_counted_when_they_arrive(world: World) -> None:
    log = world.logs["live-1"]
    world.readouts.collect()
    assert world.readouts.measure(world.change) == 0
    log.append(world.records(40))
    world.readouts.collect()
    world.readouts.collect()
    assert world.readouts.measure(world.change) == 40
    log.append(world.records(25, first=40))
    world.readouts.collect()
    assert world.readouts.measure(world.change) == 65
    rows = shadow(world)
    assert len(rows) == 65
    features = np.concatenate([np.frombuffer(b, np.float32).reshape(-1, 4) for b in _features(world)])
    np.testing.assert_array_equal(np.sort(rows.score), np.sort(world.bundles["own"].score(features).scores))
    np.testing.assert_array_equal(
        np.sort(rows.live_score), np.sort(world.bundles["live"].score(features).scores)
    )


def test_another_process_continues_after_a_kill(world: World) -> None:
    log = world.logs["live-1"]
    log.append(world.records(30))
    world.readouts.collect()
    log.append(world.records(30, first=30))
    world.readouts = world.new_collector()
    world.readouts.collect()
    assert len(shadow(world)) == 60


@pytest.mark.parametrize("after", ["at once", "another process", "smaller batches"])
def test_a_kill_between_parts_and_cursor_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    world.logs["live-1"].append(world.records(50))
    collector = world.readouts._collector
    keeping = type(collector)._keep

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(collector), "_keep", killed)
    with pytest.raises(KeyboardInterrupt):
        world.readouts.collect()
    assert world.readouts.measure(world.change) == 50, "the parts were written, but the cursor was not"
    monkeypatch.setattr(type(collector), "_keep", keeping)
    # More records were added meanwhile, so the batch that is read now has another end.
    world.logs["live-1"].append(world.records(20, first=50))
    if after != "at once":
        world.readouts = world.new_collector()
    if after == "smaller batches":
        world.readouts._collector._batch = 40
    world.readouts.collect()
    rows = shadow(world)
    assert world.readouts.measure(world.change) == len(rows) == 70
    assert len(np.unique(rows.key)) == 70


@pytest.mark.parametrize("moment", ["cursor", "merge"])
def test_a_kill_during_a_merge_of_parts_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    for turn in range(23):
        world.logs["live-1"].append(world.records(3, first=3 * turn))
        world.readouts.collect()
    world.logs["live-1"].append(world.records(3, first=69))
    place, name = (type(world.readouts._collector), "_keep") if moment == "cursor" else (parts, "compact")
    original = getattr(place, name)

    def killed(*arguments: Any) -> None:
        if moment == "merge":
            original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(place, name, killed)
    with pytest.raises(KeyboardInterrupt):
        world.readouts.collect()
    monkeypatch.setattr(place, name, original)
    # The next batch starts with the records of the interrupted one and ends later.
    world.logs["live-1"].append(world.records(20, first=72))
    world.readouts = world.new_collector()
    world.readouts.collect()
    rows = shadow(world)
    assert world.readouts.measure(world.change) == len(rows) == 92
    assert len(np.unique(rows.key)) == 92


def test_a_part_beyond_the_cursor_is_cut(tmp_path: Path) -> None:
    """A database that was restored from a backup is older than the parts."""
    lane = tmp_path / "lane"
    for first, last in ((1, 9), (10, 12)):
        parts.write(lane, [_outcome(n) for n in range(first, last + 1)], parts.OUTCOME)
    parts.drop_from(tmp_path, 5)
    assert [(part.first, part.last) for part in parts.parts(lane)] == [(1, 4)]
    parts.write(lane, [_outcome(n) for n in range(5, 20)], parts.OUTCOME)
    counted = [
        sequence for part in parts.parts(lane) for sequence in parts.read(part)["sequence"].to_pylist()
    ]
    assert counted == list(range(1, 20))


def test_reading_the_log_again_gives_the_same_parts(world: World, tmp_path: Path) -> None:
    world.logs["live-1"].append(world.records(50))
    world.readouts.collect()
    before = files(tmp_path / "data" / "observations")
    with world.store.write() as connection:
        connection.execute(t.cursors.delete())
    world.readouts = world.new_collector()
    world.readouts.collect()
    assert files(tmp_path / "data" / "observations") == before


def test_many_small_parts_become_one_with_the_same_rows(world: World, tmp_path: Path) -> None:
    for turn in range(30):
        world.logs["live-1"].append(world.records(3, first=3 * turn))
        world.readouts.collect()
    names = list((tmp_path / "data" / "observations").glob("live-1/*/fraud.checkout/cr-000001/*.parquet"))
    assert len(names) < 24
    rows = shadow(world)
    assert len(rows) == 90
    assert np.all(np.diff(rows.at) >= 0)


def test_parts_that_remain_after_their_merge_do_not_count(tmp_path: Path) -> None:
    for first, last in ((1, 3), (4, 9), (10, 12)):
        parts.write(tmp_path, [_outcome(n) for n in range(first, last + 1)], parts.OUTCOME)
    parts.write(tmp_path, [_outcome(n) for n in range(1, 10)], parts.OUTCOME)
    assert [(part.first, part.last) for part in parts.parts(tmp_path)] == [(1, 9), (10, 12)]
    parts.compact(tmp_path)
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def test_a_torn_tail_is_read_when_it_is_complete(world: World) -> None:
    log = world.logs["live-1"]
    log.append(world.records(10))
    log.append(world.records(5, first=10), sealed=False)
    segment = sorted(log.path.glob("*.seg"))[-1]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-700])
    world.readouts.collect()
    before = world.readouts.measure(world.change)
    assert 10 <= before < 15
    segment.write_bytes(whole)
    world.readouts.collect()
    assert world.readouts.measure(world.change) == 15


def test_a_new_log_is_reported_and_counted(world: World, tmp_path: Path) -> None:
    log = world.logs["live-1"]
    log.append(world.records(20))
    world.readouts.collect()
    for segment in log.path.glob("*.seg"):
        segment.unlink()
    world.logs["live-1"] = fresh = Log(log.path)
    fresh.append(world.records(15, first=500))
    _another_log(fresh.path)
    world.readouts.collect()
    assert world.readouts.measure(world.change) == 35
    readout = world.readouts.readout(ADMIN, "cr-000001")
    assert any("begun anew" in note for note in readout.summary["notes"])


def test_records_that_were_removed_before_they_were_read_are_reported(world: World) -> None:
    log = world.logs["live-1"]
    log.append(world.records(10))
    world.readouts.collect()
    log.append(world.records(10, first=10))
    gone = sorted(log.path.glob("*.seg"))[-1]
    log.append(world.records(10, first=20))
    gone.unlink()
    world.readouts.collect()
    assert world.readouts.measure(world.change) == 20
    notes = world.readouts.readout(ADMIN, "cr-000001").summary["notes"]
    assert any("31 to 60" in note and "gone" in note for note in notes)


def test_a_server_without_a_readable_log_is_reported(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    world = World(tmp_path, built_bundles["score-1"], built_bundles["score-2"], servers=("live-1", "live-2"))
    world.fleet._members = (
        world.fleet.members[0],
        replace(world.fleet.members[1], log=None),
    )
    world.readouts = world.new_collector()
    world.logs["live-1"].append(world.records(10))
    world.readouts.collect()
    notes = world.readouts.readout(ADMIN, "cr-000001").summary["notes"]
    assert [note for note in notes if "live-2" in note and "not within reach" in note]


def test_different_features_are_found_and_named(world: World) -> None:
    records = world.records(30)
    for record in records[1::3][:4]:
        record.observation.decision.features[0] += 1
    for record in records[1::3][4:6]:
        record.observation.absent_features.append(2)
    # A value that is missing on both sides is not a difference.
    records[3 * 10].decision.features[3] = float("nan")
    records[3 * 10 + 1].observation.decision.features[3] = float("nan")
    records[3 * 10 + 1].observation.absent_features.append(3)
    world.logs["live-1"].append(records)
    world.readouts.collect()
    rows = shadow(world)
    assert (rows.differs == 1).sum() == 4
    assert (rows.absent > 0).sum() == 2
    gate = GateSpec("feature_parity_rate", ">= 0.999")
    (result,) = world.readouts.judge(replace(world.change, gates=(gate,)))
    assert result.outcome is Outcome.FAIL
    assert result.value == pytest.approx(24 / 30)


def test_served_scores_are_computed_again(world: World) -> None:
    gate = (GateSpec("parity_max_abs", "<= 1e-6"),)
    records = world.records(20)
    world.logs["live-1"].append(records)
    world.readouts.collect()
    (result,) = world.readouts.judge(replace(world.change, gates=gate))
    assert (result.outcome, result.value, result.rows) == (Outcome.PASS, 0.0, 20)
    wrong = world.records(5, first=20)
    wrong[1].observation.decision.score += 2e-6
    world.logs["live-1"].append(wrong)
    world.readouts.collect()
    (result,) = world.readouts.judge(replace(world.change, gates=gate))
    assert result.outcome is Outcome.FAIL
    assert result.value == pytest.approx(2e-6)


def test_the_highest_revision_of_a_decisions_outcome_counts(world: World) -> None:
    world.logs["live-1"].append(
        [
            *world.records(10),
            world.outcome(3, 1.0),
            world.outcome(3, 0.0, revision=1),
            world.outcome(4, 1.0, revision=1),
            world.outcome(4, 0.0),
            world.outcome(5, 1.0),
            world.outcome(5, 0.0),
        ]
    )
    world.readouts.collect()
    result = load.outcomes(world.readouts._parts, world.checkpoint)["fraud"]
    from scorer.ids import decision_key

    known = dict(zip(result[0].tolist(), result[1].tolist(), strict=True))
    assert known == {
        decision_key("payment-000003"): 0.0,
        decision_key("payment-000004"): 1.0,
        decision_key("payment-000005"): 1.0,
    }


def test_gates_use_unproven_outcomes_only_if_it_is_configured(world: World) -> None:
    from scorer.ids import decision_key
    from scorer.log.proof import KNOWN, TOKEN, UNPROVEN

    world.logs["live-1"].append(
        [
            *world.records(10),
            world.outcome(3, 1.0, revision=1000, proof=UNPROVEN),
            world.outcome(3, 0.0, proof=TOKEN),
            world.outcome(4, 1.0, proof=UNPROVEN),
            world.outcome(5, 1.0, proof=KNOWN),
        ]
    )
    world.readouts.collect()
    parts, keys = world.readouts._parts, [decision_key(f"payment-{number:06}") for number in range(10)]

    def counting(**rule: Any) -> dict[int, float]:
        rows, values = load.outcomes(parts, world.checkpoint, **rule)["fraud"]
        return {keys.index(key): value for key, value in zip(rows.tolist(), values.tolist(), strict=True)}

    assert counting() == {3: 0.0, 5: 1.0}
    assert counting(unproven="include") == {3: 0.0, 4: 1.0, 5: 1.0}
    evidence = world.readouts._current(world.readouts._evidence(world.change), world.change)
    assert set(evidence.outcomes["fraud"][1].tolist()) == {0.0, 1.0}
    assert "2 outcomes (fraud) are not proven and do not count" in evidence.notes


def test_too_many_rows_are_sampled_equally_in_both_lanes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.logs["live-1"].append(world.records(300))
    world.readouts.collect()
    monkeypatch.setattr(load, "MOST", 100)
    evidence = world.readouts._evidence(world.change)
    assert 60 <= len(evidence.shadow) <= 140
    np.testing.assert_array_equal(np.sort(evidence.shadow.key), np.sort(evidence.control.key))
    assert any("one in 3" in note for note in evidence.notes)


def test_the_final_report_remains_without_parts_and_logs(world: World, tmp_path: Path) -> None:
    world.logs["live-1"].append(world.records(400))
    world.readouts.collect()
    gates = world.readouts.judge(world.change)
    before = world.readouts.readout(ADMIN, "cr-000001")
    world.readouts.finish(world.change, gates, Outcome.INCONCLUSIVE)
    for segment in world.logs["live-1"].path.glob("*.seg"):
        segment.unlink()
    again = world.new_collector()
    final = again.readout(ADMIN, "cr-000001")
    assert final.is_final
    assert final.verdict is Outcome.INCONCLUSIVE
    assert final.rows == 400
    assert final.live_bundle == world.bundles["live"].digest
    assert [figure.words for figure in final.figures] == [figure.words for figure in before.figures]
    assert again.judge(world.change) == gates
    assert again.measure(world.change) == 400
    # A window is selected from the stored report.
    half = START + timedelta(seconds=20)
    cut = again.readout(ADMIN, "cr-000001", end=half)
    assert cut.rows == 200
    assert cut.gates == final.gates
    again.finish(world.change, gates, Outcome.INCONCLUSIVE)
    assert keep.document(again.readout(ADMIN, "cr-000001")) == keep.document(final)


def test_a_report_can_be_limited_to_a_window_and_servers(
    tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    world = World(tmp_path, built_bundles["score-1"], built_bundles["score-2"], servers=("live-1", "live-2"))
    world.logs["live-1"].append(world.records(30))
    world.logs["live-2"].append(world.records(12, first=30))
    world.readouts.collect()
    whole = world.readouts.readout(ADMIN, "cr-000001")
    assert whole.rows == 42
    assert whole.summary["servers"] == {"live-1": 30, "live-2": 12}
    assert world.readouts.readout(ADMIN, "cr-000001", server="live-2").rows == 12
    later = START + timedelta(seconds=3)
    assert world.readouts.readout(ADMIN, "cr-000001", start=later).rows == 12
    with pytest.raises(InvalidError, match="live-1, live-2"):
        world.readouts.readout(ADMIN, "cr-000001", server="live-9")
    with pytest.raises(InvalidError, match="later end"):
        world.readouts.readout(ADMIN, "cr-000001", start=later, end=START)
    with pytest.raises(NotFoundError, match="no change request"):
        world.readouts.readout(ADMIN, "cr-000009")
    with pytest.raises(NotFoundError, match="there are execution"):
        world.readouts.figure(ADMIN, "cr-000001", "pie")
    assert world.readouts.figure(ADMIN, "cr-000001", "flips").rows


def test_old_parts_are_removed_and_outcomes_later(world: World) -> None:
    world.logs["live-1"].append([*world.records(10), world.outcome(1, 1.0)])
    world.readouts.collect()

    def left_after(days: float) -> tuple[int, int]:
        for path in world.readouts._parts.rglob("*.parquet"):
            os.utime(path, (time.time() - days * 86_400,) * 2)
        world.readouts = world.new_collector()
        world.readouts.collect()
        return world.readouts.measure(world.change), len(
            load.outcomes(world.readouts._parts, world.checkpoint)
        )

    assert left_after(34) == (10, 1)
    assert left_after(36) == (0, 1)
    assert left_after(151) == (0, 0)


def test_counters_survive_a_restart_of_the_lane(world: World) -> None:
    lane = LaneSpec("cr-000001", world.change.bundle, mode="observe")
    world.fleet.set_observers(world.fleet.members[0], world.checkpoint, [lane], reason="test")
    for taken, dropped in ((10, 1), (30, 2), (5, 0), (25, 4)):
        world.fleet.count(
            "live-1", world.checkpoint, "cr-000001", seen=taken * 10, taken=taken, dropped=dropped
        )
        world.readouts.collect()
        world.now += timedelta(seconds=30)
    totals = world.readouts.readout(ADMIN, "cr-000001").summary["counters"]
    assert totals["taken"] == 55
    assert totals["dropped"] == 6


def test_answers_are_kept_during_a_release(world: World) -> None:
    log = world.logs["live-1"]
    log.append(world.records(20))
    world.readouts.collect()
    assert not list(world.readouts._parts.rglob(f"{parts.ANSWERS}/*.parquet"))
    world.release()
    records = world.records(600, first=20)
    for record in records:
        if record.WhichOneof("record") == "decision" and int(record.decision.decision_id[-2:]) < 50:
            record.decision.lane = "canary"
            record.decision.bundle = bytes.fromhex(world.change.bundle.removeprefix("sha256:"))
    log.append(records)
    world.readouts.collect()
    results = {one.metric: one for one in world.readouts.judge_canary(world.change, START)}
    assert results["exec_p99_us"].rows == 300
    assert set(results) == {
        "exec_p99_us",
        "data_load_p99_us",
        "error_rate",
        "score_psi",
        "approve_rate_delta",
    }
    assert results["exec_p99_us"].outcome is Outcome.PASS
    assert results == {one.metric: one for one in world.readouts.judge_canary(world.change, START)}
    later = world.readouts.judge_canary(world.change, START + timedelta(hours=1))
    assert {one.outcome for one in later} == {Outcome.INCONCLUSIVE}


def _outcome(sequence: int) -> dict[str, Any]:
    return {"sequence": sequence, "key": sequence, "kind": "fraud", "value": 1.0, "revision": 0}


def _features(world: World) -> list[bytes]:
    where: Callable[..., Any] = world.readouts._where
    return [
        row
        for _, part in where(world.change).parts()
        for row in parts.read(part, ["features"])["features"].to_pylist()
    ]


def _another_log(path: Path) -> None:
    """Change the log id of the segments, and the checksum of their headers."""
    import struct

    from logs import crc32c

    for segment in path.glob("*.seg"):
        data = bytearray(segment.read_bytes())
        data[16:32] = b"\x09" * 16
        data[92:96] = struct.pack("<I", crc32c(bytes(data[:92])))
        segment.write_bytes(data)


def test_a_record_that_is_withdrawn_later_is_removed_from_its_part(world: World) -> None:
    world.release()
    log = world.logs["live-1"]
    report = OutcomeRecord(checkpoint=world.checkpoint, decision_id="payment-000000", kind="fraud", value=1.0)
    log.append([*world.records(2), LogRecord(outcome=report)])
    world.readouts.collect()
    folders = {name: parts.folders(world.readouts._parts, world.checkpoint, name) for name in _KEPT}
    result = {name: next(folder)[1] for name, folder in folders.items()}

    def sequences(name: str) -> list[int]:
        return [one for part in parts.parts(result[name]) for one in parts.read(part)["sequence"].to_pylist()]

    answers, reports = (sequences(name) for name in _KEPT)
    assert (len(answers), len(reports)) == (2, 1)
    log.append(
        [
            LogRecord(withdrawn=WithdrawnRecord(sequence=at, checkpoint=world.checkpoint, kind=kind))
            for at, kind in ((answers[0], ""), (reports[0], "fraud"))
        ]
    )
    world.readouts.collect()
    assert [sequences(name) for name in _KEPT] == [answers[1:], []]


_KEPT = (parts.ANSWERS, parts.OUTCOMES)
