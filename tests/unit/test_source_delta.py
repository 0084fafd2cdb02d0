"""Tests that the tables of `scorer ship` are a source with the rows of the logs."""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from joining import HOUR, POINT, SETTINGS, START, Maker, known, outcome
from lakes import lake_source, ship_logs
from logs import write_segment
from servers import scorer_in_process
from shipping import action, decision, every_kind, withdrawal, write_log
from shipping import outcome as shipped_outcome

from scorer.errors import LogError
from scorer.learn.join.joining import join
from scorer.log import BundleShelf, ReaderKey
from scorer.log.shipped.schema import VERSION
from scorer.log.shipped.storage import SCHEMA_PROPERTY
from scorer.log.source import delta_plan
from scorer.log.source.addresses import decision_source
from scorer.log.source.delta_plan import LOG_BITS
from scorer.log.source.delta_tables import ShippedTable
from scorer.log.source.directories import log_directories
from scorer.log.source.interface import ReadPosition, ServerLog, SourceQuery
from scorer.log.source.settings import SourceSettings
from scorer.ship.settings import DeltaSection
from scorer.ship.upkeep import maintain

Rows = dict[tuple[str, str], pa.Table]


def read(
    log: ServerLog, query: SourceQuery | None = None, after: ReadPosition | None = None
) -> tuple[Any, Rows]:
    """A pass, and its rows by checkpoint and kind."""
    one = log.read(query or SourceQuery(), after)
    found: dict[tuple[str, str], list[pa.Table]] = {}
    for batch in one:
        assert 0 < len(batch.rows) <= (query or SourceQuery()).rows
        found.setdefault((batch.checkpoint, batch.kind), []).append(batch.rows)
    return one, {key: pa.concat_tables(parts).unify_dictionaries() for key, parts in found.items()}


def lists(rows: Rows) -> str:
    # NaN is not equal to itself.
    return str({key: table.to_pylist() for key, table in sorted(rows.items())})


def count(rows: Rows) -> int:
    return sum(map(len, rows.values()))


@pytest.mark.parametrize("checkpoint", [None, "action.authorise", "fraud.checkout"])
@pytest.mark.parametrize("rows", [4, 8192])
def test_the_rows_are_those_of_the_logs(tmp_path: Path, checkpoint: str | None, rows: int) -> None:
    logs = {"one": write_log(tmp_path / "one", [40, 1, 30]), "two": write_log(tmp_path / "two", [90])}
    write_segment(logs["two"], 2, 91, every_kind(), sealed=False)
    lake = tmp_path / "lake"
    ship_logs(logs, lake)
    query = SourceQuery(checkpoint, rows=rows)
    for _ in range(2):
        found = {log.name: read(log, query) for log in lake_source(lake).logs}
        assert list(found) == ["one", "two"]
        for server, directory in logs.items():
            local, wanted = read(log_directories([directory]).logs[0], query)
            assert lists(found[server][1]) == lists(wanted)
            position = found[server][0].position
            assert (position.log, position.next) == (local.position.log, local.position.next)
        # The same after the small files of both servers were merged.
        for name in ("decisions", "outcomes", "events"):
            maintain(DeltaSection(url=str(lake), keep_hours=0), name, search=False)


def test_a_pass_continues_and_opens_only_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, lake = write_log(tmp_path / "log", [40], sealed=False), tmp_path / "lake"
    opened: list[str] = []
    real = ShippedTable.dataset

    def dataset(self: ShippedTable, files: Any) -> Any:
        opened.extend(one.path for one in files)
        return real(self, files)

    monkeypatch.setattr(ShippedTable, "dataset", dataset)
    ship_logs({"one": log}, lake, batches=3)
    first, rows = read(lake_source(lake).logs[0])
    assert first.position.next == 22 and not first.continued
    before = set(opened)
    opened.clear()
    again, nothing = read(lake_source(lake).logs[0], after=first.position)
    assert again.continued and not nothing and not opened and again.position == first.position
    ship_logs({"one": log}, lake)
    later, more = read(lake_source(lake).logs[0], after=first.position)
    assert later.continued and opened and not before & set(opened)
    _, whole = read(lake_source(lake).logs[0])
    assert count(rows) + count(more) == count(whole)
    # A file of the compaction has old rows too. They are not returned again.
    for name in ("decisions", "outcomes", "events"):
        maintain(DeltaSection(url=str(lake)), name, search=False)
    after, none = read(lake_source(lake).logs[0], after=later.position)
    assert after.continued and not none
    partly, some = read(lake_source(lake).logs[0], after=first.position)
    assert partly.continued and lists(some) == lists(more)


def test_rows_after_the_position_of_the_server_are_left_for_the_next_pass(tmp_path: Path) -> None:
    """The tables are committed one after the other, so outcomes can be there before decisions."""
    log, lake = write_log(tmp_path / "log", [30], sealed=False), tmp_path / "lake"
    ship_logs({"one": log}, lake, batches=2)
    ahead = tmp_path / "ahead"
    shutil.copytree(lake, ahead)
    ship_logs({"one": log}, ahead)
    for name in ("outcomes", "events"):
        shutil.rmtree(lake / name)
        shutil.copytree(ahead / name, lake / name)
    first, rows = read(lake_source(lake).logs[0])
    assert first.position.next == 15
    assert max(table["sequence"].to_numpy().max() for table in rows.values()) <= 14
    shutil.rmtree(lake / "decisions")
    shutil.copytree(ahead / "decisions", lake / "decisions")
    later, more = read(lake_source(lake).logs[0], after=first.position)
    whole, every = read(lake_source(lake).logs[0])
    assert later.continued and later.position == whole.position
    assert count(rows) + count(more) == count(every)


def test_hours_before_the_needed_time_are_not_read(tmp_path: Path) -> None:
    log, lake = tmp_path / "log", tmp_path / "lake"
    write_segment(log, 1, 1, [decision(at * 3600) for at in range(6)], sealed=False)
    ship_logs({"one": log}, lake, records=2)
    since = 1_793_534_400_000_000 + 4 * 3_600_000_000 + 5
    one, rows = read(lake_source(lake).logs[0], SourceQuery("fraud.checkout", since_us=since))
    assert rows["fraud.checkout", "decisions"]["decision_id"].to_pylist() == ["d14400", "d18000"]
    assert one.since_us == since


def test_rows_are_sorted_on_disk_if_they_exceed_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers whose files were merged: the rows of one are between those of the other."""
    width, number = 400, 6_000
    payloads = [decision(at, features=[at / 7] * width) for at in range(number)]
    logs = {"one": tmp_path / "one", "two": tmp_path / "two"}
    lake = tmp_path / "lake"
    for directory in logs.values():
        write_segment(directory, 1, 1, payloads, sealed=False)
    ship_logs(logs, lake, records=1500)
    maintain(DeltaSection(url=str(lake)), "decisions", search=False)
    for log in lake_source(lake, memory_mb=64).logs:
        _, rows = read(log, SourceQuery(rows=1000))
        found = rows["fraud.checkout", "decisions"]
        assert found["sequence"].to_pylist() == list(range(1, number + 1))


def test_a_log_that_was_replaced_is_read_to_its_end_and_followed_by_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, lake = tmp_path / "old", tmp_path / "new", tmp_path / "lake"
    write_segment(old, 1, 1, [decision(1), decision(2)], sealed=False)
    ship_logs({"one": old}, lake, records=1, batches=1)
    first, _ = read(lake_source(lake).logs[0])
    ship_logs({"one": old}, lake)
    monkeypatch.setattr("logs.LOG", bytes(range(16)))
    write_segment(new, 1, 1, [withdrawal(1), decision(4), decision(5)], sealed=False)
    ship_logs({"one": new}, lake, accept_new_log=True)
    later, rows = read(lake_source(lake).logs[0], after=first.position)
    assert later.continued
    found = rows["fraud.checkout", "decisions"]
    # The new log uses the same sequences again, and its withdrawal is not one of the old log.
    assert found["decision_id"].to_pylist() == ["d2", "d4", "d5"]
    assert found["sequence"].to_pylist() == [2, (1 << LOG_BITS) + 2, (1 << LOG_BITS) + 3]
    assert later.position.log == bytes(range(16)).hex()
    whole, every = read(lake_source(lake).logs[0])
    assert whole.position == later.position
    assert every["fraud.checkout", "decisions"]["decision_id"].to_pylist() == ["d1", "d2", "d4", "d5"]


def test_records_that_a_repaired_log_has_written_again_replace_those_before(tmp_path: Path) -> None:
    log, lake = tmp_path / "log", tmp_path / "lake"
    write_segment(log, 1, 1, [decision(1), decision(2), decision(3)], sealed=False)
    ship_logs({"one": log}, lake)
    first, _ = read(lake_source(lake).logs[0])
    # The log lost two records and continued in another segment.
    write_segment(log, 2, 2, [decision(7), shipped_outcome(1), decision(8)], sealed=False)
    ship_logs({"one": log}, lake)
    later, rows = read(lake_source(lake).logs[0], after=first.position)
    assert not later.continued and not later.erased
    assert rows["fraud.checkout", "decisions"]["decision_id"].to_pylist() == ["d1", "d7", "d8"]


def test_a_pass_of_another_kind_of_source_is_not_continued(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [10]), tmp_path / "lake"
    ship_logs({"one": log}, lake)
    local, _ = read(log_directories([log]).logs[0])
    one, rows = read(lake_source(lake).logs[0], after=local.position)
    assert not one.continued and not one.erased and count(rows)


@pytest.fixture(scope="module")
def make(built_bundles: dict[str, Path]) -> Maker:
    return Maker(built_bundles["action-1"])


@pytest.fixture(scope="module")
def shelf(built_bundles: dict[str, Path]) -> BundleShelf:
    return BundleShelf([built_bundles["action-1"]])


def joined(source: Any, shelf: BundleShelf, **more: Any) -> Any:
    return join(source, shelf, SETTINGS, as_of_ms=START + 100 * HOUR, checkpoint=POINT, **more)


def test_rows_that_were_deleted_in_the_table_leave_the_cache(
    tmp_path: Path, make: Maker, shelf: BundleShelf
) -> None:
    log, lake, cache = tmp_path / "log", tmp_path / "lake", tmp_path / "cache"
    records = [make.decision(f"d{at}", at) for at in range(6)] + [outcome("d1", 3), outcome("d2", 4)]
    write_segment(log, 1, 1, records, sealed=False)
    ship_logs({"one": log}, lake)
    assert len(joined(lake_source(lake), shelf, cache=cache).experience) == 6
    DeltaTable(f"{lake}/decisions").delete("entity = 'shopper-d1'")
    found = joined(lake_source(lake), shelf, cache=cache)
    assert sorted(known(found)) == ["d0", "d2", "d3", "d4", "d5"]
    assert "log replaced or set back" not in {one.name for one in found.findings}
    assert found.experience.digest() == joined(lake_source(lake), shelf).experience.digest()
    # A part of the deleted row would otherwise stay in a file of the cache.
    assert not any(b"shopper-d1" in path.read_bytes() for path in cache.rglob("*") if path.is_file())
    ship_logs({"one": log}, lake)
    assert joined(lake_source(lake), shelf, cache=cache).experience.digest() == found.experience.digest()


def test_directories_and_tables_can_be_read_together(
    tmp_path: Path, make: Maker, shelf: BundleShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {name: tmp_path / name for name in ("one", "two")}
    for at, path in enumerate(paths.values()):
        monkeypatch.setattr("logs.LOG", bytes([at + 1]) * 16)
        write_segment(path, 1, 1, [make.decision(f"{path.name}-0", at), outcome("one-0", 9)], sealed=False)
    lake = tmp_path / "lake"
    ship_logs({"two": paths["two"]}, lake)
    both = decision_source([str(paths["one"]), f"delta:{lake}"])
    wanted = joined(log_directories(list(paths.values())), shelf)
    assert joined(both, shelf).experience.digest() == wanted.experience.digest()
    # The table is away: the directory is read, and the table is named.
    shutil.rmtree(lake)
    found = joined(decision_source([str(paths["one"]), f"delta:{lake}"]), shelf)
    [away] = [one for one in found.findings if one.name == "unreadable log"]
    assert f'{lake}: table "{lake}/decisions" does not exist' in away.examples[0]


def test_encrypted_features_are_opened_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, lake = tmp_path / "log", tmp_path / "lake"
    write_segment(log, 1, 1, [action(at) for at in range(1, 5)], sealed=False)
    ship_logs({"one": log}, lake)

    class Key:
        id = 9

        def open(self, record: Any) -> bool:
            if record.sealed.number == 3:
                return False
            record.features[1] = record.sealed.number
            del record.withheld[:]
            return True

    key: Any = Key()
    query = SourceQuery(reader_key=key)
    _, rows = read(lake_source(lake).logs[0], query)
    _, wanted = read(log_directories([log]).logs[0], query)
    assert lists(rows) == lists(wanted)
    assert rows["action.authorise", "decisions"]["withheld"].to_pylist() == [[], [], [1], []]
    assert isinstance(ReaderKey, type)


def one_line(error: pytest.ExceptionInfo[LogError]) -> str:
    text = str(error.value)
    assert "\n" not in text and ";" in text
    return text


def test_tables_that_cannot_be_read_are_refused_in_one_line(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [20]), tmp_path / "lake"
    with pytest.raises(LogError, match="does not exist; name the url") as error:
        _ = lake_source(lake).logs
    one_line(error)
    ship_logs({"one": log}, lake)

    # A newer version of the schema.
    newer = tmp_path / "newer"
    shutil.copytree(lake, newer)
    DeltaTable(f"{newer}/outcomes").alter.set_table_properties(
        {SCHEMA_PROPERTY: str(VERSION + 1)}, raise_if_not_exists=False
    )
    with pytest.raises(LogError, match=f"has schema version {VERSION + 1}, which a newer") as error:
        read(lake_source(newer).logs[0])
    assert one_line(error).endswith("upgrade scorer on this host")

    # A table of another program.
    from deltalake import write_deltalake

    foreign = tmp_path / "foreign"
    write_deltalake(str(foreign / "decisions"), pa.table({"a": [1]}))
    with pytest.raises(LogError, match="is not one of scorer ship") as error:
        _ = lake_source(foreign).logs
    one_line(error)

    # A file that was removed, and one that was cut off.
    for damage in ("missing", "cut"):
        damaged = tmp_path / damage
        shutil.copytree(lake, damaged)
        for path in damaged.glob("decisions/*/*/*.parquet"):
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-40])
        # Repeated, because threads that open files and the one that starts a scan once waited for each other.
        for _ in range(10):
            with pytest.raises(LogError, match=f'table "{damaged}/decisions"') as error:
                read(lake_source(damaged).logs[0])
            one_line(error)

    # No server has shipped.
    empty = tmp_path / "empty"
    from scorer.ship.tables import Tables

    Tables(DeltaSection(url=str(empty)), "none").prepare()
    with pytest.raises(LogError, match="no record of any server yet") as error:
        _ = lake_source(empty).logs
    one_line(error)


def test_a_missing_package_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "deltalake":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LogError, match=r'needs the package deltalake; install "scorer\[train,ship\]"'):
        lake_source(tmp_path)


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (["delta:"], 'log "delta:" names no table'),
        (["delta:lake", "delta:lake/"], "is given twice; name each table once"),
        (["s3://bucket/lake"], 'or "delta:s3://bucket/lake" for the tables'),
        ([], "no decision log is given"),
    ],
)
def test_addresses_that_name_no_source_are_refused(
    tmp_path: Path, addresses: list[str], message: str
) -> None:
    with pytest.raises(LogError, match=message):
        decision_source(addresses, tmp_path, SourceSettings())


def test_the_commands_read_a_table(
    tmp_path: Path, make: Maker, built_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake = tmp_path / "log", tmp_path / "lake"
    write_segment(log, 1, 1, [make.decision("d1", 1), outcome("d1", 2)], sealed=False)
    ship_logs({"one": log}, lake)
    files = []
    for address in (str(log), f"delta:{lake}"):
        output = tmp_path / f"{len(files)}.parquet"
        arguments = ["--log", address, "--bundles", str(built_bundles["action-1"]), "--as-of", "2026-02-01"]
        done = scorer_in_process("learn", "join", *arguments, "-o", str(output), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
        files.append(output.read_bytes())
    assert files[0] == files[1]


def test_hours_that_overlap_are_read_in_the_order_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set back: an hour has sequences of before and after another one."""
    monkeypatch.setattr(delta_plan, "CHUNK_ROWS", 10)
    extents = [
        delta_plan.Extent("l", "s", hour, first, last, last - first + 1)
        for hour, first, last in (("09", 1, 40), ("08", 20, 30), ("10", 41, 43), ("11", 44, 99))
    ]
    found = list(delta_plan.chunks(extents))
    assert len(found) == 3 and [one.first for one in found][1:] == [one.last + 1 for one in found][:-1]
    for extent in extents:
        for sequence in (extent.first, extent.last):
            [chunk] = [one for one in found if one.first <= sequence <= one.last]
            assert extent.hour in chunk.hours
