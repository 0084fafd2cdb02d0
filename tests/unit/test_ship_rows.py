"""Tests of the conversion of records to rows: every field of every kind, against the generated classes."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logs import write_segment
from shipping import NOON_US, SERVER, action, decision, every_kind, mixed, observation, outcome

from scorer.errors import ShipError
from scorer.ids import eligible_actions
from scorer.log.shipped.position import ShipPosition
from scorer.log.shipped.schema import SCHEMAS
from scorer.log.source.table_entries import ENTRY_COLUMNS, entries
from scorer.log.tables import ExportLayout, own_values
from scorer.ship.batch import Batch, SegmentRun
from scorer.ship.decoding import kind_of, record_class
from scorer.ship.rows import tables_of
from scorer.ship.source import LogSource
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, ObservationRecord, SealedFeatures
from scorer.v1.scoring_pb2 import AppliedRules


def batch_of(payloads: list[bytes]) -> Batch:
    sequences = list(range(1, len(payloads) + 1))
    runs = [SegmentRun(0, 1, "0000000001-aa"), SegmentRun(len(payloads) // 2, 2, "0000000002-bb")]
    end = ShipPosition(1, 2, 2, len(payloads) + 1)
    return Batch(SERVER, "ab" * 16, sequences, payloads, runs, None, end, [], 0, is_full=False)


def rows_of(payloads: list[bytes]) -> dict[str, list[dict[str, Any]]]:
    return {name: table.to_pylist() for name, table in tables_of(batch_of(payloads)).items()}


def test_every_kind_goes_to_one_table() -> None:
    rows = rows_of(every_kind())
    assert {name: [row["sequence"] for row in found] for name, found in rows.items()} == {
        "decisions": [1, 2],
        "outcomes": [3],
        "observations": [4],
        "events": [5, 6, 7, 8, 9],
    }
    events = rows["events"]
    kinds = ["withdrawn", "delivery", "lane_table", "recovery", "unknown"]
    assert [row["kind"] for row in events] == kinds
    assert [row["record"] for row in events] == every_kind()[4:]
    assert events[0]["withdrawn_sequence"] == 1 and events[0]["at"] is None
    assert events[1]["delivered"] is False and events[1]["decision_id"] == "d1"
    assert [row["checkpoint"] for row in events] == ["fraud.checkout", "fraud.checkout", None, None, None]
    assert all(row["hour"] == "2026-11-01T12" for row in events[1:4])


def test_every_row_has_its_origin() -> None:
    for found in rows_of(every_kind()).values():
        for row in found:
            assert (row["server"], row["log"]) == (SERVER, "ab" * 16)
            assert row["segment"] == ("0000000001-aa" if row["sequence"] <= 4 else "0000000002-bb")


def test_the_tables_have_their_schemas_also_without_rows() -> None:
    for payloads in ([], [decision(1)], [outcome(1)], every_kind()):
        for name, table in tables_of(batch_of(payloads)).items():
            assert table.schema.equals(SCHEMAS[name]), name
            table.validate(full=True)


def test_a_score() -> None:
    (row,) = rows_of([decision(1, withheld=[1], fallback_source="default", fallback_reason="deadline")])[
        "decisions"
    ]
    assert row["kind"] == "score" and (row["margin"], row["score"], row["decision"]) == (
        -1.5,
        0.25,
        "approve",
    )
    assert row["action"] is row["pmf"] is row["eligible"] is row["propensity"] is row["sealed"] is None
    assert row["bundle"] == "sha256:" + bytes(range(32)).hex()
    assert row["schema_fingerprint"] == "fedcba9876543210"
    assert row["decided_at"] == datetime(2026, 11, 1, 12, 0, 1, tzinfo=UTC)
    assert row["hour"] == "2026-11-01T12"
    assert row["features"][0] == 0.125 and math.isnan(row["features"][1])
    assert (row["withheld"], row["fallback_source"], row["fallback_reason"]) == ([1], "default", "deadline")


def test_an_action() -> None:
    (row,) = rows_of([action(2)])["decisions"]
    assert row["kind"] == "action" and row["score"] is row["margin"] is row["decision"] is None
    assert (row["pmf"], row["eligible"]) == ([0.75, 0.0, 0.25], [True, False, True])
    assert (row["action_index"], row["action"], row["propensity"], row["expected_reward"]) == (
        2,
        "3ds",
        0.25,
        0.5,
    )
    assert row["reasons"] == ["velocity", "amount"]
    assert row["fallback_source"] is row["fallback_reason"] is None


def test_rules_and_computed_features() -> None:
    (row,) = rows_of([action(3)])["decisions"]
    assert row["rules"] == [{"id": "limit", "reason": "R07"}, {"id": "rule-1", "reason": None}]
    assert (row["ruled_score"], row["queue"], row["requested"]) == (None, "level_2", [False, True, True])
    assert AppliedRules.FromString(row["applied_rules"]).lists[0].version == 4
    assert row["faulted_functions"] == ["velocity"] and row["features_defaulted"] == "late"
    assert (row["stated_features"], row["linked_checkpoint"]) == ([1], "action.authorise")
    assert row["features_at"] == datetime(2026, 11, 1, 12, tzinfo=UTC)
    (score,) = rows_of([decision(3)])["decisions"]
    assert (score["ruled_score"], score["requested"]) == (0.6, None)
    (without,) = rows_of([action(2)])["decisions"]
    for name in ("rules", "ruled_score", "queue", "applied_rules", "requested", "features_at"):
        assert without[name] is None, name
    assert without["faulted_functions"] == without["stated_features"] == []


def test_what_the_log_encrypts_stays_encrypted() -> None:
    (row,) = rows_of([action(2)])["decisions"]
    sealed = SealedFeatures.FromString(row["sealed"])
    assert (list(sealed.positions), sealed.ciphertext) == ([1], b"secret")
    assert row["withheld"] == [1] and math.isnan(row["features"][1])


def test_an_outcome() -> None:
    (row,) = rows_of([outcome(1)])["outcomes"]
    assert (row["decision_id"], row["kind"], row["value"], row["revision"]) == ("d1", "fraud", 1.0, 0)
    assert row["proof"] == "decision token" and row["token"]
    assert row["received_at"] == datetime(2026, 11, 1, 12, 0, 1, tzinfo=UTC)
    assert row["occurred_at"] == datetime(2026, 11, 1, 12, tzinfo=UTC)
    assert (row["source"], row["source_id"]) == ("merchant", "feed-1")
    (unknown,) = rows_of([outcome(1, occurred_at_ms=0, token=None, source=None)])["outcomes"]
    assert unknown["occurred_at"] is None and unknown["token"] is None
    assert (unknown["source"], unknown["source_id"]) == ("unspecified", None)


def test_an_observation() -> None:
    (row,) = rows_of([observation(1)])["observations"]
    assert (row["lane"], row["live_lane"], row["live_decision"], row["live_score"]) == (
        "shadow", "live", "review", 0.3,
    )  # fmt: skip
    assert row["live_action"] is row["live_propensity"] is row["error"] is None
    assert (row["absent_features"], row["lag_us"]) == ([1], 40)
    (failed,) = rows_of([observation(1, error="panic")])["observations"]
    assert failed["error"] == "panic" and failed["score"] is failed["decision"] is None
    (chosen,) = rows_of([observation(1, live_action="3ds", error="panic")])["observations"]
    assert chosen["kind"] == "action" and chosen["live_action"] == "3ds" and chosen["live_score"] is None


def test_the_columns_are_those_of_an_export() -> None:
    """The values of shared columns are equal to those of the Parquet export, for random decisions."""
    chance = random.Random(14)
    records = [_random_decision(chance, number) for number in range(200)]
    rows = rows_of([LogRecord(decision=one).SerializeToString() for one in records])["decisions"]
    layout = ExportLayout()
    for one in records:
        layout.add(one, None)
    exported = own_values(list(enumerate(records, 1)), layout)
    for name in SCHEMAS["decisions"].names:
        if name not in exported or name in {"schema_fingerprint", "decided_at", "features"}:
            continue
        wanted = exported[name]
        wanted = wanted.to_pylist() if isinstance(wanted, pa.Array) else wanted
        assert [row[name] for row in rows] == wanted, name
    for row, one in zip(rows, records, strict=True):
        assert row["features"] == list(one.features)
        assert row["decided_at"] == datetime.fromtimestamp(one.decided_at_us / 1e6, UTC)


def test_every_field_of_a_record_is_in_the_tables() -> None:
    """A field that a later version of the log adds needs a column, and a value here."""
    fallback = {"fallback_source": "static", "fallback_reason": "late", "data_load_us": 3}
    chosen = {"live_action": "3ds", "live_expected_reward": 0.5, "live_propensity": 0.25, "error": "panic"}
    failed = {**chosen, "live_margin": 0.0, "live_score": 0.0, "live_decision": ""}
    choice = LogRecord.FromString(action(3)).decision
    live = {"live_fallback_reason": "late", "live_data_load_us": 3}
    samples = {
        "decisions": [decision(3, **fallback), action(3)],
        "outcomes": [outcome(3, revision=2)],
        "observations": [observation(3, **live), observation(6, decision=choice, **failed)],
    }
    for name, payloads in samples.items():
        records = [LogRecord.FromString(one) for one in payloads]
        own = [getattr(record, str(record.WhichOneof("record"))) for record in records]
        fields = {field.name for record in own for field, _ in record.ListFields()}
        assert fields == set(own[0].DESCRIPTOR.fields_by_name)
        found = entries(name, tables_of(batch_of(payloads))[name].select(ENTRY_COLUMNS[name]))
        for entry, record in zip(found, own, strict=True):
            if name == "observations" and record.error:
                for result in ("action_index", "action", "propensity", "expected_reward"):
                    record.decision.ClearField(result)  # A failed observation has no result.
            assert str(entry.record) == str(record)


def _random_decision(chance: random.Random, number: int) -> DecisionRecord:
    record = LogRecord.FromString(chance.choice([action, decision])(number)).decision
    record.features[:] = [chance.randrange(-4, 4) / 4 for _ in range(chance.randrange(6))]
    if record.pmf:
        record.pmf[:] = [chance.random() for _ in range(chance.randrange(1, 20))]
        record.eligible_mask = chance.choice([b"", b"\x01", b"\xff\x03", b"\x00\x00\x08"])
        assert len(eligible_actions(record.eligible_mask, len(record.pmf))) == len(record.pmf)
    record.decided_at_us = NOON_US + chance.randrange(10**11)
    record.lane = chance.choice(["live", "candidate"])
    for at in range(chance.randrange(3)):
        # A sensitive feature has no contribution.
        contribution, direction = chance.choice([0.0, 0.25, -1.5]), chance.randrange(1, 3)
        record.feature_reasons.add(
            code=f"R{at}", feature=f"feature-{at}", contribution=contribution, direction=direction
        )
    return record


def test_the_record_class_has_every_field_of_the_generated_one() -> None:
    """Except for the packed floats, which are bytes with the same content."""
    for payload in (mixed(number) for number in range(1, 60)):
        own, generated = record_class().FromString(payload), LogRecord.FromString(payload)
        kind = generated.WhichOneof("record")
        assert kind_of(payload) == kind
        assert own.SerializeToString() == payload or kind in {"decision", "observation"}
        assert generated == LogRecord.FromString(own.SerializeToString())
        for message in (DecisionRecord, ObservationRecord):
            name = message.DESCRIPTOR.name
            fields = record_class().DESCRIPTOR.file.message_types_by_name[name].fields_by_name
            assert list(fields) == list(message.DESCRIPTOR.fields_by_name)


def test_hours_follow_the_clock_of_each_record() -> None:
    """Also across a day's end and for the clock of a server that is wrong."""
    times = [0, 3_599_999_999, 3_600_000_000, NOON_US + 12 * 3_600_000_000]
    rows = rows_of([decision(0, decided_at_us=at) for at in times])["decisions"]
    assert [row["hour"] for row in rows] == [
        "1970-01-01T00",
        "1970-01-01T00",
        "1970-01-01T01",
        "2026-11-02T00",
    ]


def test_a_record_of_another_program_is_refused(tmp_path: Path) -> None:
    write_segment(tmp_path / "log", 1, 1, [decision(1), b"\x0a\xff\xff"], sealed=False)
    batch = LogSource(tmp_path / "log", SERVER, max_records=9, max_bytes=999).read(None)
    assert batch is not None
    with pytest.raises(ShipError, match="record 2 is intact but no scorer"):
        tables_of(batch)
