"""Connections to SQLite and PostgreSQL with the same guarantees.

Both engines run one writer at a time, give readers a consistent snapshot and commit durably.

SQLite uses write-ahead logging. Writers start with BEGIN IMMEDIATE, so that they wait for the lock at the
start and never meet it within the transaction. Readers keep the snapshot of their first statement. With
`synchronous=FULL`, a commit survives a power failure.

On PostgreSQL, writers first take a transaction-scoped advisory lock and then read committed data, so that
each writer sees everything that its predecessor wrote. SERIALIZABLE would abort transactions and require that
every operation can be repeated, including calls of servers. The platform writes a few times a second, so the
lock costs no throughput. Readers use REPEATABLE READ, READ ONLY.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from scorer.errors import ConfigError
from scorer.release.errors import PlatformError, UnreachableError

LOCK_SECONDS = 15
"""Longest wait of a writer for the writers' lock in seconds."""

STALLED_SECONDS = 60
"""Seconds after which PostgreSQL ends an idle transaction, so that a stopped process releases the lock."""

WRITER_LOCK = 0x73636F726572  # "scorer"
"""Key of the advisory lock, which applies to one database."""

SNAPSHOT = "SELECT CAST(txid_current_snapshot() AS text)"
"""Query of PostgreSQL whose result differs after every commit."""

_FORMS = "sqlite:///platform.db, sqlite:////var/lib/scorer/platform.db or postgresql://user@host/database"


def parse(url: str) -> URL:
    """Parse a database URL and set its driver.

    Raises:
        ConfigError: The URL is not of a supported database. The error does not contain the password.
    """
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
    raise ConfigError(f"the platform supports SQLite and PostgreSQL, not {kind}; write the URL like {_FORMS}")


def shown(url: URL) -> str:
    """Return the database's name for messages, without password and options."""
    if url.drivername.startswith("sqlite"):
        return str(url.database)
    host = url.host or str(url.query.get("host", ""))
    return str(URL.create("postgresql", url.username, None, host, url.port, url.database))


def connect(url: URL) -> Engine:
    """Create the engine of a database. A SQLite file is created; a connection is not opened yet."""
    return _sqlite(url) if url.drivername.startswith("sqlite") else _postgresql(url)


class Commits:
    """Reveals commits to a SQLite file by other connections, those of this process included.

    Args:
        url: The database.
    """

    def __init__(self, url: URL) -> None:
        self._path = str(url.database)
        self._connection: sqlite3.Connection | None = None
        # `data_version` is comparable within one connection only.
        self._lock = threading.Lock()

    def version(self) -> int:
        """Return a number that differs after every commit. Raises UnreachableError."""
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = sqlite3.connect(
                        self._path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
                    )
                # All rows are fetched, so that no read transaction stays open.
                ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error as error:
            raise UnreachableError(
                f"database {self._path}: {error}; check its disk, then try again"
            ) from error
        return int(version)

    def close(self) -> None:
        """Close the connection to the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file contains hashes of tokens and addresses of channels. Its WAL inherits the mode.
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
    """Return the execution options of a reading or writing connection."""
    if engine.dialect.name == "sqlite":
        return {"writes": writes}
    if writes:
        return {"writes": True, "isolation_level": "READ COMMITTED", "postgresql_readonly": False}
    return {"writes": False, "isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
