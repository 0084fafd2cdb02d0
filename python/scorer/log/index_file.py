"""A SQLite file that can be rebuilt, which threads and processes of one machine may share.

Only a damaged file is replaced. A file that is locked, or on a full disk, is kept: rebuilding it would take
long and help nothing. Such an error is reported after a bounded wait.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import ClassVar, TypeVar

from scorer.errors import LogError
from scorer.sqlite_errors import is_busy, is_damage, is_full

T = TypeVar("T")

BUSY_SECONDS = 5.0
"""Longest wait for the file while another process writes to it, and for another thread of this process."""


class IndexFile:
    """Base of indexes in one SQLite file.

    Args:
        path: The SQLite file. A damaged file is replaced by an empty one.
        clock: Returns seconds, for time limits.
        busy_seconds: Longest wait for another process or thread that uses the file, in seconds.
    """

    TABLES: ClassVar[str]
    """Statements that create the tables if they do not exist."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self._path = path
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the connection to the file."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _entered(self) -> Iterator[bool]:
        """Wait for other threads; give whether this one may use the connection now."""
        free = self._lock.acquire(timeout=self._busy_seconds)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    def _tried(self, work: Callable[[], T]) -> T:
        """Use the file. SQLite retries for `busy_seconds` while another process has it locked.

        Raises:
            LogError: The file cannot be used now.
            sqlite3.DatabaseError: The file is damaged, or the error is a defect.
        """
        try:
            return work()
        except sqlite3.DatabaseError as error:
            self._disconnect()
            if is_damage(error) or not isinstance(error, sqlite3.OperationalError):
                raise
            raise LogError(f'index "{self._path}": {self._explained(error)}') from error

    def _explained(self, error: sqlite3.OperationalError) -> str:
        """Return what prevents the use of the file, and the remedy."""
        if is_busy(error):
            return (
                f"another process has had it locked for {self._busy_seconds:g} s ({error}); "
                "try again in a moment"
            )
        if is_full(error):
            return f"{error}; free space on its disk"
        return f"{error}; check its disk and permissions (it may be deleted, and is then built anew)"

    def _taken(self) -> LogError:
        """Return the error that other threads use the connection."""
        return LogError(
            f'index "{self._path}": other requests have used it for {self._busy_seconds:g} s; '
            "try again in a moment"
        )

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=self._busy_seconds, check_same_thread=False)
            try:
                # The index can be rebuilt from the logs, so a commit that is lost in a power failure does no
                # harm.
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = OFF")
                connection.executescript(self.TABLES)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _delete(self) -> None:
        """Delete a damaged file. It is created again when it is opened."""
        self._disconnect()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
