"""Tests that the columns of decisions and outcomes equal the records of the same log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from logs import write_segment

from scorer.errors import LogError
from scorer.log import scan
from scorer.log.columns import Ragged, feature_rows, scan_columns
from scorer.log.erasure import erase
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord, WithdrawnRecord

CHECKPOINT = "fraud.checkout"


def decision(number: int, **other: object) -> bytes:
    values: dict[str, object] = {
        "decision_id": f"payment-{number}",
        "checkpoint": CHECKPOINT,
        "bundle": bytes([number % 2]) * 32,
        "decided_at_us": 1_000 + number,
        "features": [float(number), float("nan")],
        "schema_fingerprint": 7,
        "score": 0.5,
        "decision": ("approve", "review")[number % 3 == 0],
        "entity": f"customer-{number % 4}",
    }
    return LogRecord(decision=DecisionRecord(**{**values, **other})).SerializeToString()  # type: ignore[arg-type]


def outcome(number: int, value: float, revision: int = 0) -> bytes:
    record = OutcomeRecord(
        checkpoint=CHECKPOINT, decision_id=f"payment-{number}", kind="fraud", value=value, revision=revision
    )
    return LogRecord(outcome=record).SerializeToString()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    action = DecisionRecord(
        decision_id="x",
        checkpoint=CHECKPOINT,
        pmf=[0.25, 0.75],
        eligible_mask=b"\x03",
        action_index=1,
        action="challenge",
        propensity=0.75,
        fallback_source="static",
    )
    write_segment(
        directory,
        1,
        1,
        [
            *(decision(number) for number in range(6)),
            outcome(2, 1.0, 3),
            decision(9, checkpoint="another"),
            LogRecord(decision=action).SerializeToString(),
            LogRecord(withdrawn=WithdrawnRecord(sequence=3, checkpoint=CHECKPOINT)).SerializeToString(),
        ],
    )
    return directory


@pytest.mark.parametrize("records", [1, 4, 1_000])
def test_columns_contain_the_values_of_the_records(log: Path, records: int) -> None:
    batches = list(scan_columns(log, CHECKPOINT, records=records))
    own = list(scan(log, checkpoint=CHECKPOINT, kinds={"decision"}))
    ids = [one for batch in batches for one in batch.decisions.id.texts()]
    sequences = np.concatenate([batch.decisions.sequence for batch in batches])
    withdrawn = np.concatenate([batch.withdrawn for batch in batches])
    assert withdrawn.tolist() == [3]
    kept = ~np.isin(sequences, withdrawn)
    assert [one for one, keep in zip(ids, kept, strict=True) if keep] == [e.record.decision_id for e in own]
    assert sequences[kept].tolist() == [entry.sequence for entry in own]
    labels = [batch.labels[code] for batch in batches for code in batch.decisions.label]
    assert labels == ["review", "approve", "approve", "review", "approve", "approve", "challenge"]
    last = batches[-1] if records > 1 else next(b for b in batches if "x" in b.decisions.id.texts())
    row = last.decisions.take(np.array([one == "x" for one in last.decisions.id.texts()]))
    assert row.pmf.values.tolist() == [0.25, 0.75]
    assert row.eligible.values.tobytes() == b"\x03"
    assert (int(row.action[0]), float(row.propensity[0]), bool(row.fallback[0])) == (1, 0.75, True)


def test_an_outcome_has_the_key_of_its_decision(log: Path) -> None:
    batch = next(scan_columns(log, CHECKPOINT))
    place = batch.decisions.id.texts().index("payment-2")
    assert batch.outcomes.key.tolist() == [int(batch.decisions.key[place])]
    assert (batch.kinds, batch.outcomes.value.tolist(), batch.outcomes.revision.tolist()) == (
        ["fraud"],
        [1.0],
        [3],
    )
    assert len(set(batch.decisions.key.tolist())) == len(batch.decisions)


def test_features_have_the_same_bits(log: Path) -> None:
    decisions = next(scan_columns(log, CHECKPOINT)).decisions
    whole = decisions.features.counts == 2
    rows = feature_rows(decisions.take(whole), 2)
    assert rows.dtype == np.float32
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert np.isnan(rows[:, 1]).all()
    assert set(decisions.fingerprint[whole].tolist()) == {7}


def test_erased_entities_are_excluded(log: Path) -> None:
    erase(log, "customer-1")
    ids = next(scan_columns(log, CHECKPOINT)).decisions.id.texts()
    assert ids == ["payment-0", "payment-2", "payment-3", "payment-4", "x"]


def test_a_record_of_another_program_is_refused_with_its_sequence_number(tmp_path: Path) -> None:
    write_segment(tmp_path / "log", 1, 5, [b"\xff\xff\xff"])
    with pytest.raises(LogError, match=r"record 5 is intact but no scorer\.v1\.LogRecord"):
        list(scan_columns(tmp_path / "log", CHECKPOINT))


def test_ragged_rows_are_selected_by_mask_and_by_position() -> None:
    rows = Ragged(np.arange(6), np.array([1, 0, 3, 2]))
    assert rows.take(np.array([3, 0])).values.tolist() == [4, 5, 0]
    assert rows.take(np.array([False, True, True, False])).counts.tolist() == [0, 3]
    assert rows.take(np.zeros(0, np.int64)).values.tolist() == []
