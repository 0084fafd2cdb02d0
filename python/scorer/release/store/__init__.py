"""The platform's database: SQLite by default, or PostgreSQL."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from scorer.durable import network_filesystem
from scorer.errors import ScorerError
from scorer.release.errors import ConflictError, PlatformError, UnreachableError
from scorer.release.store import engine as engines
from scorer.release.store.migrate import migrate
from scorer.release.store.values import dumps, instant, loads, micros, utcnow

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["Store", "dumps", "instant", "loads", "micros", "utcnow"]

_T = TypeVar("_T")
_TRIES = 4

# SQLSTATE codes of PostgreSQL after which the transaction can be repeated.
_RETRYABLE = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "25P03"}


class Store:
    """Opens a database and runs transactions in it."""

    def __init__(self, url: str, *, as_it_is: bool = False) -> None:
        """Open a database, and create or upgrade its tables if needed.

        Args:
            url: URL of a SQLite or PostgreSQL database.
            as_it_is: Whether to leave the tables unchanged, for read-only use.

        Raises:
            ConfigError: The URL is not of a supported database.
            UnreachableError: The database server does not respond or rejects the password.
            PlatformError: The file cannot be written, or the schema is newer than this program.
        """
        parsed = engines.parse(url)
        self.name = engines.shown(parsed)
        if as_it_is and parsed.drivername.startswith("sqlite") and not Path(str(parsed.database)).exists():
            raise PlatformError(f"there is no database {self.name}; check the path")
        self._engine = engines.connect(parsed)
        self._writer = threading.Lock()
        self._owner: int | None = None
        self._commits = engines.Commits(parsed) if self.dialect == "sqlite" else None
        try:
            if self._engine.dialect.name == "sqlite":
                self._use_wal()
            with self.write() as connection:
                migrate(connection, self.name, as_it_is=as_it_is)
        except BaseException:
            self.close()
            raise

    @property
    def dialect(self) -> str:
        """Name of the database engine: `sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read-only transaction with a consistent snapshot."""
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a writing transaction, which is committed durably at the end of the block.

        On both engines, only one writer runs at a time. Keep the block short, and call nothing outside the
        database in it, because all other writers wait. Opening is retried a few times; the block is not
        (see `transact`).

        Raises:
            RuntimeError: This thread is already inside a `write`, which would deadlock.
            UnreachableError: The database does not respond or is busy.
        """
        if self._owner == threading.get_ident():
            message = "a write inside a write deadlocks; pass the connection on"
            raise RuntimeError(message)
        # Threads queue for this lock, because waiting writers of the database would poll.
        if not self._writer.acquire(timeout=2 * engines.LOCK_SECONDS):
            raise UnreachableError(f"database {self.name} is busy with another write; try again")
        self._owner = threading.get_ident()
        try:
            with self._transaction(writes=True) as connection:
                yield connection
        finally:
            self._owner = None
            self._writer.release()

    def transact(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work` in a `write`, up to four times if the database aborts the transaction.

        `work` may run several times, but only its last run is committed.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                with self.write() as connection:
                    return work(connection)
            except UnreachableError as error:
                if attempt == _TRIES or not _is_worth_another_try(error.__cause__):
                    raise
                _pause(attempt)
        raise AssertionError

    def version(self) -> object:
        """Return a value that differs after every commit to the database, of any process.

        While two calls return equal values, nothing has been committed between them.
        """
        if self._commits is not None:
            return self._commits.version()
        with self.read() as connection:
            return connection.exec_driver_sql(engines.SNAPSHOT).scalar()

    def backup(self, path: Path) -> None:
        """Copy a SQLite database to a file while it is in use. The file appears when the copy is complete.

        Raises:
            PlatformError: The file exists or cannot be written, or the database is not SQLite.
        """
        if self.dialect != "sqlite":
            raise PlatformError(f"database {self.name} is in PostgreSQL; back it up with pg_dump -Fc")
        if path.exists():
            raise PlatformError(f"{path} exists already; give another file")
        partial = path.with_name(f"{path.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            partial.touch(mode=0o600)
            with self._engine.connect() as connection:
                source = connection.connection.driver_connection
                assert source is not None  # noqa: S101 - a fresh connection
                with closing(sqlite3.connect(partial)) as copy:
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode=DELETE")  # leaves one file, without a WAL
            partial.replace(path)
        except (OSError, sqlite3.Error) as error:
            partial.unlink(missing_ok=True)
            raise PlatformError(
                f"the backup {path} cannot be written ({error}); give another path"
            ) from error

    def close(self) -> None:
        """Close all connections to the database."""
        if self._commits is not None:
            self._commits.close()
        self._engine.dispose()

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        connection = self._begin(writes=writes)
        try:
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            try:
                connection.commit()
            except DBAPIError as error:
                if writes and error.connection_invalidated:
                    raise UnreachableError(
                        f"the connection to database {self.name} was lost during a commit ({_cause(error)}); "
                        "check whether the change was made before you repeat it"
                    ) from error
                raise
        except StatementError as error:
            self._translate(error)
        finally:
            connection.close()

    def _begin(self, *, writes: bool) -> Connection:
        """Return a connection with an open transaction; a writing one holds the writers' lock."""
        options = engines.options(self._engine, writes=writes)
        for attempt in range(1, _TRIES + 1):
            connection = None
            try:
                connection = self._engine.connect().execution_options(**options)
                connection.begin()
            except (StatementError, PoolTimeoutError) as error:
                if connection is not None:
                    connection.close()
                if attempt == _TRIES or not _is_worth_another_try(error):
                    if isinstance(error, StatementError):
                        self._translate(error)
                    raise UnreachableError(
                        f"database {self.name}: every connection is in use; try again"
                    ) from error
                _pause(attempt)
            else:
                return connection
        raise AssertionError

    def _translate(self, error: StatementError) -> NoReturn:
        """Raise a one-line error with a remedy for an error of the database or of a column's type."""
        if isinstance(error.orig, ScorerError):
            raise error.orig from error
        cause = _cause(error)
        if "not a database" in cause:
            raise PlatformError(
                f"file {self.name} is not a SQLite database, or is damaged: {cause}; "
                "give another file, or restore a backup"
            ) from error
        if not isinstance(error, OperationalError):
            raise error
        lowered = cause.lower()
        remedy = "nothing was changed; check that it runs, then try again"
        if "password" in lowered or "authentication" in lowered:
            remedy = "give the right user and password in the URL, in PGPASSWORD or in ~/.pgpass"
        elif "does not exist" in lowered:
            remedy = "create it, or correct the URL"
        elif "locked" in lowered or "lock timeout" in lowered:
            remedy = "another program is writing to it; nothing was changed: try again"
        elif "readonly" in lowered or "read-only" in lowered:
            raise PlatformError(
                f"database {self.name} cannot be written ({cause}); "
                "give its directory and file to the user that runs the platform"
            ) from error
        elif "full" in lowered or "space" in lowered:
            raise PlatformError(f"database {self.name}: {cause}; free space on its disk") from error
        raise UnreachableError(f"database {self.name}: {cause}; {remedy}") from error

    def _use_wal(self) -> None:
        """Switch a SQLite file to write-ahead logging, so that the writer does not block readers."""
        if kind := network_filesystem(Path(self.name)):
            raise PlatformError(
                f"database {self.name} is on a network file system ({kind}), where SQLite's write-ahead log "
                "does not work; put it on a local disk, or use PostgreSQL (postgresql://user@host/name)"
            )
        for attempt in range(1, _TRIES + 1):
            try:
                with self._engine.connect() as connection:
                    raw = connection.connection.driver_connection
                    assert raw is not None  # noqa: S101 - a fresh connection
                    mode = raw.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            except DatabaseError as error:
                if attempt == _TRIES or not isinstance(error, OperationalError):
                    self._translate(error)
            else:
                if mode == "wal":
                    return
                raise PlatformError(
                    f"database {self.name} cannot use a write-ahead log (it stays in mode {mode}); "
                    "put it on a local disk"
                )
            _pause(attempt)


def conflict(what: str) -> ConflictError:
    """Return the error for a write that is based on an outdated version."""
    return ConflictError(f"{what} was changed concurrently; load it again and repeat")


def _cause(error: StatementError) -> str:
    """Return the driver's message in one line. Drivers do not include passwords in messages."""
    return " ".join(str(error.orig).split())


def _is_worth_another_try(error: BaseException | None) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return bool(error.connection_invalidated) or state in _RETRYABLE


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)  # noqa: S311 - jitter, not a secret
