"""The database: SQLite by default, PostgreSQL by URL."""

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

# What PostgreSQL says of a transaction that may simply be run again.
_AGAIN = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "25P03"}


class Store:
    """Tables and transactions; made current by alembic when it is opened."""

    def __init__(self, url: str, *, as_it_is: bool = False) -> None:
        """Opens, and migrates where needed; `as_it_is` neither makes nor migrates one, for who only looks.

        Raises:
            ConfigError: For a URL that is none of ours.
            UnreachableError: For a server that does not answer or refuses the password.
            PlatformError: For a file that cannot be written, and a schema newer than this program.
        """
        parsed = engines.parse(url)
        self.name = engines.shown(parsed)
        if as_it_is and parsed.drivername.startswith("sqlite") and not Path(str(parsed.database)).exists():
            raise PlatformError(f"there is no database {self.name}; check the path")
        self._engine = engines.connect(parsed)
        self._writer = threading.Lock()
        self._owner: int | None = None
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
        """A consistent view; nothing can be written."""
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction: all of it or nothing; one writer at a time, on either engine.

        Keep it short, and call nothing outside the database in it: everybody else waits. It is over, and
        durable, when the block has been left. Beginning is tried again within bounds; the block is not
        (`transact` does that).

        Raises:
            RuntimeError: Inside another `write` of this thread, which would wait for itself.
            UnreachableError: The database is away or busy.
        """
        if self._owner == threading.get_ident():
            message = "a write inside a write waits for itself; pass the connection on"
            raise RuntimeError(message)
        # Threads queue here, in turn, rather than at the database, which would have them poll.
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
        """Runs `work` in a `write`, again (at most four times) where the database took the transaction back.

        `work` may therefore run several times; only its last run is kept.
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

    def backup(self, path: Path) -> None:
        """A consistent copy of a SQLite database while it is in use; the file appears when it is complete.

        Raises:
            PlatformError: The file is there already or cannot be written, or the database is PostgreSQL.
        """
        if self.dialect != "sqlite":
            raise PlatformError(f"database {self.name} is PostgreSQL's; back it up with pg_dump -Fc")
        if path.exists():
            raise PlatformError(f"{path} is there already; name another file")
        partial = path.with_name(f"{path.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            partial.touch(mode=0o600)
            with self._engine.connect() as connection:
                source = connection.connection.driver_connection
                assert source is not None  # noqa: S101 - a fresh connection
                with closing(sqlite3.connect(partial)) as copy:
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode=DELETE")  # one file, whatever reads it
            partial.replace(path)
        except (OSError, sqlite3.Error) as error:
            partial.unlink(missing_ok=True)
            raise PlatformError(
                f"the backup {path} cannot be written ({error}); name another place"
            ) from error

    def close(self) -> None:
        """Lets go of the connections."""
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
                        f"database {self.name} went away while it committed ({_cause(error)}); "
                        "look whether it was done before asking again"
                    ) from error
                raise
        except StatementError as error:
            self._translate(error)
        finally:
            connection.close()

    def _begin(self, *, writes: bool) -> Connection:
        """A connection whose transaction has begun, the writers' lock held."""
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
        """One line with the remedy for what the database or a column's type says; other errors stay."""
        if isinstance(error.orig, ScorerError):
            raise error.orig from error
        cause = _cause(error)
        if "not a database" in cause:
            raise PlatformError(
                f"database {self.name} is a file of something else (or damaged): {cause}; "
                "name another file, or restore a backup"
            ) from error
        if not isinstance(error, OperationalError):
            raise error
        lowered = cause.lower()
        remedy = "nothing was changed; see that it runs, then try again"
        if "password" in lowered or "authentication" in lowered:
            remedy = "give the right user and password in the URL, in PGPASSWORD or in ~/.pgpass"
        elif "does not exist" in lowered:
            remedy = "create it, or correct the URL"
        elif "locked" in lowered or "lock timeout" in lowered:
            remedy = "another program keeps writing; nothing was changed, try again"
        elif "readonly" in lowered or "read-only" in lowered:
            raise PlatformError(
                f"database {self.name} cannot be written ({cause}); "
                "give its directory and file to the user that runs the platform"
            ) from error
        elif "full" in lowered or "space" in lowered:
            raise PlatformError(f"database {self.name}: {cause}; make room on its disk") from error
        raise UnreachableError(f"database {self.name}: {cause}; {remedy}") from error

    def _use_wal(self) -> None:
        """Write-ahead log, once per file: readers and the writer do not wait for each other."""
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
    """For a write that found another version than the one it was based on."""
    return ConflictError(f"{what} has been changed meanwhile; load it again and repeat")


def _cause(error: StatementError) -> str:
    """What the driver says, in one line; drivers do not repeat passwords."""
    return " ".join(str(error.orig).split())


def _is_worth_another_try(error: BaseException | None) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return bool(error.connection_invalidated) or state in _AGAIN


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)  # noqa: S311 - spreads tries, guards nothing
