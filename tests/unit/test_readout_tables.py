"""Tests of reports and metrics over shipped tables: what is counted once, and what notes say."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lakes import ship_logs
from observing import ADMIN, START, Log, World
from waiting import wait_until

from scorer.log.source.records import RecordSource
from scorer.log.source.settings import SourceSettings
from scorer.log.source.table_records import TableRecords


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("scorer.log.source.table_records._SLICE_SECONDS", 60.0)
    bundles = built_bundles["score-1"], built_bundles["score-2"]
    return World(tmp_path, *bundles, servers=("live-1", "live-2"), source_of=tables)


def tables(world: World, index: Path) -> RecordSource:
    return TableRecords([str(world.root / "lake")], index, SourceSettings(), refresh_seconds=0.0)


def ship(world: World, **how: Any) -> None:
    logs = {name: log.path for name, log in world.logs.items() if log.path.exists()}
    # The lock of a server, which shippers look for.
    for path in logs.values():
        (path / "LOCK").touch()
    ship_logs(logs, world.root / "lake", **how)


def collect(world: World) -> None:
    """Collect until there is nothing new. A call ends after a second, whatever it has read."""

    def is_done() -> bool:
        collector = world.readouts._collector
        return not collector.collect() and not collector._resume

    wait_until(is_done, "all records to be collected")


def notes(world: World) -> list[str]:
    return world.readouts._collector.notes()


def metrics(world: World) -> int:
    found = world.metrics.metrics(ADMIN, world.checkpoint, start=START, end=START + timedelta(hours=1))
    return int(found.rows)


def test_rows_are_counted_once_while_the_tables_grow_and_processes_change(world: World) -> None:
    world.logs["live-1"].append(world.records(20))
    collect(world)
    assert any("does not exist; name the url" in note for note in notes(world))
    ship(world, records=9, batches=4)
    collect(world)
    before = world.readouts.measure(world.change)
    assert 0 < before < 20
    world.logs["live-2"].append([*world.records(15, first=20), world.outcome(3, 1.0)])
    ship(world, records=9)
    world.readouts = world.new_collector()
    collect(world)
    assert world.readouts.measure(world.change) == metrics(world) == 35
    # An outcome at the other replica counts.
    assert world.readouts.outcomes(world.checkpoint, ["payment-000003"]) == {"payment-000003": {"fraud": 1.0}}
    collect(world)
    assert world.readouts.measure(world.change) == metrics(world) == 35
    assert not any("does not exist" in note for note in notes(world))


def test_a_kill_between_parts_and_cursor_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.logs["live-1"].append(world.records(30))
    ship(world, records=1000)
    collector = type(world.readouts._collector)
    keeping = collector._keep

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(collector, "_keep", killed)
    with pytest.raises(KeyboardInterrupt):
        collect(world)
    monkeypatch.setattr(collector, "_keep", keeping)
    world.logs["live-1"].append(world.records(10, first=30))
    ship(world)
    collect(world)
    assert world.readouts.measure(world.change) == metrics(world) == 40


def test_the_log_before_counts_too(world: World) -> None:
    """The platform was down while the log of a server was replaced."""
    world.logs["live-1"].append(world.records(10))
    ship(world, records=7, batches=1)
    collect(world)
    ship(world)
    path = world.root / "logs" / "new"
    world.logs["live-1"] = Log(path)
    world.logs["live-1"].append(world.records(12, first=10))
    ship(world, accept_new_log=True)
    collect(world)
    assert world.readouts.measure(world.change) == metrics(world) == 22
    assert any("the log of live-1 was begun anew" in note for note in notes(world))


def test_a_note_about_an_error_goes_when_the_log_is_read(world: World) -> None:
    world.logs["live-1"].append(world.records(20))
    ship(world, records=1000)
    source: Any = world.readouts._source
    assert source.logs
    kept = {path: path.read_bytes() for path in world.root.glob("lake/observations/*/*/*.parquet")}
    for path, content in kept.items():
        path.write_bytes(content[: len(content) // 2])
    collect(world)
    assert world.readouts.measure(world.change) == 0
    [note] = [note for note in notes(world) if "cannot be read" in note]
    assert note.startswith("the log of live-1 cannot be read: table")
    for path, content in kept.items():
        path.write_bytes(content)
    collect(world)
    assert world.readouts.measure(world.change) == metrics(world) == 20
    assert not [note for note in notes(world) if "cannot be read" in note]
