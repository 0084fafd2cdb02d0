"""Tests of metrics over time: records are counted once, and which figures are shown or rejected."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observing import ADMIN, START, World
from overtime import scores, write_reference

from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.gates.evidence import ShadowEvidence, blank, empty
from scorer.release.gates.metrics import measure
from scorer.release.model import Actor, Role
from scorer.release.readout import rows
from scorer.release.store import micros
from scorer.release.timeseries import cells, reading
from scorer.release.timeseries.batch import OutcomeRule
from scorer.release.timeseries.expiry import DAY, HOUR, HOURS_KEPT, MINUTE
from scorer.release.timeseries.ledger import Ledger
from scorer.release.timeseries.windows import MOST_POINTS, WINDOWS, MetricsWindow, window_of
from scorer.stats.quantiles import quantile
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord, TokenClaims, WithdrawnRecord

NOW = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
CHECKPOINT = "fraud.checkout"
RULES = {CHECKPOINT: OutcomeRule({"fraud": ["score"]})}
BUNDLE = b"\x07" * 32


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> World:
    return World(tmp_path, built_bundles["score-1"], built_bundles["score-2"])


def figure(world: World, name: str, **asked: Any) -> Any:
    return world.metrics.named(world.metrics.metrics(ADMIN, world.checkpoint, **asked), name)


def column(found: Any, name: str) -> list[Any]:
    return [row[found.columns.index(name)] for row in found.rows]


# --- counting ---


def test_every_record_is_counted_once_by_lane_and_version(world: World) -> None:
    log = world.logs["live-1"]
    log.append(world.records(40))
    world.readouts.collect()
    world.readouts.collect()
    log.append(world.records(25, first=40))
    world.readouts = world.new_collector()
    world.readouts.collect()
    rate = figure(world, "rate", window="6h")
    assert sum(column(rate, "rows")) == 65 and set(column(rate, "lane")) == {"live"}
    assert set(column(rate, "version")) == {world.bundles["live"].digest}
    observed = figure(world, "rate", window="6h", lane="cr-000001")
    assert sum(column(observed, "rows")) == 65
    assert set(column(observed, "version")) == {world.bundles["own"].digest}
    labels = Counter[str]()
    for label, count in zip(
        *(column(figure(world, "decisions", window="6h"), name) for name in ("decision", "rows")), strict=True
    ):
        labels[label] += count
    decided = [one.decision.decision for one in world.records(40) if one.HasField("decision")]
    decided += [one.decision.decision for one in world.records(25, first=40) if one.HasField("decision")]
    assert labels == Counter(decided)


def test_a_kill_between_rollups_and_cursor_counts_nothing_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.logs["live-1"].append(world.records(50))
    collector = type(world.readouts._collector)
    keeping = collector._keep

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(collector, "_keep", killed)
    with pytest.raises(KeyboardInterrupt):
        world.readouts.collect()
    assert world.metrics.metrics(ADMIN, CHECKPOINT, window="6h").rows == 50
    monkeypatch.setattr(collector, "_keep", keeping)
    world.logs["live-1"].append(world.records(20, first=50))
    world.readouts = world.new_collector()
    world.readouts.collect()
    assert world.metrics.metrics(ADMIN, CHECKPOINT, window="6h").rows == 70


def test_a_later_withdrawal_is_subtracted(world: World) -> None:
    answers = [one for one in world.records(10) if one.HasField("decision")]
    log = world.logs["live-1"]
    log.append(answers)
    world.readouts.collect()
    gone = WithdrawnRecord(sequence=4, checkpoint=CHECKPOINT, decision_id=answers[3].decision.decision_id)
    log.append([LogRecord(withdrawn=gone)])
    world.readouts.collect()
    assert world.metrics.metrics(ADMIN, CHECKPOINT, window="6h").rows == 9


def test_the_records_of_an_erased_entity_are_not_counted(world: World) -> None:
    from scorer.log.erasure import erase

    answers = [one for one in world.records(10) if one.HasField("decision")]
    for at, one in enumerate(answers):
        one.decision.entity = f"card-{at % 2}"
    log = world.logs["live-1"]
    log.append(answers[:1])
    erase(log.path, "card-1")
    log.append(answers[1:])
    world.readouts.collect()
    assert world.metrics.metrics(ADMIN, CHECKPOINT, window="6h").rows == 5


def test_an_erasure_keeps_earlier_counts(world: World) -> None:
    from scorer.log.erasure import erase

    answers = [one for one in world.records(10) if one.HasField("decision")]
    for at, one in enumerate(answers):
        one.decision.entity = f"card-{at % 2}"
    log = world.logs["live-1"]
    log.append(answers[:6])
    world.readouts.collect()
    erase(log.path, "card-1")
    world.readouts.collect()
    assert world.metrics.metrics(ADMIN, CHECKPOINT, window="6h").rows == 6, "an erasure subtracts nothing"
    log.append(answers[6:])
    world.readouts = world.new_collector()
    world.readouts.collect()
    assert world.metrics.metrics(ADMIN, CHECKPOINT, window="6h").rows == 8, (
        "later records of the entity are not counted"
    )


def test_the_rollups_contain_no_identities(world: World) -> None:
    answers = [one for one in world.records(10) if one.HasField("decision")]
    for one in answers:
        one.decision.entity = "card-of-ada"
    world.logs["live-1"].append([*answers, LogRecord(outcome=reported(1, micros(START)))])
    world.readouts.collect()
    file = world.metrics.ledger.file
    with file.reading() as connection:
        assert connection is not None
        columns = {
            (table, column[1])
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for column in connection.execute(f"PRAGMA table_info({table})")
            if column[2] not in ("INTEGER", "BLOB")
        }
    # Text is names of logs, servers, lanes, bundles, labels and rules. A decision is the hash of its id.
    assert columns == {
        ("logs", "name"),
        *(("series", name) for name in ("checkpoint", "server", "lane", "role", "bundle", "kind")),
        *(("labels", name) for name in ("checkpoint", "name")),
        *(("bins", name) for name in ("bundle", "edges", "counts")),
        ("reports", "kinds"),
        *(("rule_names", name) for name in ("checkpoint", "name")),
        ("rule_since", "checkpoint"),
    }
    world.metrics.close()
    stored = b"".join(one.read_bytes() for one in file.path.parent.glob(f"{file.path.name}*"))
    assert b"card-of-ada" not in stored
    assert not any(one.decision.decision_id.encode() in stored for one in answers)


def test_a_damaged_file_is_recreated_and_counting_continues(world: World) -> None:
    world.logs["live-1"].append(world.records(10))
    world.readouts.collect()
    world.metrics.close()
    world.metrics.ledger.file.path.write_bytes(b"not a database" * 1000)
    world.logs["live-1"].append(world.records(7, first=10))
    world.readouts = world.new_collector()
    world.readouts.collect()
    assert world.metrics.metrics(ADMIN, CHECKPOINT, window="6h").rows == 7


# --- outcomes ---


def decided(number: int, at: int, *, score: float = 0.1, lane: str = "live") -> DecisionRecord:
    return DecisionRecord(
        decision_id=f"p{number}", checkpoint=CHECKPOINT, lane=lane, bundle=BUNDLE, decided_at_us=at,
        decision="approve", score=score, exec_us=400, data_load_us=40,
    )  # fmt: skip


def reported(number: int, at: int, *, token: bool = False, value: float = 1.0) -> OutcomeRecord:
    own = OutcomeRecord(
        checkpoint=CHECKPOINT, decision_id=f"p{number}", kind="fraud", value=value, proof=3,
        received_at_us=at + 10 * MINUTE,
    )  # fmt: skip
    if token:
        own.token.CopyFrom(TokenClaims(decided_at_ms=at // 1000, bundle=BUNDLE[:8]))
    return own


def ledger_at(folder: Path, **more: Any) -> Ledger:
    local = write_reference(folder / "bundle")
    return Ledger(folder / "m.sqlite", lambda _: local, now=lambda: micros(NOW), rules=lambda: RULES, **more)


def take(ledger: Ledger, first: int, records: list[DecisionRecord | OutcomeRecord]) -> int:
    batch = ledger.batch("live-1")
    for sequence, record in enumerate(records, first):
        if isinstance(record, DecisionRecord):
            batch.decision(record, rows.answer_row(sequence, record))
        else:
            batch.outcome(record, rows.outcome_row(sequence, record))
    ledger.apply("log", first, first + len(records) - 1, batch)
    return first + len(records)


def totals(ledger: Ledger, step: int = HOUR) -> np.ndarray:
    with ledger.file.reading() as connection:
        assert connection is not None
        rows = connection.execute("SELECT codes, counts FROM cells WHERE step = ?", (step,)).fetchall()
    return np.sum([cells.decode(*row) for row in rows], axis=0) if rows else np.zeros(cells.WIDTH)


def test_an_expired_decision_gets_its_outcome_by_its_token(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path, most=10)
    begin = micros(NOW) - HOUR
    following = take(ledger, 1, [decided(number, begin + number) for number in range(50)])
    following = take(ledger, following, [decided(50, begin + 50)])
    with ledger.file.reading() as connection:
        assert connection is not None
        assert connection.execute("SELECT count(*) FROM decisions").fetchone()[0] <= 10
    take(ledger, following, [reported(1, begin, token=True), reported(2, begin), reported(50, begin)])
    result = totals(ledger)
    assert result[cells.ROWS] == 51
    assert (result[cells.REPORTED], result[cells.POSITIVE], result[cells.UNPLACED]) == (2, 2, 1)


def test_an_outcome_before_its_decision_is_counted_when_the_decision_is_read(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    begin = micros(NOW) - HOUR
    following = take(ledger, 1, [reported(1, begin)])
    assert totals(ledger)[cells.UNPLACED] == 1
    take(ledger, following, [decided(1, begin)])
    result = totals(ledger)
    assert (result[cells.UNPLACED], result[cells.REPORTED], result[cells.POSITIVE]) == (0, 1, 1)


def test_the_rate_counts_matured_decisions_and_later_points_are_marked(world: World) -> None:
    own = world.settings.checkpoints[CHECKPOINT]
    world.settings.checkpoints[CHECKPOINT] = own.model_copy(update={"matured_hours": 2.0})
    world.now = NOW
    world.readouts = world.new_collector()
    early, late = micros(NOW) - 4 * HOUR, micros(NOW) - HOUR
    records: list[DecisionRecord | OutcomeRecord] = [decided(number, early) for number in range(10)]
    records += [decided(number, late) for number in range(10, 14)]
    records += [reported(0, early), reported(1, early, value=0.0), reported(10, late)]
    take(world.metrics.ledger, 1, records)
    result = figure(world, "outcomes", window="6h")
    assert column(result, "state") == ["complete", "incomplete"]
    assert column(result, "matured_share") == [1.0, 0.0]
    assert column(result, "rate_of_matured") == [0.1, None]
    assert column(result, "rate_so_far") == [0.1, 0.25]
    assert column(result, "reported") == [2, 1]


# --- definitions ---


def test_quantiles_differ_from_those_of_the_rows_by_at_most_the_documented_error() -> None:
    random = np.random.default_rng(3)
    for spread in (0.05, 0.6, 2.5):
        us = np.floor(np.exp(random.normal(6, spread, 5_000))).clip(0, 2**32 - 1)
        counts = np.bincount(cells.time_bins(us), minlength=cells.TIME_BINS)
        for q in (0.01, 0.5, 0.9, 0.99, 1.0):
            exact = quantile(us, q)
            assert abs(cells.quantile(counts, q) - exact) <= cells.RELATIVE_ERROR * exact * (1 + 1e-9)
    edges = cells.time_bins([0, 1, 2**32 - 1])
    assert edges[0] == 0 and edges[1] == 1 and edges[2] < cells.TIME_BINS
    assert math.isnan(cells.quantile(np.zeros(cells.TIME_BINS, int), 0.5))


def test_drift_equals_the_psi_of_the_gate(world: World) -> None:
    from scorer.bundle.models import ReferenceFile

    digest = world.bundles["live"].digest
    text = (world.local.local(digest) / "reference.json").read_bytes()
    reference = ReferenceFile.model_validate_json(text).validation
    world.logs["live-1"].append([one for one in world.records(300) if one.HasField("decision")])
    world.readouts.collect()
    drift = figure(world, "drift", window="30d")
    shown = [one.decision.score for one in world.records(300) if one.HasField("decision")]
    observed = replace(empty(), **(blank(300) | {"score": np.array(shown)}))
    evidence = ShadowEvidence(kind="score", sla_us=1, shadow=observed, control=empty(), reference=reference)
    assert sum(column(drift, "scores")) == 300
    assert column(drift, "psi") == [pytest.approx(measure("score_psi", evidence, "reference", False).value)]


def test_old_cells_expire(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    begin = micros(NOW)
    ages = (0, 3 * 24 * HOUR, HOURS_KEPT + 2 * HOUR, -3 * 24 * HOUR)
    take(ledger, 1, [decided(number, begin - age) for number, age in enumerate(ages)])
    assert totals(ledger)[cells.ROWS] == 2, "cells of the last months are kept, and not those of the future"
    assert totals(ledger, MINUTE)[cells.ROWS] == 1, "the cells of the last two days"
    later = Ledger(
        ledger.file.path, lambda _: tmp_path, now=lambda: begin + HOURS_KEPT - HOUR, rules=lambda: RULES
    )
    ledger.close()
    take(later, 5, [decided(9, begin + HOURS_KEPT - HOUR)])
    assert totals(later)[cells.ROWS] == 2 and totals(later, MINUTE)[cells.ROWS] == 1


# --- days ---


def filled(folder: Path) -> Ledger:
    """Return rollups of eight days with outcomes, a duplicate and a withdrawal."""
    ledger, random = ledger_at(folder), np.random.default_rng(7)
    begin, following = micros(NOW) - 8 * DAY, 1
    for first in range(0, 400, 80):
        at = begin + random.integers(0, 8 * DAY, 80)
        decisions: list[DecisionRecord | OutcomeRecord] = [
            decided(first + number, int(when), lane=("live", "canary")[number % 2])
            for number, when in enumerate(at)
        ]
        decisions += [reported(first + number, int(at[number])) for number in range(0, 80, 4)]
        following = take(ledger, following, [*decisions, decided(first, begin)])
    batch = ledger.batch("live-1")
    batch.withdrawn(WithdrawnRecord(sequence=3, checkpoint=CHECKPOINT, decision_id="p2"))
    ledger.apply("log", following, following, batch)
    return ledger


def counts_of(ledger: Ledger, window: MetricsWindow, matured: int) -> list[Any]:
    with ledger.file.reading() as connection:
        assert connection is not None
        every = reading.series_of(connection, CHECKPOINT)
        result = reading.read(connection, CHECKPOINT, every, window, reading.Filters(), {"score": matured})
    lines = [(line.lane, line.counts.tolist()) for line in result.lines]
    return [lines, [{**asdict(one), "bundle": ""} for one in result.outcomes], result.unplaced]


@pytest.mark.parametrize("end", [0, -DAY // 3, -micros(NOW) % DAY - DAY])
@pytest.mark.parametrize("matured", [0, DAY, 3 * DAY + 5 * HOUR, 30 * DAY])
def test_days_give_the_same_counts_as_their_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int, matured: int
) -> None:
    ledger, now = filled(tmp_path), micros(NOW)
    start = (now - 9 * DAY) // DAY * DAY
    window = MetricsWindow(start, now + end, DAY, HOUR)
    by_days = counts_of(ledger, window, now - matured)
    assert sum(map(sum, (row[:1] for _, counts in by_days[0] for row in counts))) > 300
    monkeypatch.setattr(reading, "has_days", lambda _: False)
    np.testing.assert_equal(by_days, counts_of(ledger, window, now - matured))


def test_a_file_without_days_is_read_by_hours_until_days_are_added(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    now, query = micros(NOW), "SELECT * FROM cells ORDER BY step, series, at"
    with ledger.file.writing() as connection:
        expected = connection.execute(query).fetchall()
        connection.execute("DELETE FROM cells WHERE step = ?", (DAY,))
        connection.execute("PRAGMA user_version = 1")
    ledger.close()
    window = MetricsWindow((now - 9 * DAY) // DAY * DAY, now, DAY, HOUR)
    before = counts_of(ledger, window, now - DAY)
    with ledger.file.writing() as connection:
        assert connection.execute(query).fetchall() == expected
    np.testing.assert_equal(counts_of(ledger, window, now - DAY), before)


def test_a_count_above_the_limit_of_a_cell_stays_at_the_limit() -> None:
    blobs = cells.encode(np.array([cells.ROWS, cells.POSITIVE]), np.array([cells.MOST + 5, 7]))
    dense = cells.decode(*blobs)
    assert (dense[cells.ROWS], dense[cells.POSITIVE]) == (cells.MOST, 7)


# --- queries ---


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_has_a_bounded_number_of_equal_steps(name: str) -> None:
    window = window_of(name, None, None, NOW)
    assert window.points <= MOST_POINTS and window.start % window.step == 0
    assert window.end == micros(NOW) and window.end - window.start >= WINDOWS[name] / timedelta(
        microseconds=1
    )
    assert window.cell == (MINUTE if window.step < HOUR else HOUR)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"window": "2h"}, 'there is no window "2h"'),
        ({"start": NOW - timedelta(hours=1), "end": NOW - timedelta(hours=2)}, "give a later end"),
        ({"start": NOW + timedelta(hours=1)}, "in the future"),
        ({"start": NOW - timedelta(days=400)}, "kept for 190 days"),
        ({"end": NOW}, "give a start too"),
        ({"start": datetime(1, 1, 1, tzinfo=UTC), "end": datetime(1, 1, 2, tzinfo=UTC)}, "shorter window"),
        ({"server": "elsewhere"}, 'nothing was counted of server "elsewhere"'),
        ({"lane": "x"}, 'nothing was counted of lane "x"'),
        ({"version": "ffff"}, "is of 0 bundles"),
    ],
)
def test_invalid_queries_are_refused_by_name(world: World, query: dict[str, Any], message: str) -> None:
    world.now = NOW
    with pytest.raises(InvalidError, match=message):
        world.metrics.metrics(ADMIN, CHECKPOINT, **query)


def test_only_members_of_a_project_of_the_checkpoint_see_its_metrics(world: World) -> None:
    world.access.create_project(ADMIN, "loyalty", "Loyalty", checkpoints=("other.one",))
    member, stranger = Actor("mia", {"payments": Role.VIEWER}), Actor("eve", {"loyalty": Role.OWNER})
    assert world.metrics.metrics(member, CHECKPOINT).rows == 0
    with pytest.raises(NotFoundError) as hidden:
        world.metrics.metrics(stranger, CHECKPOINT)
    with pytest.raises(NotFoundError) as unknown:
        world.metrics.metrics(stranger, "no.such")
    assert str(hidden.value).replace(CHECKPOINT, "no.such") == str(unknown.value), (
        "the error does not reveal that the checkpoint exists"
    )


def test_a_checkpoint_without_records_has_empty_figures(world: World) -> None:
    metrics = world.metrics.metrics(ADMIN, CHECKPOINT)
    assert metrics.rows == 0 and metrics.since is None
    assert [one.name for one in metrics.figures] == [
        "rate", "decisions", "outcomes", "execution", "data-load", "fallbacks", "drift",
    ]  # fmt: skip
    assert all(not one.rows for one in metrics.figures)


def test_versions_above_the_number_that_is_drawn_are_omitted_with_a_note(world: World) -> None:
    world.now = START + timedelta(hours=1)
    at = micros(START)
    records: list[DecisionRecord | OutcomeRecord] = []
    for version in range(12):
        for number in range(version + 1):
            one = decided(100 * version + number, at)
            one.bundle = bytes([version + 1]) * 32
            records.append(one)
    take(world.metrics.ledger, 1, records)
    metrics = world.metrics.metrics(ADMIN, CHECKPOINT, window="6h")
    rate = world.metrics.named(metrics, "rate")
    assert sorted(column(rate, "rows")) == list(range(5, 13))
    assert any(note.startswith("4 versions") for note in metrics.notes)
    alone = figure(world, "rate", window="6h", version="sha256:" + "01" * 32)
    assert column(alone, "rows") == [1]


# --- a real kill ---

CHILD = """
import os, signal, sys
sys.path[:0] = {paths!r}
import test_metrics_over_time as t
from pathlib import Path
ledger = t.ledger_at(Path({folder!r}))
with ledger.file.writing() as connection:
    pass
left = {statements}
def traced(_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
ledger.file._writer.set_trace_callback(traced)
t.take_all(ledger)
"""


def take_all(ledger: Ledger) -> None:
    """Apply three batches. A restarted collector repeats them from the last one that it recorded."""
    begin = micros(NOW) - HOUR
    random = np.random.default_rng(4)
    drawn = scores(60, random)
    for first in (1, 21, 41):
        decisions: list[DecisionRecord | OutcomeRecord] = [
            decided(number, begin + number * 60_000_000, score=float(drawn[number]))
            for number in range(first - 1, first + 14)
        ]
        decisions += [reported(number, begin + number * 60_000_000) for number in range(first - 1, first + 4)]
        take(ledger, first, decisions)


def test_sigkill_at_any_statement_counts_every_record_once(tmp_path: Path) -> None:
    whole = ledger_at(tmp_path / "whole")
    take_all(whole)
    expected = totals(whole), totals(whole, MINUTE)
    np.testing.assert_array_equal(totals(whole, DAY), expected[0])
    whole.close()
    assert expected[0][cells.ROWS] == 45 and expected[0][cells.REPORTED] == 15
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "support"), str(here.parents[1])]
    for statements in (1, 4, 30, 120, 260, 400):
        folder = tmp_path / str(statements)
        code = CHILD.format(paths=paths, folder=str(folder), statements=statements)
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
        )
        assert done.returncode in (-signal.SIGKILL, 0), done.stderr
        assert done.returncode == -signal.SIGKILL or statements > 200, "the process was killed"
        ledger = ledger_at(folder)
        take_all(ledger)
        np.testing.assert_array_equal(totals(ledger), expected[0])
        np.testing.assert_array_equal(totals(ledger, DAY), expected[0])
        np.testing.assert_array_equal(totals(ledger, MINUTE), expected[1])
        ledger.close()
