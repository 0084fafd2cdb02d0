"""Retention of rollups, and limits on the stored decisions and reports."""

from __future__ import annotations

import sqlite3
from typing import Final

MINUTE: Final = 60_000_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
"""Lengths of cells, microseconds."""
MINUTES_KEPT: Final = 2 * DAY
"""How long the counts of minutes are kept, microseconds."""
HOURS_KEPT: Final = 190 * DAY
"""How long the counts of hours and days are kept, microseconds: somewhat more than the longest window."""
_AHEAD: Final = DAY
"""Records of a server whose clock is further ahead are not counted."""
MOST_REMEMBERED: Final = 4_000_000
"""Largest number of decisions, of reports, and of rules with an effect on a decision, that are stored."""
EXPIRY_SECONDS: Final = 600.0
"""Interval at which old cells are removed."""
_AT_ONCE: Final = 40_000
"""Largest number of rows that one batch removes. It is larger than the number that one batch adds."""


def spans(now: int) -> dict[int, tuple[int, int]]:
    """Return the start and end of the times whose counts are kept, by length of a cell, microseconds."""
    long = now - HOURS_KEPT, now + _AHEAD
    return {MINUTE: (now - MINUTES_KEPT, now + _AHEAD), HOUR: long, DAY: long}


def forget(connection: sqlite3.Connection, now: int, most: int) -> None:
    """Remove the oldest decisions and reports beyond the limits, a bounded number at a time."""
    begin, _ = spans(now)[HOUR]
    for table in ("decisions", "reports", "firings"):
        query = f"SELECT (SELECT min(rowid) FROM {table}), (SELECT max(rowid) FROM {table})"  # noqa: S608
        first, last = connection.execute(query).fetchone()
        if first is None:
            continue
        # Rows are appended, so the oldest have the lowest numbers.
        upto = min(last - most, first + _AT_ONCE)
        connection.execute(f"DELETE FROM {table} WHERE rowid <= ?", (upto,))  # noqa: S608
        old = "DELETE FROM {} WHERE rowid <= ? AND at < ? AND at > 0"
        connection.execute(old.format(table), (first + _AT_ONCE, begin))


def expire(connection: sqlite3.Connection, now: int) -> None:
    """Remove the cells that are older than is kept."""
    for (series,) in connection.execute("SELECT id FROM series").fetchall():
        for step, (begin, end) in spans(now).items():
            place = "step = ? AND series = ? AND"
            connection.execute(f"DELETE FROM cells WHERE {place} at < ?", (step, series, begin - step))  # noqa: S608
            connection.execute(f"DELETE FROM cells WHERE {place} at >= ?", (step, series, end))  # noqa: S608
