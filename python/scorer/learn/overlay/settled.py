"""What the overlay keeps of each decision with a known outcome, in one file per hour of the decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer.durable import write_atomically
from scorer.learn.join.hashing import Hashes, is_among
from scorer.learn.overlay.delays import HOUR_MS
from scorer.stats.arrays import Ints

ROW: Final = np.dtype(
    [
        ("hash", "<u8"),
        ("time_ms", "<i8"),
        ("settled_ms", "<i8"),
        ("logit", "<f8"),
        ("segment", "<i4"),
        ("action", "<i2"),
        ("reward", "i1"),
    ]
)
"""Hash of the decision's id, times, the oracle's logit (NaN: the oracle has learned from the decision), code
of the segment, position in the catalogue, and 0 or 1."""

Rows = npt.NDArray[Any]


class SettledRows:
    """Rows of `ROW` in files by the hour in which the decisions were made.

    Changes are written to new files. `commit` removes those that are not used any more, after the names of
    the new ones are stored.

    Args:
        directory: Directory of the files.
        files: Names by hour, as `files` returned them before.
        run: A number that no earlier run has used, for the names of new files.
    """

    def __init__(self, directory: Path, files: Mapping[int, str], run: int) -> None:
        self._directory, self._run = directory, run
        self.files = dict(files)
        """Names of the files by hour since the Unix epoch."""

    def replace(self, hashes: Hashes, hours: Ints, new: Rows) -> Rows:
        """Replace the rows of some decisions.

        Args:
            hashes: Hashes of their ids, ascending.
            hours: Hours in which their present rows may be.
            new: Their rows from now on.

        Returns:
            The rows that are new and those that are not there any more; unchanged ones are not among them.
        """
        new_hours = new["time_ms"] // HOUR_MS
        present = set(hours.tolist()) & set(self.files)
        changed = [np.empty(0, ROW)]
        for hour in sorted({*present, *new_hours.tolist()}):
            before = self._read(hour)
            of_these = is_among(before["hash"], hashes)
            old, own = np.sort(before[of_these], order=_KEY), np.sort(new[new_hours == hour], order=_KEY)
            if old.tobytes() == own.tobytes():
                continue
            changed += [_without(old, own), _without(own, old)]
            self._write(hour, np.concatenate([before[~of_these], own]))
        return np.concatenate(changed)

    def append(self, new: Rows) -> None:
        """Add rows of decisions that have none."""
        if not len(new):
            return
        hours = new["time_ms"] // HOUR_MS
        order = np.argsort(hours, kind="stable")
        found, begins = np.unique(hours[order], return_index=True)
        for hour, part in zip(found.tolist(), np.split(new[order], begins[1:]), strict=True):
            path = self._directory / self.files.setdefault(hour, self._name(hour))
            with path.open("ab") as file:
                file.write(part.tobytes())

    def between(self, first_ms: int, last_ms: int) -> Iterator[Rows]:
        """Yield the rows of decisions from one time to another, both included, hour by hour."""
        for hour in sorted(self.files):
            if first_ms // HOUR_MS <= hour <= last_ms // HOUR_MS:
                rows = self._read(hour)
                inside = (rows["time_ms"] >= first_ms) & (rows["time_ms"] <= last_ms)
                yield rows if inside.all() else rows[inside]

    @property
    def count(self) -> int:
        """Number of rows that are stored."""
        return sum((self._directory / name).stat().st_size for name in self.files.values()) // ROW.itemsize

    def commit(self) -> None:
        """Remove the files that are not used any more."""
        used = set(self.files.values())
        for path in self._directory.glob("*.rows"):
            if path.name not in used:
                path.unlink()

    def _read(self, hour: int) -> Rows:
        if hour not in self.files:
            return np.empty(0, ROW)
        return np.fromfile(self._directory / self.files[hour], ROW)

    def _write(self, hour: int, rows: Rows) -> None:
        if not len(rows):
            del self.files[hour]
            return
        self.files[hour] = self._name(hour)
        write_atomically(self._directory / self.files[hour], rows.tobytes())

    def _name(self, hour: int) -> str:
        return f"{hour}-{self._run}.rows"


_KEY: Final = ["hash", "time_ms", "settled_ms", "action"]


def _without(rows: Rows, others: Rows) -> Rows:
    """Return the rows that are not among others, compared byte by byte."""
    known = {one.tobytes() for one in others}
    return rows[[one.tobytes() not in known for one in rows]] if known else rows
