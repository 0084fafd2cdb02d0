"""Tests of the Delta sink in a directory: rows, positions, schema, other writers, and maintenance."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.schema import Schema
from logs import write_segment
from servers import scorer_in_process
from shipping import (
    SERVER,
    decision,
    delta_keys,
    delta_rows,
    every_kind,
    keys_of,
    mixed,
    outcome,
    write_log,
    write_settings,
)

from scorer.errors import ShipError, SinkUnavailableError
from scorer.log.shipped.position import ShipPosition
from scorer.log.shipped.schema import DECISIONS, OBSERVATIONS, OUTCOMES, SCHEMAS, VERSION
from scorer.log.shipped.storage import SCHEMA_PROPERTY
from scorer.log.source.delta import DeltaSource
from scorer.log.source.delta_tables import ShippedTable
from scorer.log.source.interface import SourceQuery
from scorer.log.source.settings import SourceSettings
from scorer.ship import rows as ship_rows
from scorer.ship import tables
from scorer.ship.delta import DeltaSink
from scorer.ship.settings import DeltaSection
from scorer.ship.source import LogSource
from scorer.ship.tables import Tables
from scorer.ship.upkeep import Upkeep, maintain
from scorer.v1.scoring_pb2 import Reason


def section(lake: Path, **own: Any) -> DeltaSection:
    return DeltaSection(url=str(lake), **own)


def ship(
    log: Path, lake: Path, *, server: str = SERVER, records: int = 7, batches: int = 10_000, **own: Any
) -> DeltaSink:
    """Deliver batches of a log, as the worker does."""
    sink = DeltaSink(section(lake, **own), server)
    source = LogSource(log, server, max_records=records, max_bytes=1 << 20)
    position = sink.open()
    while batches and (batch := source.read(position)) is not None:
        sink.deliver(batch)
        position = batch.end
        batches -= 1
    source.forget()
    sink.close()
    return sink


def test_every_record_is_in_one_table_once(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [40, 1, 30]), tmp_path / "lake"
    ship(log, lake)
    assert delta_keys(str(lake)) == keys_of(log)
    rows = Counter(row["table"] for row in delta_rows(str(lake), columns=["sequence"]))
    assert rows.total() == 71 and set(rows) == set(SCHEMAS)
    ship(log, lake)
    assert delta_keys(str(lake)) == keys_of(log)


def test_the_command_ships_once(tmp_path: Path) -> None:
    write_log(tmp_path / "decisions", [9])
    path = write_settings(tmp_path, delta={"url": "lake"})
    done = scorer_in_process("ship", "--config", str(path), "--once")
    assert done.returncode == 0, done.stderr
    assert "delta: 9 records in " in done.stderr
    assert delta_keys(str(tmp_path / "lake")) == keys_of(tmp_path / "decisions")
    assert (tmp_path / "decisions/SHIPPED").read_text() == "10\n"


def test_all_values_are_stored(tmp_path: Path) -> None:
    log, lake = tmp_path / "log", tmp_path / "lake"
    write_segment(log, 1, 1, every_kind(), sealed=False)
    ship(log, lake, records=100)
    from scorer.ship.rows import tables_of

    batch = LogSource(log, SERVER, max_records=100, max_bytes=1 << 20).read(None)
    assert batch is not None
    for name, wanted in tables_of(batch).items():
        found = DeltaTable(f"{lake}/{name}").to_pyarrow_table().select(wanted.column_names)
        found = found.sort_by("sequence")
        # NaN is not equal to itself.
        assert str(found.to_pylist()) == str(wanted.to_pylist()), name


def test_tables_are_partitioned_and_duckdb_reads_them(tmp_path: Path) -> None:
    log, lake = tmp_path / "log", tmp_path / "lake"
    payloads = [decision(1), decision(3600), decision(2, checkpoint="fraud.login")]
    write_segment(log, 1, 1, payloads, sealed=False)
    ship(log, lake)
    partitions = DeltaTable(f"{lake}/decisions").partitions()
    assert sorted((one["checkpoint"], one["hour"]) for one in partitions) == [
        ("fraud.checkout", "2026-11-01T12"),
        ("fraud.checkout", "2026-11-01T13"),
        ("fraud.login", "2026-11-01T12"),
    ]
    decisions = DeltaTable(f"{lake}/decisions").to_pyarrow_dataset()
    found = duckdb.sql("select decision_id from decisions where hour = '2026-11-01T13'").fetchall()
    assert found == [("d3600",)]
    assert decisions.count_rows() == 3


def test_a_batch_without_decisions_moves_the_position(tmp_path: Path) -> None:
    from shipping import outcome

    log, lake = tmp_path / "log", tmp_path / "lake"
    write_segment(log, 1, 1, [outcome(n) for n in range(1, 5)], sealed=False)
    ship(log, lake)
    position = DeltaSink(section(lake), SERVER).open()
    assert position is not None and position.sequence == 5
    assert DeltaTable(f"{lake}/decisions").to_pyarrow_table().num_rows == 0


def test_servers_share_a_table(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    one, two = write_log(tmp_path / "one", [20]), write_log(tmp_path / "two", [30])
    ship(one, lake, server="a", batches=1)
    ship(two, lake, server="b")
    ship(one, lake, server="a")
    assert delta_keys(str(lake)) == keys_of(one, "a") + keys_of(two, "b")


def test_tables_that_were_committed_before_a_kill_are_not_appended_again(tmp_path: Path) -> None:
    """The outcomes are ahead of the decisions; the log's batches then end elsewhere."""
    log, lake = write_log(tmp_path / "log", [60]), tmp_path / "lake"
    sink = DeltaSink(section(lake), SERVER)
    source = LogSource(log, SERVER, max_records=25, max_bytes=1 << 20)
    batch = source.read(sink.open())
    assert batch is not None
    appended: list[str] = []
    real = sink._append

    def append_some(name: str, rows: Any, batch: Any) -> None:
        if name == DECISIONS:
            raise KeyboardInterrupt
        appended.append(name)
        real(name, rows, batch)

    sink._append = append_some  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        sink.deliver(batch)
    assert set(appended) >= {OUTCOMES, OBSERVATIONS}
    assert DeltaSink(section(lake), SERVER).open() is None
    ship(log, lake, records=10)
    assert delta_keys(str(lake)) == keys_of(log)


def test_a_commit_whose_reply_was_lost_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake = write_log(tmp_path / "log", [60]), tmp_path / "lake"
    real = Tables.append

    def lose_the_reply(self: Tables, *arguments: Any) -> None:
        real(self, *arguments)
        raise SinkUnavailableError("connection reset")

    monkeypatch.setattr(Tables, "append", lose_the_reply)
    for _ in range(5):
        with pytest.raises(SinkUnavailableError):
            ship(log, lake)
    monkeypatch.setattr(Tables, "append", real)
    ship(log, lake)
    assert delta_keys(str(lake)) == keys_of(log)


def test_another_process_with_the_same_id_is_detected(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [30]), tmp_path / "lake"
    copy = tmp_path / "copy"
    shutil.copytree(log, copy)
    first = DeltaSink(section(lake), SERVER)
    source = LogSource(log, SERVER, max_records=5, max_bytes=1 << 20)
    batch = source.read(first.open())
    assert batch is not None
    first.deliver(batch)
    ship(copy, lake, batches=1)  # another host, from where the first one has ended
    later = source.read(batch.end)
    assert later is not None
    with pytest.raises(ShipError, match="another process ships with this id") as stopped:
        first.deliver(later)
    assert not isinstance(stopped.value, SinkUnavailableError) and "\n" not in str(stopped.value)
    ship(log, lake)
    assert delta_keys(str(lake)) == keys_of(log)


def test_of_two_commits_at_the_same_moment_one_fails(tmp_path: Path) -> None:
    """Both processes have read the same version of the table."""
    log, lake = write_log(tmp_path / "log", [5]), tmp_path / "lake"
    ship(log, lake)
    tables = Tables(section(lake), SERVER)
    position = tables.prepare()[DECISIONS]
    assert position is not None
    one, two = tables.load(DECISIONS), tables.load(DECISIONS)
    rows = SCHEMAS[DECISIONS].empty_table()
    tables.append(one, rows, ShipPosition(position.log, 1, position.segment, 7))
    with pytest.raises(ShipError, match="another process ships"):
        tables.append(two, rows, ShipPosition(position.log, 1, position.segment, 8))
    found = tables.position(tables.load(DECISIONS))
    assert found is not None and found.sequence == 7


def test_two_hosts_with_different_logs_and_one_id_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    ship(write_log(tmp_path / "one", [5]), lake)
    import logs

    monkeypatch.setattr(logs, "LOG", bytes(range(16)))
    other = write_log(tmp_path / "two", [50])
    with pytest.raises(ShipError, match="is not the log of server"):
        ship(other, lake)


def test_a_table_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [5]), tmp_path / "lake"
    ship(log, lake)
    table = DeltaTable(f"{lake}/decisions")
    table.alter.set_table_properties({SCHEMA_PROPERTY: str(VERSION + 1)}, raise_if_not_exists=False)
    with pytest.raises(ShipError, match=f"schema version {VERSION + 1}, which a newer") as refused:
        ship(log, lake)
    assert not isinstance(refused.value, SinkUnavailableError)


def test_a_table_that_becomes_newer_meanwhile_is_refused(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [20]), tmp_path / "lake"
    sink = DeltaSink(section(lake), SERVER)
    source = LogSource(log, SERVER, max_records=9, max_bytes=1 << 20)
    batch = source.read(sink.open())
    assert batch is not None
    DeltaTable(f"{lake}/decisions").alter.set_table_properties(
        {SCHEMA_PROPERTY: str(VERSION + 1)}, raise_if_not_exists=False
    )
    with pytest.raises(ShipError, match="newer version"):
        sink.deliver(batch)


_ORIGINAL = SCHEMAS[DECISIONS].names.index("feature_reasons")
_LATER = {*SCHEMAS[DECISIONS].names[_ORIGINAL:], "source", "source_id"}


@contextmanager
def version_1(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ship as a scorer whose tables have none of the columns that later versions have added."""
    old = {
        name: pa.schema([field for field in schema if field.name not in _LATER])
        for name, schema in SCHEMAS.items()
    }
    assert old[DECISIONS] != SCHEMAS[DECISIONS] and old[OBSERVATIONS] != SCHEMAS[OBSERVATIONS]
    with monkeypatch.context() as patch:
        patch.setattr(tables, "SCHEMAS", old)
        patch.setattr(tables, "VERSION", 1)
        patch.setattr(ship_rows, "SCHEMAS", old)
        yield


def reasons_log(directory: Path) -> Path:
    """A log of ten decisions, of which the odd ones have a recorded reason."""
    reason = Reason(code="R01", feature="amount", contribution=0.5, direction=1)
    payloads = [decision(at, feature_reasons=[reason] if at % 2 else [], rules=None) for at in range(10)]
    write_segment(directory, 1, 1, payloads, sealed=False)
    return directory


def table_versions(lake: Path) -> set[str]:
    return {DeltaTable(f"{lake}/{name}").metadata().configuration[SCHEMA_PROPERTY] for name in SCHEMAS}


def test_a_table_of_an_earlier_version_gets_the_new_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake = reasons_log(tmp_path / "log"), tmp_path / "lake"
    with version_1(monkeypatch):
        ship(log, lake, records=4, batches=1)
        assert table_versions(lake) == {"1"}
        files = set(DeltaTable(f"{lake}/decisions").file_uris())
        # A reader of this version reads the table as it is.
        before = ShippedTable(f"{lake}/decisions", DECISIONS, SourceSettings())
        assert before.dataset(before.files).to_table()["feature_reasons"].null_count == 4
    ship(log, lake, records=4)
    assert table_versions(lake) == {str(VERSION)}
    assert files <= set(DeltaTable(f"{lake}/decisions").file_uris()), "no file was rewritten"
    assert delta_keys(str(lake)) == keys_of(log)
    after = ShippedTable(f"{lake}/decisions", DECISIONS, SourceSettings())
    assert after.keeps_rows_since(before.version)
    reason = {"code": "R01", "feature": "amount", "contribution": 0.5, "raises": True}
    expected = [None] * 4 + [[reason] if at % 2 else [] for at in range(4, 10)]
    found = after.dataset(after.files).to_table().sort_by("sequence")
    assert found["feature_reasons"].to_pylist() == expected
    # The files of both versions are merged.
    maintain(section(lake), DECISIONS, search=False)
    merged = DeltaTable(f"{lake}/decisions").to_pyarrow_table().sort_by("sequence")
    assert len(DeltaTable(f"{lake}/decisions").file_uris()) == 1
    assert merged["feature_reasons"].to_pylist() == expected
    assert DeltaTable(f"{lake}/observations").schema().to_arrow().names[-1] == SCHEMAS[OBSERVATIONS].names[-1]


def test_rows_of_an_earlier_version_have_neither_rules_nor_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = [decision(at) for at in range(8)] + [outcome(at) for at in range(8)]
    write_segment(tmp_path / "log", 1, 1, payloads, sealed=False)
    log, lake = tmp_path / "log", tmp_path / "lake"
    with version_1(monkeypatch):
        ship(log, lake, records=12, batches=1)
    ship(log, lake, records=12)
    [server] = DeltaSource(str(lake), SourceSettings()).logs
    found = list(server.read(SourceQuery()))
    [decisions] = [one.rows for one in found if one.kind == "decisions"]
    assert decisions["rules"].null_count == 8, "rules that were not recorded are unknown"
    [rows] = [one.rows for one in found if one.kind == "outcomes"]
    ordered = rows.sort_by("sequence")
    assert ordered["source"].to_pylist() == [0, 0, 0, 0, 1, 2, 3, 4]
    assert ordered["source_id"].to_pylist() == [""] * 5 + ["feed-5", "", "feed-7"]


def test_a_shipper_of_an_earlier_version_refuses_the_upgraded_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running one at its next commit, and a new one at its start. Nothing is lost or doubled."""
    log, lake = reasons_log(tmp_path / "log"), tmp_path / "lake"
    with version_1(monkeypatch):
        sink = DeltaSink(section(lake), SERVER)
        source = LogSource(log, SERVER, max_records=4, max_bytes=1 << 20)
        batch = source.read(sink.open())
        assert batch is not None
        sink.deliver(batch)
        batch = source.read(batch.end)
        assert batch is not None
    ship(reasons_log(tmp_path / "other"), lake, server="b")
    with version_1(monkeypatch):
        for refused in (lambda: sink.deliver(batch), lambda: ship(log, lake)):
            with pytest.raises(ShipError, match=f"schema version {VERSION}, which a newer version"):
                refused()
    source.forget()
    ship(log, lake)
    assert delta_keys(str(lake)) == keys_of(tmp_path / "other", "b") + keys_of(log)


def test_an_upgrade_is_completed_after_a_kill_and_beside_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake = reasons_log(tmp_path / "log"), tmp_path / "lake"
    with version_1(monkeypatch):
        ship(log, lake, batches=1, records=4)
    made = Tables(section(lake), SERVER)
    late = DeltaTable(f"{lake}/decisions")
    added = [one for one in Schema.from_arrow(SCHEMAS[DECISIONS]).fields if one.name == "feature_reasons"]
    DeltaTable(f"{lake}/decisions").alter.add_columns(added)
    assert table_versions(lake) == {"1"}
    with pytest.raises(SinkUnavailableError):
        made._upgrade(DECISIONS, late)
    ship(log, lake)
    assert table_versions(lake) == {str(VERSION)}
    assert delta_keys(str(lake)) == keys_of(log)
    names = DeltaTable(f"{lake}/decisions").schema().to_arrow().names
    assert names.count("feature_reasons") == 1


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "lake/decisions"), pa.table({"a": [1]}))
    with pytest.raises(ShipError, match="is not one of scorer ship"):
        DeltaSink(section(tmp_path / "lake"), SERVER).open()


def test_a_missing_table_is_not_replaced(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [5]), tmp_path / "lake"
    ship(log, lake)
    shutil.rmtree(lake / OUTCOMES)
    with pytest.raises(ShipError, match=r"outcomes.* is missing beside"):
        DeltaSink(section(lake), SERVER).open()


def test_tables_are_completed_after_a_kill_during_their_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    real = Tables._create

    def create(self: Tables, name: str) -> None:
        if name == OBSERVATIONS:
            raise KeyboardInterrupt
        real(self, name)

    monkeypatch.setattr(Tables, "_create", create)
    with pytest.raises(KeyboardInterrupt):
        DeltaSink(section(lake), SERVER).open()
    monkeypatch.setattr(Tables, "_create", real)
    ship(write_log(tmp_path / "log", [5]), lake)
    assert delta_keys(str(lake)).total() == 5


def test_an_incomplete_position_is_refused(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    sink = DeltaSink(section(lake), SERVER)
    sink.open()
    table = DeltaTable(f"{lake}/decisions")
    registers = CommitProperties(app_transactions=[Transaction(f"scorer-ship/{SERVER}/log", 1)])
    table.alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 3 days"}, commit_properties=registers
    )
    with pytest.raises(ShipError, match="incomplete position"):
        sink.open()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ShipError) as refused:
        DeltaSink(section(tmp_path / "file" / "lake"), SERVER).open()
    assert "lake/" in str(refused.value) and "\n" not in str(refused.value)


def test_maintenance_keeps_rows_and_positions(tmp_path: Path) -> None:
    """After compaction, checkpoint and removal of files, every row is there and shipping goes on."""
    log, lake = write_log(tmp_path / "log", [120, 30]), tmp_path / "lake"
    own = {"keep_hours": 0}
    ship(log, lake, records=6, batches=20, **own)
    orphan = lake / "decisions" / "checkpoint=fraud.checkout" / "hour=2026-11-01T12" / "part-orphan.parquet"
    shutil.copy(next((lake / "decisions").rglob("*.parquet")), orphan)
    before = len(DeltaTable(f"{lake}/decisions").file_uris())
    for name in SCHEMAS:
        maintain(section(lake, **own), name, search=False)
    table = DeltaTable(f"{lake}/decisions")
    assert before > 10 and len(table.file_uris()) <= 2
    assert len(list((lake / "decisions").rglob("*.parquet"))) <= len(table.file_uris()) + 3
    assert (lake / "decisions/_delta_log/_last_checkpoint").exists()
    ship(log, lake, **own)
    assert delta_keys(str(lake)) == keys_of(log)


def test_two_processes_that_maintain_a_table_do_not_double_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two compactions that begin at one version would both be committed."""
    log, lake = write_log(tmp_path / "log", [60]), tmp_path / "lake"
    own = section(lake, keep_hours=0)
    ship(log, lake, records=6, batches=10)
    stale = Tables(own, "").load(DECISIONS)
    version = stale.version()
    assert Tables(own, "").lease(DECISIONS, 60)
    # Another process finds the lease, or has read the table before it.
    maintain(own, DECISIONS, search=False)
    with monkeypatch.context() as patched:
        patched.setattr(Tables, "load", lambda *_: stale)
        assert not Tables(own, "").lease(DECISIONS, 60)
    assert DeltaTable(f"{lake}/decisions").version() == version + 1
    Tables(own, "").end_lease(DECISIONS)
    maintain(own, DECISIONS, search=False)
    assert len(DeltaTable(f"{lake}/decisions").file_uris()) < len(stale.file_uris())
    ship(log, lake)
    assert delta_keys(str(lake)) == keys_of(log)


def test_a_lease_of_a_process_that_was_killed_ends_by_itself(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [20]), tmp_path / "lake"
    ship(log, lake)
    tables = Tables(section(lake), "")
    assert tables.lease(DECISIONS, -1)
    assert tables.lease(DECISIONS, 60)
    assert not tables.lease(DECISIONS, 60)


def test_maintenance_is_due_at_each_multiple_of_a_tables_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake = write_log(tmp_path / "log", [60]), tmp_path / "lake"
    due: list[set[str]] = []
    real = Upkeep.committed

    def committed(self: Upkeep, *arguments: Any) -> None:
        real(self, *arguments)
        due.append(set(self._due))
        self._due.clear()

    monkeypatch.setattr(Upkeep, "committed", committed)
    ship(log, lake, records=2, compact_commits=10)
    assert sum(DECISIONS in one for one in due) == 3


def test_a_child_process_maintains_the_tables(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [80]), tmp_path / "lake"
    sink = DeltaSink(section(lake, compact_commits=10, keep_hours=0), SERVER)
    source = LogSource(log, SERVER, max_records=4, max_bytes=1 << 20)
    position = sink.open()
    try:
        while (batch := source.read(position)) is not None:
            sink.deliver(batch)
            position = batch.end
            sink.upkeep()

        assert not sink.finish()
    finally:
        sink.close()
    assert len(DeltaTable(f"{lake}/decisions").file_uris()) < 12
    assert (lake / "decisions/_delta_log/_last_checkpoint").exists()
    assert delta_keys(str(lake)) == keys_of(log)


def test_a_child_that_fails_is_reported(tmp_path: Path) -> None:
    upkeep = Upkeep(section(tmp_path / "nothing", compact_commits=2))
    upkeep.committed(DECISIONS, 1, 2)
    problem = upkeep.finish()
    assert "the maintenance of the tables failed" in problem and "is gone" in problem
    assert "\n" not in problem
    assert not upkeep.finish(), "it is reported once"


def test_records_are_shipped_with_the_checkpoint_of_every_kind(tmp_path: Path) -> None:
    log, lake = write_log(tmp_path / "log", [34]), tmp_path / "lake"
    ship(log, lake)
    rows = delta_rows(str(lake), columns=["checkpoint", "sequence"])
    for row in rows:
        assert row["checkpoint"] == ("action.authorise" if _is_action(row["sequence"]) else "fraud.checkout")


def _is_action(sequence: int) -> bool:
    from scorer.v1.log_pb2 import LogRecord

    return LogRecord.FromString(mixed(sequence)).decision.checkpoint == "action.authorise"
