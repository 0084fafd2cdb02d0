"""Tests that the tables of `scorer ship` give the whole records that the logs give."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lakes import ship_logs
from logs import write_segment
from shipping import NOON_US, action, decision, every_kind, observation, outcome, withdrawal, write_log

from scorer.errors import LogError
from scorer.log.columns import Ragged
from scorer.log.scanning import Entry
from scorer.log.shipped.schema import SCHEMAS
from scorer.log.source.delta_tables import ShippedTable
from scorer.log.source.directories import log_directories
from scorer.log.source.indexed import IndexedLogs
from scorer.log.source.locations import TableAccess, logs_at
from scorer.log.source.mixed import MixedRecords
from scorer.log.source.records import RecordLog, RecordSource
from scorer.log.source.settings import SourceSettings
from scorer.log.source.table_records import TableRecords
from scorer.ship.settings import DeltaSection
from scorer.ship.upkeep import maintain

POINTS = ("fraud.checkout", "action.authorise")


class Lake:
    """Logs and the tables that they are shipped to."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.url, self._monkeypatch = root, root / "lake", monkeypatch
        self.logs: dict[str, Path] = {}
        self.opened: list[RecordSource] = []

    def write(self, server: str, sizes: Sequence[int]) -> None:
        # Each server has a log of its own.
        self._monkeypatch.setattr("logs.LOG", uuid.uuid5(uuid.NAMESPACE_URL, server).bytes)
        self.logs[server] = write_log(self.root / server, sizes)

    def ship(self, **how: Any) -> None:
        ship_logs(self.logs, self.url, **how)

    def tables(self, name: str = "tables.sqlite", **how: Any) -> TableRecords:
        settings = SourceSettings(timeout_seconds=2.0)
        found = TableRecords([str(self.url)], self.root / name, settings, refresh_seconds=0.0, **how)
        self.opened.append(found)
        return found

    def directories(self, name: str = "index.sqlite", *, without: str = "") -> IndexedLogs:
        def own() -> Mapping[str, Path]:
            return {server: path for server, path in self.logs.items() if server != without}

        found = IndexedLogs(own, self.root / name)
        self.opened.append(found)
        return found


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    # A busy machine may need longer for the files of a test.
    monkeypatch.setattr("scorer.log.source.table_records._SLICE_SECONDS", 60.0)
    monkeypatch.setattr("scorer.log.source.table_records._INDEX_SECONDS", 60.0)
    found = Lake(tmp_path, monkeypatch)
    yield found
    for source in found.opened:
        source.close()


def listed(entries: Any) -> list[tuple[int, str, str]]:
    """Records as text, because NaN is not equal to itself."""
    return [(one.sequence, one.kind, plain(one.record)) for one in entries]


def plain(record: Any) -> str:
    """Text of a record with the mask in its shortest form."""
    own = None if record is None else type(record).FromString(record.SerializeToString())
    if own is not None and hasattr(own, "eligible_mask") and len(own.pmf) and own.eligible_mask == b"\xff":
        own.eligible_mask = b""
    return str(own)


def whole(log: RecordLog, start: int = 0) -> list[Entry]:
    return [entry for identity in log.identities for entry in log.records(identity, start)]


def same(found: RecordSource, wanted: RecordSource) -> None:
    """Check that two sources have the same records in every way that they can be read."""
    assert [log.name for log in found.logs] == [log.name for log in wanted.logs]
    ids: set[str] = set()
    for own, other in zip(found.logs, wanted.logs, strict=True):
        assert own.identities == other.identities
        entries = whole(other)
        ids |= {str(entry.decision_id) for entry in entries if entry.decision_id}
        for start in (0, 17, len(entries) + 9):
            assert listed(whole(own, start)) == listed(whole(other, start))
        for point in POINTS:
            for limit in (5, 400):
                # At first, a directory gives the newest decisions of its two newest segments only.
                newest = texts(other.newest(point, limit))
                assert texts(own.newest(point, limit))[: len(newest)] == newest
            # A search of a directory knows the withdrawals of its own page only.
            assert paged(own, point, 11) == paged(own, point, 400) == paged(other, point, 400)
            for begin, end in ((NOON_US + 11_000_000, None), (None, NOON_US + 40_000_000)):
                bounds = {"begin_us": begin, "end_us": end}
                assert paged(own, point, 400, **bounds) == paged(other, point, 400, **bounds)
            assert columns(own, point) == columns(other, point)
    for one in sorted(ids)[::11]:
        ours, theirs = found.of_decision(one), wanted.of_decision(one)
        assert ours.is_complete
        assert not ours.problems
        key = [(name, *listed([entry])[0]) for name, entry in ours.entries]
        assert sorted(key) == sorted((name, *listed([entry])[0]) for name, entry in theirs.entries)


def texts(records: Sequence[Any]) -> list[str]:
    return [str(record) for record in records]


def paged(log: RecordLog, point: str, limit: int = 11, **bounds: Any) -> list[tuple[int, str]]:
    """All decisions that a search finds, page by page."""
    bounds = {"begin_us": None, "end_us": None, **bounds}
    before: int | None = None
    found: list[tuple[int, str]] = []
    for _ in range(10_000):
        stretch = log.search(point, is_wanted, before=before, limit=limit, **bounds)
        assert len(stretch.found) <= limit
        found += [(sequence, str(record)) for sequence, record in stretch.found]
        if stretch.is_complete:
            return found
        assert before is None or stretch.upto < before
        before = stretch.upto
    raise AssertionError("the search does not end")


def is_wanted(record: Any) -> bool:
    return not record.entity.endswith("3")


def columns(log: Any, point: str, **how: Any) -> list[str]:
    """All columns of a log, row by row, without withdrawn records."""
    decisions: dict[int, str] = {}
    outcomes: dict[int, str] = {}
    gone: set[int] = set()
    for batch in log.columns(point, mixed=True, **how):
        gone |= set(batch.withdrawn.tolist())
        own, names = batch.decisions, (batch.bundles, batch.labels)
        for at, sequence in enumerate(own.sequence.tolist()):
            named = names[0][own.bundle[at]], names[1][own.label[at]]
            row = [list_of(getattr(own, name), at) for name in ROW]
            decisions[sequence] = str((named, row))
        for at, sequence in enumerate(batch.outcomes.sequence.tolist()):
            kind = batch.kinds[batch.outcomes.kind[at]]
            row = [list_of(getattr(batch.outcomes, name), at) for name in OUTCOME_ROW]
            outcomes[sequence] = str((kind, row))
    both = [*decisions.items(), *outcomes.items()]
    left = [(sequence, row) for sequence, row in both if sequence not in gone]
    assert left
    return [str(row) for row in sorted(left)]


OUTCOME_ROW = ("key", "value", "revision", "proof")
MASKS = ("eligible", "requested")
ROW = (
    "key",
    "at",
    "fingerprint",
    "fallback",
    "action",
    "propensity",
    "features",
    "pmf",
    "id",
    "entity",
    *MASKS,
)


def list_of(column: Any, at: int) -> Any:
    if isinstance(column, Ragged):
        return column.take(np.array([at])).values.tolist()
    return column[at].item()


def test_the_records_are_those_of_the_logs(lake: Lake) -> None:
    lake.write("one", [40, 1, 30])
    lake.write("two", [90])
    write_segment(lake.logs["two"], 2, 91, every_kind(), sealed=False)
    lake.ship(records=31)
    tables = lake.tables()
    same(tables, lake.directories())
    # The same after the files of both servers were merged, with the index of before and with a new one.
    for name in SCHEMAS:
        maintain(DeltaSection(url=str(lake.url), keep_hours=0), name, search=False)
    same(tables, lake.directories())
    same(lake.tables("new.sqlite"), lake.directories())


def test_the_rust_columns_are_those_of_the_records(lake: Lake) -> None:
    """Without other stores, directories are read by the engine. Only its keys differ."""
    lake.write("one", [60])
    [log] = lake.directories().logs
    for point in POINTS:
        quick = {
            sequence: (features, entity)
            for batch in log.columns(point)
            for sequence, features, entity in zip(
                batch.decisions.sequence.tolist(),
                [list_of(batch.decisions.features, at) for at in range(len(batch.decisions))],
                batch.decisions.entity.texts(),
                strict=True,
            )
        }
        slow = {
            sequence: (features, entity)
            for batch in log.columns(point, mixed=True)
            for sequence, features, entity in zip(
                batch.decisions.sequence.tolist(),
                [list_of(batch.decisions.features, at) for at in range(len(batch.decisions))],
                batch.decisions.entity.texts(),
                strict=True,
            )
        }
        assert str(slow) == str({sequence: quick[sequence] for sequence in slow}) and slow


def test_a_pass_reads_only_new_files_and_continues_after_a_pause(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = ShippedTable.dataset

    def dataset(self: ShippedTable, files: Any) -> Any:
        opened.extend(one.path for one in files)
        return real(self, files)

    monkeypatch.setattr(ShippedTable, "dataset", dataset)
    lake.write("one", [60])
    lake.ship(batches=4)
    tables = lake.tables()
    [log] = tables.logs
    [identity] = log.identities
    reading = iter(log.records(identity, 0))
    first = [next(reading) for _ in range(10)]
    # The next call continues the same pass.
    rest = list(log.records(identity, first[-1].sequence + 1))
    seen = [*first, *rest]
    before = set(opened)
    lake.ship()
    opened.clear()
    [log] = tables.logs
    seen += log.records(identity, seen[-1].sequence + 1)
    assert opened and not before & set(opened)
    [local] = lake.directories().logs
    assert listed(seen) == listed(whole(local))
    opened.clear()
    assert not list(tables.logs[0].records(identity, seen[-1].sequence + 1))
    assert not opened
    # Another process that has the index reads no file of it.
    again = lake.tables()
    assert not list(again.logs[0].records(identity, seen[-1].sequence + 1))
    assert not opened


def test_the_log_before_is_read_to_its_end(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = lake.root / "old", lake.root / "new"
    write_segment(old, 1, 1, [decision(1), decision(2)], sealed=False)
    ship_logs({"one": old}, lake.url)
    tables = lake.tables()
    first = tables.logs[0].identities
    monkeypatch.setattr("logs.LOG", bytes(range(16)))
    write_segment(new, 1, 1, [withdrawal(1), decision(4), decision(5), outcome(2)], sealed=False)
    ship_logs({"one": new}, lake.url, accept_new_log=True)
    [log] = tables.logs
    assert log.identities == (*first, bytes(range(16)).hex())
    # Its withdrawal is not one of the old log, which has the same sequences.
    assert [one.decision_id for one in whole(log)] == ["d1", "d2", "d1", "d4", "d5", "d2"]
    assert [one.decision_id for one in log.newest("fraud.checkout", 9)] == ["d5", "d4", "d2", "d1"]
    assert len(paged(log, "fraud.checkout", limit=1)) == 4
    assert [entry.kind for _, entry in tables.of_decision("d2").entries] == ["decision", "outcome"]
    assert sum("d" in row for row in columns(log, "fraud.checkout")) == 5


def test_records_that_a_repaired_log_has_written_again_replace_those_before(lake: Lake) -> None:
    log = lake.root / "log"
    write_segment(log, 1, 1, [decision(1), decision(2), decision(3)], sealed=False)
    ship_logs({"one": log}, lake.url)
    write_segment(log, 2, 2, [decision(7), outcome(1), decision(8)], sealed=False)
    ship_logs({"one": log}, lake.url)
    tables = lake.tables()
    [own] = tables.logs
    assert [one.decision_id for one in whole(own)] == ["d1", "d7", "d1", "d8"]
    assert [one.decision_id for one in own.newest("fraud.checkout", 9)] == ["d8", "d7", "d1"]
    assert not tables.of_decision("d3").entries


def test_rows_after_the_position_of_the_server_wait(lake: Lake) -> None:
    """The tables are committed one after the other, so outcomes can be there before decisions."""
    lake.write("one", [30])
    lake.ship(batches=2)
    ahead = lake.root / "ahead"
    shutil.copytree(lake.url, ahead)
    ship_logs(lake.logs, ahead)
    for name in ("outcomes", "events", "observations"):
        shutil.rmtree(lake.url / name)
        shutil.copytree(ahead / name, lake.url / name)
    tables = lake.tables()
    [log] = tables.logs
    entries = whole(log)
    assert entries[-1].sequence <= 14
    shutil.rmtree(lake.url / "decisions")
    shutil.copytree(ahead / "decisions", lake.url / "decisions")
    entries += log.records(log.identities[0], 15) if tables.logs else ()
    [local] = lake.directories().logs
    assert listed(entries) == listed(whole(local))


def test_a_log_is_read_from_one_place(lake: Lake) -> None:
    lake.write("one", [20])
    lake.write("two", [30])
    lake.ship()
    names = {"two": "checkout-2"}
    directories = lake.directories(without="two")
    tables = lake.tables(names=lambda: names, elsewhere=lambda: directories.logs)
    both = MixedRecords((directories, tables), lambda: {"checkout-2"})
    # The log of the first server is in a directory, so its rows of the table are not read.
    assert [log.name for log in both.logs] == ["one", "checkout-2"]
    found = both.of_decision("d1")
    assert [name for name, entry in found.entries if entry.kind == "decision"] == ["one", "checkout-2"]
    # The same under another name, because the log is the same.
    lake.logs = {"else": lake.logs["one"]}
    assert [log.name for log in both.logs] == ["else", "checkout-2"]


def test_another_process_opens_logs_by_their_locations(lake: Lake) -> None:
    lake.write("one", [20])
    lake.write("two", [30])
    lake.ship()
    tables, directories = lake.tables(), lake.directories()
    access = TableAccess(lake.root / "tables.sqlite", SourceSettings(options={"A": "secret"}))
    assert TableAccess.of(access.variables()) == access
    assert TableAccess.of({}) is None
    locations = [directories.logs[0].location, tables.logs[1].location]
    assert "secret" not in str(locations)
    logs, is_mixed = logs_at(locations, access, 60.0)
    assert is_mixed
    for one, wanted in zip(logs, (directories.logs[0], directories.logs[1]), strict=True):
        assert columns(one, POINTS[0]) == columns(wanted, POINTS[0])
    assert not logs_at(locations[:1], access, 60.0)[1]
    with pytest.raises(LogError, match="only a process of a platform"):
        logs_at(locations, None, 60.0)


def test_columns_leave_out_hours_before_the_needed_time(lake: Lake) -> None:
    log = lake.root / "log"
    write_segment(log, 1, 1, [decision(at * 3600) for at in range(6)], sealed=False)
    ship_logs({"one": log}, lake.url, records=2)
    [own] = lake.tables().logs
    assert len(columns(own, POINTS[0])) == 6
    assert len(columns(own, POINTS[0], since_us=NOON_US + 4 * 3_600_000_000 + 5)) == 3


def test_tables_that_cannot_be_read_are_a_problem_in_one_line(lake: Lake) -> None:
    tables = lake.tables()
    assert not tables.logs
    [problem] = tables.problems
    assert "does not exist; name the url" in problem and "\n" not in problem
    found = tables.of_decision("d1")
    assert not found.entries and found.problems == [problem]
    # It is read as soon as it exists.
    lake.write("one", [20])
    lake.ship()
    assert [log.name for log in tables.logs] == ["one"]
    assert not tables.problems
    [log] = tables.logs
    assert len(whole(log)) == len(whole(lake.directories().logs[0]))


def test_a_table_of_a_newer_version_keeps_what_was_read(lake: Lake) -> None:
    from deltalake import DeltaTable

    from scorer.log.shipped.schema import VERSION
    from scorer.log.shipped.storage import SCHEMA_PROPERTY

    lake.write("one", [20])
    lake.ship()
    tables = lake.tables()
    assert tables.logs and not tables.problems
    DeltaTable(f"{lake.url}/outcomes").alter.set_table_properties(
        {SCHEMA_PROPERTY: str(VERSION + 1)}, raise_if_not_exists=False
    )
    [log] = tables.logs
    assert f"has schema version {VERSION + 1}, which a newer version" in tables.problems[0]
    assert log.newest(POINTS[0], 3)


def test_a_file_that_is_cut_off_is_reported_and_read_when_it_is_restored(lake: Lake) -> None:
    lake.write("one", [20])
    lake.ship()
    tables = lake.tables()
    [log] = tables.logs
    kept = {path: path.read_bytes() for path in lake.url.glob("decisions/*/*/*.parquet")}
    for path, content in kept.items():
        path.write_bytes(content[:-40])
    with pytest.raises(LogError, match=f'table "{lake.url}/decisions"') as error:
        whole(log)
    assert "\n" not in str(error.value)
    found = tables.of_decision("d1")
    assert found.problems and not found.entries
    # Without an index, the file cannot be read at all.
    fresh = lake.tables("fresh.sqlite")
    assert not fresh.logs
    assert "cannot be read" in fresh.problems[0]
    for path, content in kept.items():
        path.write_bytes(content)
    assert listed(whole(log)) == listed(whole(fresh.logs[0]))
    assert not fresh.problems


def test_a_damaged_index_is_built_anew(lake: Lake) -> None:
    lake.write("one", [40])
    lake.ship()
    tables = lake.tables()
    assert tables.of_decision("d1").entries
    tables.close()
    path = lake.root / "tables.sqlite"
    path.write_bytes(b"damaged" * 1000)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with pytest.raises(LogError, match="is built anew"):
        tables.of_decision("d1")
    assert tables.of_decision("d1").entries


def test_removed_rows_leave_the_index(lake: Lake) -> None:
    from deltalake import DeltaTable

    lake.write("one", [40])
    lake.ship()
    tables = lake.tables()
    assert tables.of_decision("d1").entries
    for name in SCHEMAS:
        DeltaTable(f"{lake.url}/{name}").delete("sequence < 20")
    assert not [one for one in tables.of_decision("d1").entries if one[1].sequence < 20]
    [log] = tables.logs
    assert whole(log)[0].sequence >= 20
    import sqlite3

    with sqlite3.connect(lake.root / "tables.sqlite") as database:
        assert database.execute("select min(sequence) from rows").fetchone()[0] >= 20


def test_the_logs_of_directories_have_one_identity(lake: Lake) -> None:
    lake.write("one", [20])
    [log] = log_directories([lake.logs["one"]]).logs
    assert len(log.identities) == 1
    [none] = log_directories([lake.root / "missing"]).logs
    assert none.identities == ()


def test_a_search_reads_blocks_of_large_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file has all decisions, of which a page needs a few."""
    log = lake.root / "log"
    records = [observation(at) if at % 3 == 0 else decision(at) for at in range(4_000)]
    write_segment(log, 1, 1, [*records, action(9_000)], sealed=False)
    lake.logs["one"] = log
    lake.ship(records=5_000)
    [own], [local] = lake.tables().logs, lake.directories().logs
    asked: list[int] = []
    monkeypatch.setattr("scorer.log.source.table_logs.sorted_rows", counting(asked))
    bounds = {"begin_us": None, "end_us": None}
    page = own.search(POINTS[0], lambda _: True, before=None, limit=5, **bounds)
    assert len(page.found) == 5
    assert max(asked) <= 1_000
    monkeypatch.undo()
    assert paged(own, POINTS[0], limit=97) == paged(local, POINTS[0], limit=97)


def counting(asked: list[int]) -> Any:
    from scorer.log.source.delta_reading import sorted_rows

    def count(table: Any, files: Any, columns: Any, wanted: Any, **how: Any) -> Any:
        for rows in sorted_rows(table, files, columns, wanted, **how):
            if len(columns) > 2:
                asked.append(len(rows))
            yield rows

    return count
