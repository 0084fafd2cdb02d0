"""The state of drift detection: one SQLite file with counts of hours, positions in logs, and alerts.

The counts hold no identity: no entity, no id of a decision, no value of a feature. What is remembered of a
decision, to add its outcome and to recognise duplicates, is a 64-bit hash of its id with its time, lane and
bins. The file can be deleted while nothing uses it; counting then begins with the first record of the logs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from scorer.durable import network_filesystem
from scorer.errors import LogError
from scorer.sqlite_errors import is_busy, is_damage
from scorer.stats.arrays import Floats, Ints

VERSION: Final = 1
_BUSY_SECONDS: Final = 30.0
_TABLES: Final = """
CREATE TABLE logs (name TEXT PRIMARY KEY, identity TEXT NOT NULL, next INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE series (
    id INTEGER PRIMARY KEY, checkpoint TEXT NOT NULL, lane TEXT NOT NULL, role TEXT NOT NULL,
    bundle TEXT NOT NULL, kind TEXT NOT NULL, since INTEGER NOT NULL,
    UNIQUE (checkpoint, lane, role, bundle, kind)
);
CREATE TABLE features (
    id INTEGER PRIMARY KEY, checkpoint TEXT NOT NULL, name TEXT NOT NULL, bins TEXT NOT NULL,
    UNIQUE (checkpoint, name)
);
CREATE TABLE names (
    id INTEGER PRIMARY KEY, checkpoint TEXT NOT NULL, what TEXT NOT NULL, name TEXT NOT NULL,
    UNIQUE (checkpoint, what, name)
);
CREATE TABLE early (checkpoint TEXT NOT NULL, bundle TEXT NOT NULL, series INTEGER NOT NULL,
    hour INTEGER NOT NULL, features BLOB NOT NULL);
CREATE INDEX early_place ON early (checkpoint, bundle);
CREATE TABLE cells (
    series INTEGER NOT NULL, kind TEXT NOT NULL, hour INTEGER NOT NULL, codes BLOB NOT NULL,
    counts BLOB NOT NULL, PRIMARY KEY (series, kind, hour)
) WITHOUT ROWID;
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER UNIQUE NOT NULL, series INTEGER NOT NULL,
    at INTEGER NOT NULL, score INTEGER NOT NULL, segments BLOB NOT NULL, rank INTEGER NOT NULL,
    positive INTEGER NOT NULL, delay INTEGER NOT NULL
);
CREATE TABLE reports (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER UNIQUE NOT NULL, rank INTEGER NOT NULL,
    positive INTEGER NOT NULL, received INTEGER NOT NULL
);
CREATE TABLE looks (
    checkpoint TEXT NOT NULL, lane TEXT NOT NULL, next INTEGER NOT NULL, findings TEXT NOT NULL,
    PRIMARY KEY (checkpoint, lane)
) WITHOUT ROWID;
CREATE TABLE alerts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, checkpoint TEXT NOT NULL, lane TEXT NOT NULL,
    opened INTEGER NOT NULL, last INTEGER NOT NULL, quantities TEXT NOT NULL, evidence TEXT NOT NULL,
    told INTEGER NOT NULL DEFAULT 0
);
"""


class DriftState:
    """Opens the file for its one writer, and for readers.

    Args:
        path: The file, which is created if it is absent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: sqlite3.Connection | None = None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, which is committed durably at the end of the block, or not at all.

        Raises:
            LogError: The file cannot be written, is damaged, or is of another version.
        """
        try:
            if self._writer is None:
                self._writer = self._opened()
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._problem(error) from error

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Open a snapshot for reading; None if nothing has been counted yet.

        Raises:
            LogError: The file cannot be read, or is of another version.
        """
        if not self.path.is_file():
            yield None
            return
        place = self.path.absolute().as_posix().replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        try:
            connection = sqlite3.connect(
                f"file:{place}?mode=ro", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
            )
            try:
                self._check(connection)
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise self._problem(error) from error

    def close(self) -> None:
        """Close the writer's connection to the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            # A write-ahead log needs memory that all processes share, which a network file system lacks.
            mode = "DELETE" if network_filesystem(self.path.parent) else "WAL"
            connection.execute(f"PRAGMA journal_mode = {mode}")
            connection.execute("PRAGMA synchronous = FULL")
            if _version(connection) == 0:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        found = _version(connection)
        if found != VERSION:
            raise LogError(
                f'drift state "{self.path}" has version {found}, and this program reads {VERSION}; delete '
                "the file, which begins counting anew, or use the program that wrote it"
            )

    def _problem(self, error: sqlite3.Error) -> LogError:
        if is_damage(error):
            remedy = "it is damaged; delete it, and counting begins anew"
        elif is_busy(error):
            remedy = "another process uses it; stop the other one, or name another file"
        else:
            remedy = "free space on its disk, or make it readable and writable"
        return LogError(f'drift state "{self.path}" cannot be used ({error}): {remedy}')


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def add(
    connection: sqlite3.Connection, kind: str, series: Ints, hours: Ints, codes: Ints, signs: Ints
) -> None:
    """Add changes of counts to cells.

    Args:
        connection: The writer's transaction.
        kind: Kind of the cells: features `f`, scores and labels `s`, outcomes `o` or segments `g`.
        series: `[n]` numbers of series.
        hours: `[n]` hours since the Unix epoch.
        codes: `[n]` codes within a cell, below 2^32.
        signs: `[n]` 1 or -1.
    """
    if not len(series):
        return
    order = np.lexsort((codes, hours, series))
    series, hours, codes, signs = series[order], hours[order], codes[order], signs[order]
    new_cell = np.flatnonzero((np.diff(series) != 0) | (np.diff(hours) != 0)) + 1
    for begin, end in zip([0, *new_cell.tolist()], [*new_cell.tolist(), len(series)], strict=True):
        own, places = np.unique(codes[begin:end], return_inverse=True)
        change = np.bincount(places.reshape(-1), weights=signs[begin:end]).astype(np.int64)
        place = int(series[begin]), kind, int(hours[begin])
        where = "series = ? AND kind = ? AND hour = ?"
        row = connection.execute(f"SELECT codes, counts FROM cells WHERE {where}", place).fetchone()  # noqa: S608
        if row is not None:
            known = np.frombuffer(row[0], "<u4").astype(np.int64)
            both = np.union1d(known, own)
            total = np.zeros(len(both), np.int64)
            total[np.searchsorted(both, known)] = np.frombuffer(row[1], "<u4")
            total[np.searchsorted(both, own)] += change
            own, change = both, total
        kept = change > 0
        blobs = own[kept].astype("<u4").tobytes(), change[kept].astype("<u4").tobytes()
        connection.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?)", (*place, *blobs))


def dense(connection: sqlite3.Connection, series: int, kind: str, begin: int, end: int, width: int) -> Floats:
    """Return the counts of a series in the hours from `begin` to before `end`, `[end - begin, width]`."""
    found = np.zeros((end - begin, width))
    query = "SELECT hour, codes, counts FROM cells WHERE series = ? AND kind = ? AND hour >= ? AND hour < ?"
    for hour, codes, counts in connection.execute(query, (series, kind, begin, end)):
        places = np.frombuffer(codes, "<u4")
        inside = places < width
        found[hour - begin, places[inside]] += np.frombuffer(counts, "<u4")[inside]
    return found
