"""The file of the rollups: one SQLite database in the platform's data directory, which can be deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scorer.durable import network_filesystem
from scorer.release.timeseries.adding import add_days
from scorer.release.timeseries.firings import TABLES as FIRINGS

VERSION: Final = 2
_WITHOUT_DAYS: Final = 1
"""Version whose files have no cells of days. The writer adds them; until then, readers add up hours."""
_CACHE_KIB: Final = 64 << 10
"""Limit on the memory that SQLite keeps pages in."""
_BUSY_SECONDS: Final = 30.0

_TABLES: Final = """
CREATE TABLE logs (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, next INTEGER NOT NULL);
CREATE TABLE series (
    id INTEGER PRIMARY KEY, checkpoint TEXT NOT NULL, server TEXT NOT NULL, lane TEXT NOT NULL,
    role TEXT NOT NULL, bundle TEXT NOT NULL, kind TEXT NOT NULL, since INTEGER NOT NULL,
    UNIQUE (checkpoint, server, lane, role, bundle, kind)
);
CREATE TABLE labels (
    checkpoint TEXT NOT NULL, id INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (checkpoint, name)
) WITHOUT ROWID;
CREATE TABLE bins (bundle TEXT PRIMARY KEY, edges TEXT NOT NULL, counts TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE cells (
    step INTEGER NOT NULL, series INTEGER NOT NULL, at INTEGER NOT NULL,
    codes BLOB NOT NULL, counts BLOB NOT NULL, PRIMARY KEY (step, series, at)
);
CREATE TABLE decisions (
    key INTEGER NOT NULL, log INTEGER NOT NULL, sequence INTEGER NOT NULL, at INTEGER NOT NULL,
    series INTEGER NOT NULL, exec INTEGER NOT NULL, load INTEGER NOT NULL, score INTEGER NOT NULL,
    label INTEGER NOT NULL, flag INTEGER NOT NULL
);
CREATE INDEX decisions_key ON decisions (key);
CREATE TABLE reports (
    key INTEGER NOT NULL, log INTEGER NOT NULL, sequence INTEGER NOT NULL, rank INTEGER NOT NULL,
    positive INTEGER NOT NULL, counts INTEGER NOT NULL, kinds TEXT NOT NULL, unknown INTEGER NOT NULL,
    received_at INTEGER NOT NULL, token_series INTEGER NOT NULL, token_at INTEGER NOT NULL,
    series INTEGER NOT NULL, at INTEGER NOT NULL
);
CREATE INDEX reports_key ON reports (key);
"""


class RollupFile:
    """Opens the file for its one writer, and for any number of readers.

    Args:
        path: The file. It is created if it is absent, and made anew if it is damaged or of another version:
            counting then begins anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: sqlite3.Connection | None = None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, which is committed durably at the end of the block, or not at all."""
        if self._writer is None:
            self._writer = self._opened()
        connection = self._writer
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if is_damage(error):
                self.close()
                self._remove()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Open a snapshot for reading; None if nothing has been counted yet."""
        if not self.path.is_file():
            yield None
            return
        connection = sqlite3.connect(
            f"file:{self.path.as_posix().replace('?', '%3f').replace('#', '%23')}?mode=ro",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
        )
        try:
            if _version(connection) not in (_WITHOUT_DAYS, VERSION):
                yield None
                return
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()

    def close(self) -> None:
        """Close the writer's connection to the database file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = self._connected()
            if _version(connection) == _WITHOUT_DAYS:
                _upgrade(connection)
            if _version(connection) == VERSION:
                return connection
            connection.close()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
        self._remove()
        return self._connected()

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA page_size = 8192")
            # A write-ahead log needs memory that all processes share, which a network file system lacks.
            mode = "DELETE" if network_filesystem(self.path.parent) else "WAL"
            connection.execute(f"PRAGMA journal_mode = {mode}")
            # The position of the platform's own cursor is durable, so this one is too.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            connection.execute("CREATE TEMP TABLE wanted (key INTEGER PRIMARY KEY)")
            if _version(connection) == 0:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
            connection.executescript(f"BEGIN; {FIRINGS} COMMIT;")
        except BaseException:
            connection.close()
            raise
        return connection

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def has_days(connection: sqlite3.Connection) -> bool:
    """Whether the file has cells of days."""
    return _version(connection) != _WITHOUT_DAYS


def is_damage(error: BaseException) -> bool:
    """Whether an error says that the file is not a sound SQLite database."""
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _upgrade(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        add_days(connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        connection.close()
        raise
