"""Tests of hits over time and precision of rules, from the records of decision logs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bundles import tiny_score_bundle
from platforms import SETTINGS, World

from scorer.bundle.rules import BundleRules
from scorer.ids import hex_of
from scorer.release.errors import NotFoundError
from scorer.release.readout import rows
from scorer.release.store import micros
from scorer.release.timeseries.firings import counted_since
from scorer.v1.log_pb2 import DecisionRecord, OutcomeRecord, WithdrawnRecord

POINT = "fraud.checkout"
RULES = """name = "checkout"
decisions = ["decline", "review"]
[[rules]]
id = "night"
when = "hour < 5.0"
floor = 0.5
[[rules]]
id = "far"
when = "distance > 1000.0"
decision = "review"
[[tables]]
id = "limits"
inputs = ["amount"]
outputs = ["decision"]
rows = [["> 5000.0", "decline"]]
"""
MATURED = SETTINGS.replace("minutes = 10.0", "minutes = 10.0\nmatured_hours = 48.0", 1)
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[World]:
    tiny_score_bundle(tmp_path / "ruled", variant=1, rules=BundleRules(RULES))
    world = World(
        tmp_path, {**built_bundles, "score-1": tmp_path / "ruled"}, now=lambda: NOW, settings=MATURED
    )
    yield world
    world.close()


def decision(world: World, number: int, at: datetime, *fired: str, name: str = "") -> tuple[int, Any]:
    record = DecisionRecord(
        decision_id=name or f"payment-{number}",
        checkpoint=POINT,
        lane="live",
        bundle=bytes.fromhex(hex_of(world.live)),
        decided_at_us=micros(at),
        score=0.5,
        decision="review",
    )
    for one in fired:
        record.rules.fired.add(id=one)
    return number, record


def outcome(number: int, name: str, value: float, revision: int = 0) -> tuple[int, Any]:
    record = OutcomeRecord(decision_id=name, checkpoint=POINT, kind="fraud", value=value, revision=revision)
    record.received_at_us = micros(NOW)
    return number, record


def apply(world: World, entries: Sequence[tuple[int, Any]], log: str = "log-1") -> None:
    ledger = world.service.metrics.ledger
    batch = ledger.batch("live-1")
    for sequence, record in entries:
        if isinstance(record, DecisionRecord):
            batch.decision(record, rows.answer_row(sequence, record))
        elif isinstance(record, OutcomeRecord):
            batch.outcome(record, rows.outcome_row(sequence, record))
        else:
            batch.withdrawn(record)
    ledger.apply(log, entries[0][0], entries[-1][0], batch)


def found(world: World, days: int = 30, user: str = "viewer") -> dict[str, Any]:
    answer = world.service.rule_histories.over_time(world.actor(user), POINT, days=days)
    return {one.id: one for one in answer.rules}


def test_rules_without_records_are_those_of_the_live_bundle(world: World) -> None:
    answer = world.service.rule_histories.over_time(world.actor("viewer"), POINT)
    assert answer.kind == "score" and answer.since is None and answer.bundle is not None
    assert [one.id for one in answer.rules] == ["night", "far", "limits.row1"]
    assert [one.switchable for one in answer.rules] == [True, True, False]
    assert all(one.never and one.hits == 0 and one.precision is None for one in answer.rules)
    assert (answer.start, len(answer.rules[0].daily)) == (datetime(2026, 10, 22, tzinfo=UTC), 30)
    with pytest.raises(NotFoundError):
        world.service.rule_histories.over_time(world.actor("viewer"), "unknown")


def test_hits_are_counted_by_day_and_each_decision_once(world: World) -> None:
    before = NOW - timedelta(days=2)
    first = [
        decision(world, 1, before, "night", "gone"),
        decision(world, 2, NOW - timedelta(hours=1), "night"),
        decision(world, 3, NOW - timedelta(hours=1)),
        decision(world, 4, NOW - timedelta(days=60), "night"),
    ]
    apply(world, first)
    # A batch that is read again after a kill, and a repeated request at another server, count nothing.
    apply(world, first)
    apply(world, [decision(world, 1, NOW, "night", name="payment-2")], log="log-2")
    rules = found(world)
    assert (rules["night"].hits, list(rules["night"].daily[-3:])) == (2, [1, 0, 1])
    assert rules["night"].last_at is not None and not rules["night"].never
    assert rules["far"].never
    # A rule that the live bundle does not have is listed with its decisions.
    assert (rules["gone"].hits, rules["gone"].effect, rules["gone"].switchable) == (1, "", False)
    assert found(world, days=1)["night"].hits == 1
    with world.service.metrics.ledger.file.reading() as connection:
        assert connection is not None
        assert counted_since(connection, POINT) == micros(NOW - timedelta(days=60))


def test_a_withdrawn_decision_does_not_count(world: World) -> None:
    apply(world, [decision(world, 1, NOW - timedelta(hours=1), "night")])
    assert found(world)["night"].hits == 1
    gone = WithdrawnRecord(decision_id="payment-1", checkpoint=POINT, sequence=1)
    apply(world, [(2, gone)])
    assert found(world)["night"].hits == 0


def test_precision_is_of_matured_decisions_with_a_known_outcome(world: World) -> None:
    old = NOW - timedelta(days=25)
    young = NOW - timedelta(hours=47)
    decisions = [decision(world, at, old, "night") for at in range(1, 6)]
    decisions.append(decision(world, 6, young, "night"))
    apply(world, decisions)
    reports = [
        outcome(7, "payment-1", 1.0),
        outcome(8, "payment-2", 0.0),
        outcome(9, "payment-3", 0.0),
        outcome(10, "payment-3", 1.0, revision=1),
        outcome(11, "payment-6", 1.0),
    ]
    apply(world, reports)
    night = found(world)["night"]
    assert (night.hits, night.known, night.positive) == (6, 3, 2)
    assert night.precision == pytest.approx(2 / 3)
    assert night.low is not None and night.high is not None
    assert 0.1 < night.low < 2 / 3 < night.high < 0.95


def test_a_file_of_an_older_program_gets_the_tables(world: World) -> None:
    file = world.service.metrics.ledger.file
    apply(world, [decision(world, 1, NOW, "night")])
    file.close()
    with sqlite3.connect(file.path) as connection:
        for table in ("firings", "rule_names", "rule_since"):
            connection.execute(f"DROP TABLE {table}")
    connection.close()
    assert found(world)["night"].hits == 0
    apply(world, [decision(world, 2, NOW, "night")])
    assert found(world)["night"].hits == 1
