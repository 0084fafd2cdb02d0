"""Addition of changes of counts to the cells in the file of the rollups."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

import numpy as np

from scorer.release.timeseries import cells
from scorer.release.timeseries.cells import WIDTH
from scorer.release.timeseries.expiry import DAY, HOUR
from scorer.stats.arrays import Ints

_START_BITS: Final = 32
"""Minutes, hours and days since the Unix epoch have fewer bits."""
_KEY: Final = "step = ? AND series = ? AND at = ?"


def add(connection: sqlite3.Connection, deltas: Ints, spans: Mapping[int, tuple[int, int]]) -> None:
    """Add changes of counts to the cells of each length, within the times that are kept.

    Args:
        connection: The writer's transaction.
        deltas: `[n, 4]` series, time in microseconds, code, change.
        spans: Start and end of the times that are kept, by length of a cell, microseconds.
    """
    for step, (begin, end) in spans.items():
        own = deltas[(deltas[:, 1] >= begin) & (deltas[:, 1] < end)]
        if not len(own):
            continue
        # One number for each cell, since sorting pairs takes ten times as long.
        numbers = own[:, 0] << _START_BITS | own[:, 1] // step
        places, inverse = np.unique(numbers, return_inverse=True)
        flat, which = np.unique(inverse.reshape(-1) * WIDTH + own[:, 2], return_inverse=True)
        sums = np.rint(np.bincount(which.reshape(-1), weights=own[:, 3])).astype(np.int64)
        bounds = np.searchsorted(flat, np.arange(len(places) + 1) * WIDTH)
        for row, number in enumerate(places.tolist()):
            series, at = number >> _START_BITS, (number & (1 << _START_BITS) - 1) * step
            part = slice(bounds[row], bounds[row + 1])
            if sums[part].any():
                _merge(connection, (step, series, at), flat[part] - row * WIDTH, sums[part])


def add_days(connection: sqlite3.Connection) -> None:
    """Make the cells of days from those of hours, in a file that has none yet."""
    hours = "SELECT at, codes, counts FROM cells WHERE step = ? AND series = ? ORDER BY at"
    for (series,) in connection.execute("SELECT id FROM series").fetchall():
        # One series at a time, so that memory is bounded by one.
        rows = connection.execute(hours, (HOUR, series)).fetchall()
        if not rows:
            continue
        days, places = np.unique(np.array([row[0] for row in rows]) // DAY, return_inverse=True)
        sums = cells.added([row[1:] for row in rows], places.reshape(-1), len(days), WIDTH)
        for day, counts in zip(days.tolist(), sums.astype(np.int64), strict=True):
            codes = np.flatnonzero(counts)
            _merge(connection, (DAY, series, day * DAY), codes, counts[codes])


def _merge(connection: sqlite3.Connection, place: tuple[int, int, int], codes: Ints, changes: Ints) -> None:
    query = f"SELECT codes, counts FROM cells WHERE {_KEY}"  # noqa: S608 - a constant
    row = connection.execute(query, place).fetchone()
    dense = np.zeros(WIDTH, dtype=np.int64) if row is None else cells.decode(*row)
    dense[codes] += changes
    left = np.flatnonzero(dense > 0)
    blobs = cells.encode(left, dense[left])
    if not len(left):
        connection.execute(f"DELETE FROM cells WHERE {_KEY}", place)  # noqa: S608 - a constant
    elif row is None:
        connection.execute("INSERT INTO cells VALUES (?, ?, ?, ?, ?)", (*place, *blobs))
    else:
        update = f"UPDATE cells SET codes = ?, counts = ? WHERE {_KEY}"  # noqa: S608 - a constant
        connection.execute(update, (*blobs, *place))
