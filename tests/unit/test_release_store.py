"""Tests of the store on both engines: one writer at a time, atomic transactions, one-line errors."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from importlib import resources
from pathlib import Path

import components
import pytest
import schema_0001
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given
from hypothesis import strategies as st
from postgres import Postgres
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.exc import DatabaseError, DBAPIError, IntegrityError

from scorer.errors import ConfigError
from scorer.release.errors import InvalidError, PlatformError, UnreachableError
from scorer.release.model import LaneSpec
from scorer.release.store import Store, dumps, instant, loads, micros, tables
from scorer.release.store import engine as engines
from scorer.release.store.keys import SharedKeys
from scorer.release.store.leader import Leader

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def test_written_rows_are_read(store: Store) -> None:
    with store.write() as connection:
        connection.execute(insert(tables.users).values(name="ada", created_at=NOW))
        connection.execute(
            insert(tables.cursors).values(name="log", position={"b": [1, 2.5, None], "a": "ä"}, at=NOW)
        )
    with store.read() as connection:
        user = connection.execute(select(tables.users)).one()
        cursor = connection.execute(select(tables.cursors)).one()
    assert (user.name, user.admin, user.created_at) == ("ada", False, NOW)
    assert cursor.position == {"b": [1, 2.5, None], "a": "ä"}


def test_a_failed_write_leaves_no_rows(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.write() as connection:
        connection.execute(insert(tables.users).values(name="ada", created_at=NOW))
        _ = 1 / 0
    with store.read() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.users)) == 0


def test_a_reader_cannot_write(store: Store) -> None:
    with pytest.raises((DBAPIError, PlatformError)), store.read() as connection:
        connection.execute(insert(tables.users).values(name="ada", created_at=NOW))
    with store.write() as connection:  # the connection that was refused can write afterwards
        connection.execute(insert(tables.users).values(name="ada", created_at=NOW))


def test_a_reader_keeps_its_view(store: Store) -> None:
    count = select(func.count()).select_from(tables.users)
    with store.read() as reader:
        assert reader.scalar(count) == 0
        with store.write() as connection:
            connection.execute(insert(tables.users).values(name="ada", created_at=NOW))
        assert reader.scalar(count) == 0
    with store.read() as reader:
        assert reader.scalar(count) == 1


def test_foreign_keys_are_enforced(store: Store) -> None:
    with pytest.raises(IntegrityError), store.write() as connection:
        connection.execute(
            insert(tables.members).values(
                project="none", user="nobody", role="viewer", added_by="ada", added_at=NOW
            )
        )


def test_writers_take_turns_across_stores(database_url: str) -> None:
    """Threads of two stores read and write one row, as two processes do. No update is lost."""
    stores = [Store(database_url), Store(database_url)]
    with stores[0].write() as connection:
        connection.execute(insert(tables.cursors).values(name="n", position=0, at=NOW))

    def add(store: Store) -> None:
        for _ in range(15):
            with store.write() as connection:
                value = connection.scalar(select(tables.cursors.c.position))
                connection.execute(update(tables.cursors).values(position=value + 1))

    threads = [threading.Thread(target=add, args=(stores[index % 2],)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with stores[1].read() as connection:
        assert connection.scalar(select(tables.cursors.c.position)) == 8 * 15
    for store in stores:
        store.close()


def test_a_write_inside_a_write_is_refused_at_once(store: Store) -> None:
    with (
        pytest.raises(RuntimeError, match="a write inside a write"),
        store.write(),
        store.write(),
    ):
        pass
    with store.write():  # and the lock is released
        pass


def test_a_new_database_is_at_the_newest_revision(empty_database_url: str) -> None:
    store = Store(empty_database_url)
    with store.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    store.close()


def test_an_upgraded_database_has_every_constraint_of_a_new_one(tmp_path: Path) -> None:
    """Unlike alembic, the test also compares checks, AUTOINCREMENT, partial indexes and triggers."""
    create_revision_0001(f"sqlite:///{tmp_path}/upgraded.db")
    constraints = []
    for name in ("upgraded", "new"):
        Store(f"sqlite:///{tmp_path}/{name}.db").close()
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
            rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
            constraints.append(
                {
                    # A column that was added later is after the constraints, before the last bracket.
                    row[0]: sorted(
                        bare for part in re.split(r"[,\n]", row[1]) if (bare := part.strip().rstrip(")"))
                    )
                    for row in rows
                }
            )
    assert {"alembic_version", "ix_outbox_waiting", "audit_no_update"} <= constraints[0].keys()
    assert constraints[0] == constraints[1]


def test_a_database_of_the_first_schema_is_upgraded_with_its_data(empty_database_url: str) -> None:
    """The database has revision 0001 and rows in all tables that later revisions change."""
    create_revision_0001(empty_database_url)
    store = Store(empty_database_url)
    with store.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
        change = connection.execute(select(tables.changes)).one()
        table = connection.execute(select(tables.recorded_tables)).one()
    assert change.state == "observing"
    assert (change.id, change.title, change.created_at) == ("cr-000001", "Deeper trees", NOW)
    assert (table.revision, table.answer) == (1, (LaneSpec("live", "b", share=1.0),))
    assert SharedKeys(store, "forms").has_signed("x", SharedKeys(store, "forms").sign("x"))
    store.close()


def test_a_key_is_replaced_and_the_previous_one_is_still_accepted(store: Store) -> None:
    """Two processes with different clocks accept each other's signatures at any time."""
    now, seconds = [NOW], [0.0]
    one, two = (
        SharedKeys(store, "forms", days=30, now=lambda: now[0], clock=lambda: seconds[0]) for _ in range(2)
    )
    first = one.sign("form")
    assert two.has_signed("form", first) and two.sign("form") == first
    now[0] += timedelta(days=30)
    seconds[0] += 120
    second = one.sign("form")  # this call replaces the key
    seconds[0] += 2
    assert second != first
    assert one.has_signed("form", first)
    assert two.has_signed("form", second) and two.has_signed("form", first)
    assert two.sign("form") == second
    now[0] += timedelta(days=30)
    seconds[0] += 120
    third = two.sign("form")
    assert len({first, second, third}) == 3
    seconds[0] += 2
    assert one.has_signed("form", third) and one.has_signed("form", second)
    assert not one.has_signed("form", first)
    assert not one.has_signed("another", third) and not one.has_signed("form", "")
    assert not SharedKeys(store, "other").has_signed("form", third)


def create_revision_0001(url: str) -> None:
    """Create the tables of revision 0001, with one change that is observed and one recorded table."""
    engine = engines.connect(engines.parse(url))
    rows = {
        "projects": {
            "name": "checkout",
            "title": "Checkout",
            "open_changes": 5,
            "slot_minutes_per_week": 100,
            "bundles": 5,
            "checkpoints": "[]",
            "created_at": micros(NOW),
        },
        "changes": {
            "id": "cr-000001",
            "project": "checkout",
            "kind": "test",
            "checkpoint": "fraud.checkout",
            "bundle": "b",
            "bundle_name": "fraud",
            "title": "Deeper trees",
            "description": "",
            "state": "auditing",
            "step": "measure",
            "note": "",
            "minutes": 5.0,
            "stages": "[]",
            "holdout": 0.0,
            "gates": "[]",
            "created_by": "ada",
            "created_at": micros(NOW),
            "updated_at": micros(NOW),
            "version": 3,
            "authors": '["ada"]',
            "finish": False,
            "failures": 0,
        },
        "recorded_tables": {
            "checkpoint": "fraud.checkout",
            "revision": 1,
            "answer": dumps([{"name": "live", "bundle": "b", "share": 1.0}]),
            "observe": "[]",
            "at": micros(NOW),
            "actor": "platform",
            "cause": "found",
            "alias_done": True,
        },
    }
    options = engines.options(engine, writes=True)
    with engine.connect().execution_options(**options) as connection, connection.begin():
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            schema_0001.create()
        context.stamp(ScriptDirectory(str(resources.files("scorer.release.store") / "migrations")), "0001")
        for table, values in rows.items():
            columns = ", ".join(values)
            places = ", ".join(f":{name}" for name in values)
            connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({places})"), values)
    engine.dispose()


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT id FROM changes WHERE state IN ('booked') ORDER BY number", "ix_changes_state"),
        (
            "SELECT * FROM changes WHERE project = 'a' ORDER BY number DESC LIMIT 50",
            "ix_changes_project_number",
        ),
        ("SELECT * FROM outbox WHERE channel = 1 ORDER BY id DESC LIMIT 50", "ix_outbox_channel_id"),
        ("DELETE FROM outbox WHERE ended_at < 1", "ix_outbox_ended_at"),
    ],
)
def test_frequent_queries_use_an_index(tmp_path: Path, query: str, index: str) -> None:
    Store(f"sqlite:///{tmp_path}/a.db").close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        plan = " ".join(str(row[3]) for row in database.execute(f"EXPLAIN QUERY PLAN {query}"))
    assert f"USING INDEX {index}" in plan
    assert "TEMP B-TREE" not in plan or index == "ix_changes_state"


def test_processes_that_start_together_migrate_once(empty_database_url: str) -> None:
    code = "import sys; from scorer.release.store import Store; Store(sys.argv[1]).close()"
    started = [
        subprocess.Popen([sys.executable, "-c", code, empty_database_url], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in started:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr.decode()
    store = Store(empty_database_url)
    with store.read() as connection:
        assert connection.scalars(text("SELECT version_num FROM alembic_version")).all() == ["0015"]
    store.close()


def test_a_newer_schema_is_refused(store: Store, database_url: str) -> None:
    with store.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(PlatformError, match="schema 9999, which is newer than this program") as refused:
        Store(database_url)
    assert "\n" not in str(refused.value)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE orders (id INTEGER)")
    other.close()
    with pytest.raises(PlatformError, match=r"has tables of another program \(orders"):
        Store(f"sqlite:///{tmp_path}/other.db")


@pytest.mark.parametrize(
    "statement",
    [
        update(tables.audit).values(actor="mallory"),
        delete(tables.audit),
        delete(tables.audit_head),
    ],
)
def test_the_audit_log_cannot_be_changed(store: Store, statement: object) -> None:
    with store.write() as connection:
        connection.execute(
            insert(tables.audit).values(
                sequence=1, at=0, actor="a", via="", action="", object="", project="", details="{}",
                previous="", hash="",
            )
        )  # fmt: skip
    with pytest.raises(DatabaseError, match="append-only"), store.write() as connection:
        connection.execute(statement)  # type: ignore[call-overload]


def test_text_that_one_engine_cannot_store_is_refused_by_both(store: Store) -> None:
    for name in ("a\0b", "a\ud800b"):
        with pytest.raises(InvalidError, match="send plain Unicode text"), store.write() as connection:
            connection.execute(insert(tables.users).values(name=name, created_at=NOW))
        with pytest.raises(InvalidError), store.read() as connection:
            connection.execute(select(tables.users).where(tables.users.c.name == name)).all()


def test_transact_repeats_a_transaction_that_the_database_aborted(postgresql: Postgres) -> None:
    store = Store(postgresql.url(postgresql.database()))
    runs = []

    def work(connection: object) -> int:
        runs.append(1)
        if len(runs) == 1:  # as an administrator or a restart does
            pid = connection.scalar(text("SELECT pg_backend_pid()"))  # type: ignore[attr-defined]
            with store.read() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        connection.execute(insert(tables.users).values(name="ada", created_at=NOW))  # type: ignore[attr-defined]
        return len(runs)

    assert store.transact(work) == 2
    with store.read() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.users)) == 1
    store.close()


def test_a_store_works_after_a_restart_of_the_database_server() -> None:
    components.require("PostgreSQL")
    with Postgres() as server:
        store = Store(server.url(server.database()))
        with store.write() as connection:
            connection.execute(insert(tables.users).values(name="ada", created_at=NOW))
        server.stop()
        with pytest.raises(UnreachableError, match="nothing was changed"), store.read():
            pass
        server.start()
        with store.read() as connection:
            assert connection.scalar(select(tables.users.c.name)) == "ada"
        store.close()


def test_the_error_of_a_wrong_password_is_one_line_without_it(postgresql: Postgres) -> None:
    with pytest.raises(UnreachableError) as refused:
        Store(postgresql.tcp_url(password="battery staple"))
    text = str(refused.value)
    assert "give the right user and password" in text
    assert "battery" not in text
    assert "\n" not in text
    assert f"scorer@127.0.0.1:{postgresql.port}/postgres" in text
    opened = Store(postgresql.tcp_url(postgresql.database()))
    assert "horse" not in opened.name
    opened.close()


def test_a_missing_database_and_a_missing_server_are_reported(postgresql: Postgres) -> None:
    with pytest.raises(UnreachableError, match="create it, or correct the URL"):
        Store(postgresql.url("nowhere"))
    with pytest.raises(UnreachableError, match="check that it runs"):
        Store("postgresql://scorer@127.0.0.1:1/platform")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("not a url", "cannot be read"),
        ("mysql://u:secret@h/d", "SQLite and PostgreSQL, not mysql"),
        ("sqlite://", "must be a plain file"),
        ("sqlite:///:memory:", "must be a plain file"),
        ("postgresql://u:secret@h:port/d", "cannot be read"),
    ],
)
def test_a_wrong_url_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        Store(url)
    assert "secret" not in str(refused.value)


def test_a_file_that_cannot_be_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(PlatformError, match="cannot be written"):
        Store(f"sqlite:///{tmp_path}/directory")
    (tmp_path / "text").write_text("no database at all" * 100)
    with pytest.raises(PlatformError, match="not a database"):
        Store(f"sqlite:///{tmp_path}/text")


def test_the_file_is_accessible_only_to_its_owner(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/new/platform.db")
    with store.write() as connection:
        connection.execute(insert(tables.users).values(name="ada", created_at=NOW))
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    assert set(modes.values()) == {0o600}
    assert "platform.db-wal" in modes
    store.close()


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7, minutes=-30))])))
def test_times_are_read_exactly(at: datetime) -> None:
    assert instant(micros(at)) == at


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_is_read_unchanged_and_is_canonical(value: object) -> None:
    assert loads(dumps(value)) == value
    assert dumps(loads(dumps(value))) == dumps(value)


def test_invalid_json_and_times_are_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        micros(datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="JSON"):
        dumps({"x": float("nan")})
    with pytest.raises(TypeError, match="not a string"):
        dumps({1: 2})


def test_one_process_leads_at_a_time(store: Store) -> None:
    clock = [NOW]
    first, second = (Leader(store, name, seconds=10, now=lambda: clock[0]) for name in ("a", "b"))
    assert first.lead()
    assert not second.lead()
    clock[0] += timedelta(seconds=9)
    assert first.lead()
    clock[0] += timedelta(seconds=9)
    assert not second.lead()
    clock[0] += timedelta(seconds=2)
    assert second.lead()
    assert not first.lead()
    second.resign()
    assert first.lead()
    clock[0] -= timedelta(days=400)  # the clock is set back, and no process waits for a year
    assert second.lead()


def test_a_backup_of_a_database_in_use_is_consistent(store: Store, tmp_path: Path) -> None:
    """A backup contains all committed transactions and no part of an open one."""
    if store.dialect == "postgresql":
        with pytest.raises(PlatformError, match="pg_dump"):
            store.backup(tmp_path / "copy.db")
        return
    with store.write() as connection:
        connection.execute(insert(tables.users).values(name="ada", created_at=NOW))
    with store.write() as connection:
        connection.execute(insert(tables.users).values(name="bob", created_at=NOW))
        store.backup(tmp_path / "copy.db")
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    copy = Store(f"sqlite:///{tmp_path}/copy.db")
    with copy.read() as connection:
        assert connection.scalars(select(tables.users.c.name)).all() == ["ada"]
    copy.close()
    with pytest.raises(PlatformError, match="exists already"):
        store.backup(tmp_path / "copy.db")
    with pytest.raises(PlatformError, match="cannot be written"):
        store.backup(tmp_path / "nowhere" / "copy.db")


def test_read_only_commands_create_no_database(empty_database_url: str, tmp_path: Path) -> None:
    """Otherwise a mistyped path would create an empty database, in which every hash is correct."""
    with pytest.raises(PlatformError, match=r"there is no database|no tables of the platform"):
        Store(empty_database_url, as_it_is=True)
    assert list(tmp_path.iterdir()) == []
    Store(empty_database_url).close()
    Store(empty_database_url, as_it_is=True).close()
