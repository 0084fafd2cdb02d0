"""The registry's SQLite file: the list of bundles, and the history of every alias."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from urllib.parse import quote

from scorer.durable import network_filesystem
from scorer.errors import RegistryUnavailableError

FILE = "registry.sqlite"
_SCHEMA_VERSION = 1
_BUSY_SECONDS = 10.0
# If the file system has fewer free bytes than this, an input/output error is reported as lack of space.
_LEAST_FREE = 1 << 16

_SCHEMA = """
CREATE TABLE bundles (
    digest       TEXT PRIMARY KEY,      -- hex
    name         TEXT NOT NULL,
    kind         TEXT NOT NULL,
    created_at   TEXT NOT NULL,         -- as the manifest has it
    pushed_at_ms INTEGER NOT NULL,
    pushed_by    TEXT NOT NULL,
    bytes        INTEGER NOT NULL
) STRICT;
CREATE TABLE alias_history (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    name     TEXT NOT NULL,
    alias    TEXT NOT NULL,
    digest   TEXT NOT NULL REFERENCES bundles (digest),
    previous TEXT,                      -- what the alias pointed to until then
    action   TEXT NOT NULL CHECK (action IN ('alias', 'rollback')),
    at_ms    INTEGER NOT NULL,
    by       TEXT NOT NULL,
    reason   TEXT NOT NULL
) STRICT;
CREATE INDEX alias_history_by_alias ON alias_history (name, alias, sequence);
CREATE TRIGGER alias_history_keeps_rows BEFORE DELETE ON alias_history
    BEGIN SELECT RAISE(ABORT, 'the alias history is append-only'); END;
CREATE TRIGGER alias_history_keeps_values BEFORE UPDATE ON alias_history
    BEGIN SELECT RAISE(ABORT, 'the alias history is append-only'); END;
"""


class Database:
    """Access to the file, which is opened for each use. SQLite's locks serialise concurrent writers.

    Args:
        directory: The registry's directory.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read-only connection for the duration of the context."""
        connection = self.open_reader()
        try:
            with self._translated():
                yield connection
        finally:
            connection.close()

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a transaction that takes the write lock at its start.

        No other process can therefore change a row between the transaction's reads and its writes.

        Args:
            create: Create the file if it does not exist.

        Raises:
            RegistryUnavailableError: The file is missing, locked for longer than 10 s, damaged, read-only, of
                another schema version, or there is no space left.
        """
        with self._translated():
            if not create and not self.path.exists():
                raise self.missing()
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            try:
                connection.execute("PRAGMA foreign_keys = ON")
                # With FULL, an acknowledged change survives a power failure. In WAL mode NORMAL does not
                # guarantee that.
                connection.execute("PRAGMA synchronous = FULL")
                self._use_journal(connection)
                connection.execute("BEGIN IMMEDIATE")
                try:
                    self._migrate(connection)
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
            finally:
                connection.close()

    def open_reader(self) -> sqlite3.Connection:
        """Open a read-only connection, which the caller closes. The directory itself may be read-only."""
        with self._translated():
            if not self.path.exists():
                raise self.missing()
            if (kind := network_filesystem(self.path.parent)) and self._has_wal_format():
                # The file was written by an older scorer in WAL mode. On a network file system the shared
                # memory of the write-ahead log, which holds its locks and its index, does not work.
                if self._has_wal():
                    raise RegistryUnavailableError(
                        f'"{self.path}" has a write-ahead log on a network file system ({kind}); stop '
                        "whatever writes it, and move an alias with this scorer, which changes its format"
                    )
                return self._connect("immutable=1")
            try:
                return self._connect("mode=ro")
            except sqlite3.OperationalError:
                if _is_writable(self.path.parent) or self._has_wal():
                    raise
                # The directory is read-only and the write-ahead log is empty, so no locks are needed.
                return self._connect("immutable=1")

    def _use_journal(self, connection: sqlite3.Connection) -> None:
        """Use a write-ahead log on a local disk, and a rollback journal on a network file system.

        A write-ahead log needs memory that all processes map from one file. A rollback journal needs only the
        file system's locks, so it also works between machines.
        """
        kind = network_filesystem(self.path.parent)
        wanted = "delete" if kind else "wal"
        mode = connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()[0]
        if kind and mode != wanted:
            raise RegistryUnavailableError(
                f'"{self.path}" is on a network file system ({kind}) and keeps its write-ahead log, since '
                "another process has it open; stop that one and try again"
            )

    def _has_wal(self) -> bool:
        wal = self.path.with_name(FILE + "-wal")
        return wal.exists() and wal.stat().st_size > 0

    def _has_wal_format(self) -> bool:
        with self.path.open("rb") as file:
            # Bytes 18 and 19 of the header are the write and read versions; 2 means WAL.
            return file.read(20)[18:20] == b"\x02\x02"

    def missing(self) -> RegistryUnavailableError:
        """Return the error for a registry without its file."""
        directory = self.path.parent
        if not directory.is_dir():
            return RegistryUnavailableError(
                f'registry "{directory}" does not exist; check the path, or make it with `scorer '
                "registry push`"
            )
        return RegistryUnavailableError(
            f'registry "{directory}" has no {FILE}; restore it from a backup, or run `scorer registry '
            "reindex` "
            "(aliases must then be set again)"
        )

    def _connect(self, mode: str) -> sqlite3.Connection:
        # check_same_thread is off because the watcher calls from the threads of a pool, one at a time.
        connection = sqlite3.connect(
            f"file:{quote(str(self.path.absolute()))}?{mode}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self._check_version(version)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            # `executescript` would commit first, but the statements must be part of this transaction.
            for statement in _statements(_SCHEMA):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
            return
        self._check_version(version)

    def _check_version(self, version: int) -> None:
        if version != _SCHEMA_VERSION:
            raise RegistryUnavailableError(
                f'"{self.path}" has schema version {version}, this scorer reads {_SCHEMA_VERSION}; '
                "use the scorer version that wrote it, or another file"
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._explain(error) from error
        except PermissionError as error:
            raise RegistryUnavailableError(
                f'"{error.filename}" cannot be opened: {error.strerror}'
            ) from error

    def _explain(self, error: sqlite3.DatabaseError) -> RegistryUnavailableError:
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return RegistryUnavailableError(
                f'"{self.path}" is damaged ({error}); restore it from a backup, or move it away and run '
                "`scorer registry reindex` (aliases must then be set again)"
            )
        if primary == sqlite3.SQLITE_READONLY or (
            primary == sqlite3.SQLITE_CANTOPEN and not _is_writable(self.path.parent)
        ):
            return RegistryUnavailableError(
                f'registry "{self.path.parent}" is read-only; change it where it may be written'
            )
        if primary == sqlite3.SQLITE_BUSY:
            return RegistryUnavailableError(
                f'"{self.path}" was locked by another process for {_BUSY_SECONDS:g} s; try again'
            )
        # If SQLite's auxiliary files cannot grow, it reports an input/output error instead of a full disk.
        full = primary == sqlite3.SQLITE_IOERR and disk_usage(self.path.parent).free < _LEAST_FREE
        if primary == sqlite3.SQLITE_FULL or full:
            return RegistryUnavailableError(f'no space left for "{self.path}"; free some and try again')
        return RegistryUnavailableError(f'"{self.path}" cannot be used: {error}')


def _is_writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
