"""Conversion of the review queue's rows, and statements that several of its modules use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert

from scorer.release.errors import NotFoundError
from scorer.release.model import CaseState
from scorer.release.review_answers import CaseEvent, ReviewCase
from scorer.release.store import tables as t
from scorer.release.store.rows import read, row_of

WAITING, DELIVERED, REPLACED = "waiting", "delivered", "replaced"
"""States of an outcome in the outbox."""
_NUMBERS = 1 << 53


def case_of(row: Row[Any], now: datetime) -> ReviewCase:
    """Convert a row to a case.

    Args:
        row: Row of the table of cases.
        now: Time that an open case is compared with, to show whether it is overdue.
    """
    end = now if row.state is CaseState.OPEN else row.ended_at
    return read(ReviewCase, row, overdue=end > row.due_at)


def event_of(row: Row[Any]) -> CaseEvent:
    """Convert a row to an entry of a case's history."""
    return read(CaseEvent, row)


def found(connection: Connection, case: int) -> Row[Any]:
    """Return the row of a case. Raises NotFoundError."""
    # An address can have a number that is larger than those of the database.
    row = row_of(connection, t.review_cases, id=case) if 0 < case < _NUMBERS else None
    if row is None:
        raise unknown_case(case)
    return row


def unknown_case(case: int) -> NotFoundError:
    """Return the error for a case that does not exist or that the actor may not see."""
    return NotFoundError(f"there is no case {case} that you may see; the page of reviews lists those")


def record(
    connection: Connection,
    case: int,
    at: datetime,
    actor: str,
    action: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Append an entry to the history of a case, in the caller's transaction."""
    values = {"case": case, "at": at, "actor": actor, "action": action, "details": dict(details or {})}
    connection.execute(insert(t.review_events).values(**values))
