"""Queries of bookings and freezes, and the check of a project's quota."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select

from scorer.release.errors import QuotaError
from scorer.release.model import Booking, Freeze
from scorer.release.store import tables as t
from scorer.release.store.rows import read

_WEEK = timedelta(days=7)


def freezes(connection: Connection) -> list[Freeze]:
    """Return all freezes of the calendar."""
    return [read(Freeze, row) for row in connection.execute(select(t.freezes).order_by(t.freezes.c.id))]


def of_change(connection: Connection, change: str) -> Booking | None:
    """Return the newest booking of a change request, including a released one."""
    found = connection.execute(
        select(t.bookings).where(t.bookings.c.change == change).order_by(t.bookings.c.id.desc()).limit(1)
    ).first()
    return read(Booking, found) if found else None


def held(connection: Connection, checkpoint: str, since: datetime) -> list[Booking]:
    """Return the active bookings of a checkpoint that end after `since`, by start."""
    b = t.bookings.c
    rows = connection.execute(
        select(t.bookings)
        .where(b.checkpoint == checkpoint, b.active, b.end > since)
        .order_by(b.start, b.slot)
    )
    return [read(Booking, row) for row in rows]


def check_quota(
    connection: Connection, project: str, start: datetime, end: datetime, *, without: str = ""
) -> None:
    """Reject a booking that exceeds the project's slot minutes of a week (Monday to Sunday, UTC).

    Args:
        connection: Connection of the caller's transaction.
        project: Name of the project.
        start: Start of the booking.
        end: End of the booking.
        without: Id of a change request whose bookings are not counted, because it is being moved.

    Raises:
        QuotaError: The quota is exceeded. The error names the week and the remaining minutes.
    """
    allowed = connection.execute(
        select(t.projects.c.slot_minutes_per_week).where(t.projects.c.name == project)
    ).scalar_one()
    week = start.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=start.weekday())
    b = t.bookings.c
    while week < end:
        rows: Sequence[Any] = connection.execute(
            select(b.start, b.end).where(
                b.project == project, b.change != without, b.start < week + _WEEK, b.end > week
            )
        ).all()
        taken = sum((_overlap(row.start, row.end, week) for row in rows), timedelta())
        wanted = _overlap(start, end, week)
        if taken + wanted > timedelta(minutes=allowed):
            left = max(0.0, allowed - taken / timedelta(minutes=1))
            raise QuotaError(
                f'project "{project}" may book {allowed} slot minutes a week and has {left:g} left in the '
                f"week of {week:%Y-%m-%d}, not {wanted / timedelta(minutes=1):g}; book less or another week, "
                "or ask an admin for a larger quota"
            )
        week += _WEEK


def _overlap(start: datetime, end: datetime, week: datetime) -> timedelta:
    return max(timedelta(), min(end, week + _WEEK) - max(start, week))
