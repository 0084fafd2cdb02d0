"""An index over the files of shipped tables: which rows a file has, and where the records of a decision are.

Files of a table never change, so each is read once, and only the columns that say where its rows belong. The
index can be deleted at any time, because it is rebuilt from the tables. A row takes about 30 bytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from scorer.errors import LogError
from scorer.ids import decision_key
from scorer.log.index_file import IndexFile
from scorer.sqlite_errors import is_damage

T = TypeVar("T")

_FILE: Final = "SELECT id FROM files WHERE url = ? AND name = ? AND path = ?"


class FileExtent(NamedTuple):
    """The rows of one segment in one file.

    Attributes:
        server: Id of the server.
        log: UUID of the log.
        segment: Name of the segment.
        first: Lowest sequence.
        last: Highest sequence.
        rows: Number of rows.
    """

    server: str
    log: str
    segment: str
    first: int
    last: int
    rows: int


class RowPlace(NamedTuple):
    """Where a row that may be of a decision is.

    Attributes:
        server: Id of the server.
        log: UUID of the log.
        table: Name of the table, such as "decisions".
        sequence: Sequence of the record.
    """

    server: str
    log: str
    table: str
    sequence: int


class TableIndex(IndexFile):
    """An index over the files of shipped tables; see `IndexFile` for its arguments."""

    TABLES = """
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY, url TEXT, name TEXT, path TEXT, UNIQUE (url, name, path)
);
CREATE TABLE IF NOT EXISTS logs (
    id INTEGER PRIMARY KEY, url TEXT, server TEXT, log TEXT, UNIQUE (url, server, log)
);
CREATE TABLE IF NOT EXISTS extents (
    file INTEGER, log INTEGER, segment TEXT, first INTEGER, last INTEGER, rows INTEGER,
    PRIMARY KEY (file, log, segment)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (
    id INTEGER, log INTEGER, sequence INTEGER, name TEXT, PRIMARY KEY (id, log, sequence, name)
) WITHOUT ROWID;
"""

    def extents(self, url: str, name: str) -> dict[str, tuple[FileExtent, ...]]:
        """Return the rows of all indexed files of a table by the file's path.

        Args:
            url: Address of the tables.
            name: Name of the table.

        Raises:
            LogError: The index cannot be used now.
        """
        query = (
            "SELECT path, server, log, segment, first, last, rows FROM ("
            "SELECT files.id AS file, files.path AS path FROM files WHERE url = ? AND name = ?"
            ") LEFT JOIN (SELECT extents.file AS of, server, logs.log AS log, segment, first, last, rows "
            "FROM extents JOIN logs ON logs.id = extents.log) ON of = file"
        )

        def read() -> dict[str, tuple[FileExtent, ...]]:
            found: dict[str, list[FileExtent]] = {}
            for path, *extent in self._open().execute(query, (url, name)):
                own = found.setdefault(path, [])
                if extent[0] is not None:
                    own.append(FileExtent(*extent))
            return {path: tuple(own) for path, own in found.items()}

        return self._used(read)

    def add_rows(self, url: str, name: str, rows: Sequence[tuple[str, str, int, str]]) -> None:
        """Add rows of decisions. Rows that are there already are skipped.

        Args:
            url: Address of the tables.
            name: Name of the table.
            rows: Server, log, sequence and decision id of each row.

        Raises:
            LogError: The index cannot be used now.
        """

        def write() -> None:
            connection = self._open()
            with connection:
                logs = self._logs(connection, url, {row[:2] for row in rows})
                connection.executemany(
                    "INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)",
                    [
                        (decision_key(decision, signed=True), logs[server, log], sequence, name)
                        for server, log, sequence, decision in rows
                    ],
                )

        self._used(write)

    def add_file(self, url: str, name: str, path: str, extents: Collection[FileExtent]) -> None:
        """Add a file, of which all rows have been added.

        Args:
            url: Address of the tables.
            name: Name of the table.
            path: Path of the file below the table.
            extents: Its rows.

        Raises:
            LogError: The index cannot be used now.
        """

        def write() -> None:
            connection, place = self._open(), (url, name, path)
            with connection:
                logs = self._logs(connection, url, {(one.server, one.log) for one in extents})
                connection.execute("INSERT OR IGNORE INTO files (url, name, path) VALUES (?, ?, ?)", place)
                [file] = connection.execute(_FILE, place).fetchone()
                connection.executemany(
                    "INSERT OR REPLACE INTO extents VALUES (?, ?, ?, ?, ?, ?)",
                    [(file, logs[one.server, one.log], *one[2:]) for one in extents],
                )

        self._used(write)

    def forget(
        self, url: str, name: str, paths: Collection[str], oldest: Mapping[tuple[str, str], int]
    ) -> None:
        """Remove files, and the rows before the oldest ones that the tables still have.

        Args:
            url: Address of the tables.
            name: Name of the table.
            paths: Paths of the files below the table.
            oldest: Lowest sequence by server and log, of logs whose oldest rows were removed.

        Raises:
            LogError: The index cannot be used now.
        """

        def write() -> None:
            connection = self._open()
            with connection:
                for path in paths:
                    found = connection.execute(_FILE, (url, name, path)).fetchone()
                    if found is not None:
                        connection.execute("DELETE FROM extents WHERE file = ?", found)
                        connection.execute("DELETE FROM files WHERE id = ?", found)
                logs = self._logs(connection, url, oldest)
                connection.executemany(
                    "DELETE FROM rows WHERE log = ? AND sequence < ?",
                    [(logs[log], first) for log, first in oldest.items()],
                )

        self._used(write)

    def places(self, url: str, decision_id: str) -> list[RowPlace]:
        """Return where the rows of a decision may be. Rows of another id may have the same hash.

        Raises:
            LogError: The index cannot be used now.
        """
        query = (
            "SELECT server, logs.log, name, sequence FROM rows JOIN logs ON logs.id = rows.log "
            "WHERE rows.id = ? AND url = ? ORDER BY server, logs.log, sequence"
        )
        key = decision_key(decision_id, signed=True)
        return self._used(lambda: [RowPlace(*row) for row in self._open().execute(query, (key, url))])

    @staticmethod
    def _logs(
        connection: sqlite3.Connection, url: str, wanted: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], int]:
        """Return the ids of logs by server and UUID."""
        found = {}
        for server, log in wanted:
            place = (url, server, log)
            connection.execute("INSERT OR IGNORE INTO logs (url, server, log) VALUES (?, ?, ?)", place)
            query = "SELECT id FROM logs WHERE url = ? AND server = ? AND log = ?"
            [found[server, log]] = connection.execute(query, place).fetchone()
        return found

    def _used(self, work: Callable[[], T]) -> T:
        """Use the file, alone among the threads of this process. A damaged file is deleted.

        Raises:
            LogError: The file cannot be used now, or was damaged.
        """
        with self._entered() as free:
            if not free:
                raise self._taken()
            try:
                return self._tried(work)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._delete()
                raise LogError(
                    f'index "{self._path}" was damaged and is built anew from the tables; try again later'
                ) from None
