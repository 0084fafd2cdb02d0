"""One behaviour of two engines: one writer at a time, consistent reading, durable commits.

SQLite: WAL; writers BEGIN IMMEDIATE, so a lock is waited for at the start and never met in the middle;
readers keep the snapshot of their first statement; `synchronous=FULL` makes a commit survive a power cut.

PostgreSQL: writers take one transaction-scoped advisory lock before anything else and then read committed
data: each writer sees all that the one before it wrote, as with SQLite. SERIALIZABLE would have
every operation run again at some time, in code that calls servers; a platform writes a few times a second,
so nothing is lost by the lock. Readers have REPEATABLE READ, READ ONLY.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from scorer.errors import ConfigError
from scorer.release.errors import PlatformError

LOCK_SECONDS = 15
"""How long a writer waits for the one before it."""

STALLED_SECONDS = 60
"""PostgreSQL ends a transaction that says nothing for so long: a stopped process gives the lock back."""

WRITER_LOCK = 0x73636F726572  # "scorer"
"""Key of the advisory lock; advisory locks belong to one database."""

_FORMS = "sqlite:///platform.db, sqlite:////var/lib/scorer/platform.db or postgresql://user@host/database"


def parse(url: str) -> URL:
    """The URL with its driver. Raises ConfigError, without repeating a password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(f"the database's URL cannot be read; write it like {_FORMS}") from None
    kind = parsed.drivername.partition("+")[0]
    if kind == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
            raise ConfigError(f"the platform's SQLite database must be a plain file; write it like {_FORMS}")
        return parsed.set(drivername="sqlite+pysqlite")
    if kind in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise ConfigError(
        f"the platform runs on SQLite and PostgreSQL, not on {kind}; write its URL like {_FORMS}"
    )


def shown(url: URL) -> str:
    """How it is called in messages: no password, no options."""
    if url.drivername.startswith("sqlite"):
        return str(url.database)
    host = url.host or str(url.query.get("host", ""))
    return str(URL.create("postgresql", url.username, None, host, url.port, url.database))


def connect(url: URL) -> Engine:
    """An engine that behaves as the module says; SQLite's file is made, nothing else is opened yet."""
    return _sqlite(url) if url.drivername.startswith("sqlite") else _postgresql(url)


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # It holds hashes of tokens and addresses of channels; its WAL inherits the mode.
        path.touch(mode=0o600, exist_ok=True)
        with path.open("r+b"):
            pass
    except OSError as error:
        raise PlatformError(
            f"database {path} cannot be written ({error.strerror}); "
            "give its directory and file to the user that runs the platform"
        ) from error
    engine = create_engine(
        url, connect_args={"timeout": LOCK_SECONDS, "isolation_level": None}, pool_timeout=30
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: Any) -> None:
        for pragma in ("foreign_keys=ON", "recursive_triggers=ON", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: URL) -> Engine:
    engine = create_engine(
        url,
        connect_args={"connect_timeout": 5, "application_name": "scorer-platform"},
        pool_pre_ping=True,
        pool_timeout=30,
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.autocommit = True
        for setting in (
            f"lock_timeout = '{LOCK_SECONDS}s'",
            f"idle_in_transaction_session_timeout = '{STALLED_SECONDS}s'",
            "synchronous_commit = on",
            "timezone = 'UTC'",
        ):
            connection.execute(f"SET {setting}")
        connection.autocommit = False

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        if connection.get_execution_options().get("writes", False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")

    return engine


def options(engine: Engine, *, writes: bool) -> dict[str, Any]:
    """Execution options of a connection that reads, or writes."""
    if engine.dialect.name == "sqlite":
        return {"writes": writes}
    if writes:
        return {"writes": True, "isolation_level": "READ COMMITTED", "postgresql_readonly": False}
    return {"writes": False, "isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
