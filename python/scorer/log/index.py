"""An index from decision ids to the sequences of their records, in one SQLite file.

The file can be deleted at any time, because it is rebuilt from the logs. Every record of a decision is one
row of about 25 bytes with a hash of the id, the log and the sequence. Indexing a million records takes about
10 s, newest segments first; later updates take a few milliseconds. A lookup reads one or two segments.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from scorer.ids import decision_key
from scorer.log.index_file import IndexFile
from scorer.log.reading import LogReader
from scorer.log.scanning import scan
from scorer.log.segments import SegmentFile, segment_files
from scorer.sqlite_errors import is_damage

_CHUNK = 20_000


class DecisionIndex(IndexFile):
    """An index over logs; see `IndexFile` for its arguments."""

    TABLES = """
CREATE TABLE IF NOT EXISTS logs (id INTEGER PRIMARY KEY, path TEXT UNIQUE, uuid BLOB);
CREATE TABLE IF NOT EXISTS segments (
    log INTEGER, number INTEGER, upto INTEGER, done INTEGER, PRIMARY KEY (log, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER, log INTEGER, sequence INTEGER, PRIMARY KEY (id, log, sequence)
) WITHOUT ROWID;
"""

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
                raise self._taken()
            try:
                return self._tried(lambda: self._places(decision_id))
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._delete()
                return None

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
