"""An index from decision ids to the sequences of their records, in one SQLite file.

The file can be deleted at any time, because it is rebuilt from the logs. Every record of a decision is one
row of about 25 bytes with a hash of the id, the log and the sequence. Indexing a million records takes about
10 s, newest segments first; later updates take a few milliseconds. A lookup reads one or two segments.

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
from typing import TypeVar

from scorer.errors import LogError
from scorer.ids import decision_key
from scorer.log.reading import LogReader
from scorer.log.scanning import scan
from scorer.log.segments import SegmentFile, segment_files
from scorer.sqlite_errors import is_busy, is_damage, is_full

T = TypeVar("T")

_CHUNK = 20_000
_BUSY_SECONDS = 5.0
"""Longest wait for the file while another process writes to it, and for another thread of this process."""

_TABLES = """
CREATE TABLE IF NOT EXISTS logs (id INTEGER PRIMARY KEY, path TEXT UNIQUE, uuid BLOB);
CREATE TABLE IF NOT EXISTS segments (
    log INTEGER, number INTEGER, upto INTEGER, done INTEGER, PRIMARY KEY (log, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER, log INTEGER, sequence INTEGER, PRIMARY KEY (id, log, sequence)
) WITHOUT ROWID;
"""


class DecisionIndex:
    """An index over logs, which threads and processes of one machine may share.

    Args:
        path: The SQLite file. A damaged file is replaced by an empty one.
        clock: Returns seconds, for the time limit of `update`.
        busy_seconds: Longest wait for another process or thread that uses the file, in seconds.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        busy_seconds: float = _BUSY_SECONDS,
    ) -> None:
        self._path = path
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None

    def update(self, log: Path, *, seconds: float) -> bool:
        """Index the new records of a log.

        Args:
            log: The log's directory.
            seconds: Time limit. It is checked after every 20,000 rows.

        Returns:
            Whether all records are indexed. If not, the time limit was reached, or another thread is
            indexing; call again to continue.

        Raises:
            LogError: The directory is not a log, or cannot be read; or the index cannot be written now,
                because another process has it locked or its disk is full. What is indexed is kept.
        """
        with self._entered() as free:
            if not free:
                return False
            try:
                return self._tried(lambda: self._update(log, self._clock() + seconds))
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._delete()
                return self._tried(lambda: self._update(log, self._clock() + seconds))

    def places(self, decision_id: str) -> dict[Path, list[int]] | None:
        """Return, for each log, the sequences of the records of a decision.

        Records of another decision whose id has the same hash may be among them, so the caller must compare
        the ids.

        Returns:
            The sequences by log; None: the file was damaged and is empty now, so that `update` has to be
            called first.

        Raises:
            LogError: The index cannot be read now, because it is locked.
        """
        with self._entered() as free:
            if not free:
                raise LogError(
                    f'index "{self._path}": other requests have used it for {self._busy_seconds:g} s; '
                    "try again in a moment"
                )
            try:
                return self._tried(lambda: self._places(decision_id))
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._delete()
                return None

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

    def _places(self, decision_id: str) -> dict[Path, list[int]]:
        rows = self._open().execute(
            "SELECT logs.path, sequence FROM entries JOIN logs ON logs.id = log WHERE entries.id = ? "
            "ORDER BY logs.path, sequence",
            (decision_key(decision_id, signed=True),),
        )
        found: dict[Path, list[int]] = {}
        for path, sequence in rows:
            found.setdefault(Path(path), []).append(sequence)
        return found

    def _update(self, log: Path, deadline: float) -> bool:
        segments = segment_files(log)
        if not segments:
            LogReader(log)  # raises if the directory is not a log
            return True
        log_id = self._log(log, segments)
        rows = self._open().execute("SELECT number, upto, done FROM segments WHERE log = ?", (log_id,))
        known = {number: (upto, bool(done)) for number, upto, done in rows}
        following: int | None = None
        for segment in segments:
            upto, done = known.get(segment.number, (segment.first, False))
            if not done and not self._take(log, log_id, segment, upto, following, deadline):
                return False
            following = segment.first
        return True

    def _take(
        self, log: Path, log_id: int, segment: SegmentFile, upto: int, following: int | None, deadline: float
    ) -> bool:
        """Index one segment from the sequence `upto` to the start of the next one; False at the deadline."""
        rows: list[tuple[int, int, int]] = []
        for entry in scan(log, start_sequence=upto):
            if following is not None and entry.sequence >= following:
                break
            upto = entry.sequence + 1
            if entry.decision_id is not None:
                rows.append((decision_key(entry.decision_id, signed=True), log_id, entry.sequence))
            if len(rows) >= _CHUNK:
                self._keep(rows, log_id, segment.number, upto, done=False)
                rows = []
                if self._clock() > deadline:
                    return False
        self._keep(rows, log_id, segment.number, upto, done=following is not None)
        return True

    def _keep(
        self, rows: list[tuple[int, int, int]], log_id: int, number: int, upto: int, *, done: bool
    ) -> None:
        connection = self._open()
        with connection:
            connection.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?)", rows)
            connection.execute(
                "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?)", (log_id, number, upto, done)
            )

    def _log(self, log: Path, segments: list[SegmentFile]) -> int:
        """Return the id of a log. Delete the rows of another log that was in the same directory before."""
        connection, uuid = self._open(), segments[0].log
        with connection:
            connection.execute("INSERT OR IGNORE INTO logs (path, uuid) VALUES (?, ?)", (str(log), uuid))
            query = "SELECT id, uuid FROM logs WHERE path = ?"
            log_id, before = connection.execute(query, (str(log),)).fetchone()
            if before != uuid:
                connection.execute("DELETE FROM entries WHERE log = ?", (log_id,))
                connection.execute("DELETE FROM segments WHERE log = ?", (log_id,))
                connection.execute("UPDATE logs SET uuid = ? WHERE id = ?", (uuid, log_id))
            oldest = segments[-1]
            gone = connection.execute(
                "DELETE FROM segments WHERE log = ? AND number < ?", (log_id, oldest.number)
            )
            if gone.rowcount:
                connection.execute(
                    "DELETE FROM entries WHERE log = ? AND sequence < ?", (log_id, oldest.first)
                )
        return int(log_id)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=self._busy_seconds, check_same_thread=False)
            try:
                # The index can be rebuilt from the logs, so a commit that is lost in a power failure does no
                # harm.
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = OFF")
                connection.executescript(_TABLES)
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
