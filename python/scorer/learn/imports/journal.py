"""The progress of an import on disk, so that one that was ended continues where it was."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from scorer.learn.errors import DataError

_FORMAT: Final = 1
_KEPT: Final = 10_000
"""Limit on the rejected rows that are stored with their reasons. All are counted."""


class ImportJournal:
    """A SQLite file with the number of rows that are done, counts by result, and rows that servers rejected.

    One process at a time can have it open. A commit is on disk when it returns.

    Args:
        path: The file; it is created if it does not exist.
        about: What identifies the import: the file's digest, the checkpoint and the options.

    Raises:
        DataError: The journal belongs to another import, is used by another process, or cannot be written.
    """

    def __init__(self, path: Path, about: Mapping[str, str]) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, timeout=0.5, isolation_level=None)
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("BEGIN EXCLUSIVE")
            self._connection.execute("CREATE TABLE IF NOT EXISTS about (content TEXT NOT NULL)")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS progress (rows INTEGER NOT NULL, counts TEXT NOT NULL)"
            )
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS rejected (row INTEGER PRIMARY KEY, reason TEXT NOT NULL)"
            )
            mine = json.dumps({"format": str(_FORMAT), **about}, sort_keys=True)
            found = self._connection.execute("SELECT content FROM about").fetchone()
            if found is None:
                self._connection.execute("INSERT INTO about VALUES (?)", (mine,))
                self._connection.execute("INSERT INTO progress VALUES (0, '{}')")
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            why = "another import uses it" if "locked" in str(error) else str(error)
            raise DataError(
                f'journal "{path}": {why}; wait for the other import, or name another file with --journal'
            ) from None
        if found is not None and found[0] != mine:
            self.close()
            raise DataError(
                f'journal "{path}" is that of another import: {_difference(found[0], mine)}; repeat the '
                "import with the same file and options, or name another file with --journal"
            )

    @property
    def rows(self) -> int:
        """Number of rows of the file that are done."""
        found: tuple[int] = self._connection.execute("SELECT rows FROM progress").fetchone()
        return found[0]

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows by result."""
        found = self._connection.execute("SELECT counts FROM progress").fetchone()
        counts: dict[str, int] = json.loads(found[0])
        return counts

    def rejected(self, most: int = _KEPT) -> list[tuple[int, str]]:
        """Return the first rows that servers rejected, with their reasons."""
        query = "SELECT row, reason FROM rejected ORDER BY row LIMIT ?"
        return [(row, reason) for row, reason in self._connection.execute(query, (most,))]

    def commit(self, rows: int, counts: Mapping[str, int], rejected: Sequence[tuple[int, str]]) -> None:
        """Store progress: the number of rows that are done, results to add, and rejected rows.

        Raises:
            DataError: The journal cannot be written.
        """
        total = self.counts
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
        kept = self._connection.execute("SELECT count(*) FROM rejected").fetchone()[0]
        try:
            self._connection.execute("BEGIN")
            self._connection.executemany(
                "INSERT OR REPLACE INTO rejected VALUES (?, ?)", rejected[: max(_KEPT - kept, 0)]
            )
            self._connection.execute("UPDATE progress SET rows = ?, counts = ?", (rows, json.dumps(total)))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise DataError(f'journal "{self._path}" cannot be written: {error}') from None

    def close(self) -> None:
        """Close the file, so that another process can open it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _difference(theirs: str, mine: str) -> str:
    one, other = json.loads(theirs), json.loads(mine)
    name = next(key for key in sorted({*one, *other}) if one.get(key) != other.get(key))
    return f"{name} was {one.get(name) or 'not set'} and is {other.get(name) or 'not set'}"
