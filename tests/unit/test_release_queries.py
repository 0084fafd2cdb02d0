"""Tests of the cost of pages, streams and reports: queries, calls to servers, figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from changing import CHECKPOINT, World
from sqlalchemy import event

from scorer.log.proof import UNPROVEN
from scorer.release.errors import NotFoundError
from scorer.release.fleet import Statuses
from scorer.release.model import ChangeState
from scorer.release.readout import build, canary, load, parts


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/platform.db")
    yield world
    world.store.close()


@contextmanager
def counted(world: World) -> Iterator[list[str]]:
    """Count the queries that a block sends to the database."""
    results: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            results.append(statement)

    event.listen(world.store._engine, "before_cursor_execute", note)
    try:
        yield results
    finally:
        event.remove(world.store._engine, "before_cursor_execute", note)


def test_a_stream_of_events_reads_only_the_state_and_the_events(world: World) -> None:
    change = world.test("good-1")
    world.until(change.id, ChangeState.DONE)
    state, first = world.changes.events(world.ada, change.id, limit=3)
    assert (state, len(first)) == (ChangeState.DONE, 3)
    with counted(world) as statements:
        _, rest = world.changes.events(world.ada, change.id, after=first[-1].id)
    assert [each.id for each in (*first, *rest)] == [
        each.id for each in world.changes.get(world.ada, change.id).events
    ]
    assert len(statements) == 2
    assert not any(name in text for text in statements for name in ("recorded_tables", "gate_results"))
    with pytest.raises(NotFoundError):
        world.changes.events(world.stranger, change.id)


def test_the_changes_of_a_bundle_are_read_by_one_query(world: World) -> None:
    names = [world.test(f"good-{number}").id for number in range(1, 9)]
    with counted(world) as statements:
        details = world.changes.several(world.ada, names)
    assert [each.id for each in details] == names
    assert len(statements) == 1
    assert world.changes.several(world.stranger, names) == []


def test_a_summary_is_read_by_one_query(world: World) -> None:
    change = world.test("good-1")
    with counted(world) as statements:
        assert world.changes.summary(world.ada, change.id).id == change.id
    assert len(statements) == 1


def test_pages_use_the_latest_status_of_the_fleet(world: World) -> None:
    requests: list[str] = []
    world.fleet.before_call = lambda member, method, _: requests.append(f"{method} {member}")
    statuses = Statuses(world.fleet, max_age=60.0)
    for _ in range(5):
        assert statuses.recent()["live-1"].reachable
    assert sorted(requests) == ["status live-1", "status live-2"]
    world.reconciler.statuses = statuses
    for _ in range(3):
        world.checkpoints.list(world.ada)
        assert world.checkpoints.kind(CHECKPOINT) == "score"
    assert len(requests) == 2


def test_a_request_for_one_figure_builds_only_that_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def builder(name: str) -> Any:
        return lambda _evidence: drawn.append(name)

    names = [*build._COMMON_FIRST, *build._OF_SCORES, *build._COMMON_LAST]
    monkeypatch.setattr(build, "_drawn_by", lambda _kind: {name: builder(name) for name in names})

    class Evidence:
        kind = "score"
        shadow = (1,)

    build.figure(Evidence(), "drops")  # type: ignore[arg-type]
    assert drawn == ["drops"]


def written(root: Path, lane: str, rows: list[dict[str, Any]], schema: Any) -> None:
    parts.write(root / "live-1" / "log" / CHECKPOINT / lane, rows, schema)


def test_outcomes_of_other_decisions_are_not_kept(tmp_path: Path) -> None:
    rows = [
        {"sequence": at, "key": at, "kind": "fraud" if at % 2 else "other", "value": 1.0, "revision": 0}
        for at in range(1, 1001)
    ]
    written(tmp_path, parts.OUTCOMES, rows, parts.OUTCOME)
    keys = np.array([3, 4, 5, 2000], dtype=np.uint64)
    outcomes = load.outcomes(tmp_path, CHECKPOINT, kind="fraud", keys=keys)
    assert {kind: own[0].tolist() for kind, own in outcomes.items()} == {"fraud": [3, 5]}
    whole = load.outcomes(tmp_path, CHECKPOINT)
    assert {kind: len(own[0]) for kind, own in whole.items()} == {"fraud": 500, "other": 500}


def test_outcomes_that_an_earlier_version_stored_without_proof_count(tmp_path: Path) -> None:
    before = pa.schema([field for field in parts.OUTCOME if field.name != "proof"])
    row = {"key": 7, "kind": "fraud", "value": 1.0, "revision": 0}
    written(tmp_path, parts.OUTCOMES, [{"sequence": 1, **row}], before)
    assert load.outcomes(tmp_path, CHECKPOINT)["fraud"][0].tolist() == [7]
    forged = {**row, "key": 8, "proof": UNPROVEN}
    written(tmp_path, parts.OUTCOMES, [{"sequence": 2, **forged}], parts.OUTCOME)
    assert load.outcomes(tmp_path, CHECKPOINT)["fraud"][0].tolist() == [7]
    assert load.unproven_outcomes(tmp_path, CHECKPOINT, "fraud", np.array([7, 8], np.uint64)) == 1


def test_a_canary_is_judged_on_a_bounded_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = dict.fromkeys(parts.ANSWERED.names)
    rows = [
        {
            **fields,
            "sequence": at,
            "key": at,
            "at": at,
            "lane": "canary" if at % 4 == 0 else "live",
            "bundle": "new" if at % 4 == 0 else "old",
            "score": 0.5,
            "label": "approve",
            "exec_us": 10.0,
            "load_us": 1.0,
        }
        for at in range(1, 4001)
    ]
    written(tmp_path, parts.ANSWERS, rows, parts.ANSWERED)
    where = canary.since(tmp_path, CHECKPOINT, 0)
    own, live, thin = canary.answers(where, "new", load.CodeNames())
    assert (len(own), len(live), thin) == (1000, 3000, 1)
    monkeypatch.setattr(canary, "MOST", 1000)
    own, live, thin = canary.answers(where, "new", load.CodeNames())
    assert thin == 4
    assert len(own) + len(live) == 1000
    later = canary.since(tmp_path, CHECKPOINT, 10**9)
    assert canary.answers(later, "new", load.CodeNames())[2] == 1
