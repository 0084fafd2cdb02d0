"""The clock of the review queue: reports cases that are overdue, closes old ones and deletes ended ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Select, delete, select, update

from scorer.release.model import PLATFORM, CaseDelivery, CaseState, Severity
from scorer.release.reviews.rows import record
from scorer.release.store import Store, utcnow
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.events import EventLog
    from scorer.release.notify import Notifications
    from scorer.release.review_settings import ReviewSettings
    from scorer.release.settings import PlatformFile

_AT_ONCE = 500
"""Limit on the cases of a checkpoint that one round reports, closes or deletes."""
_SWEEP = timedelta(minutes=1)
"""Interval at which old cases are looked for."""
_C = t.review_cases.c


class ReviewClock:
    """Compares open and ended cases with the time. Each round does a bounded amount of work.

    Args:
        settings: The settings of the checkpoints' queues.
        store: The database.
        notifications: Sends a message about overdue cases, at most one per checkpoint and hour.
        events: The platform's event log.
        now: Returns the current time.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        notifications: Notifications,
        events: EventLog,
        *,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._settings, self._store = settings, store
        self._notifications, self._events, self._now = notifications, events, now
        self._swept: datetime | None = None

    def tick(self) -> None:
        """Report cases that are overdue since the last round, and end those that are too old."""
        now = self._now()
        late = select(_C.id).where(_C.state == CaseState.OPEN, _C.overdue.is_(False), _C.due_at < now)
        with self._store.read() as connection:  # usually nothing is late; this read needs no writers' lock
            is_late = _first(connection, late)
        if is_late:
            for (_, checkpoint), count in self._store.transact(self._report).items():
                self._events.warning("reviews_overdue", checkpoint=checkpoint, cases=count)
        if self._swept is None or not timedelta() <= now - self._swept < _SWEEP:
            self._swept = now
            self._sweep(now)

    def _sweep(self, now: datetime) -> None:
        """Close open cases that are too old, and delete ended ones that are outdated."""
        queues = [(name, one.review) for name, one in self._settings.checkpoints.items()]
        with self._store.read() as connection:
            closing = [one for one in queues if _first(connection, _too_old(*one, now))]
            deleting = [one for one in queues if _first(connection, _outdated(*one, now))]
        for checkpoint, queue in closing:
            self._store.transact(partial(self._close, checkpoint, queue))
        for checkpoint, queue in deleting:
            self._store.transact(partial(self._delete, checkpoint, queue))

    def _report(self, connection: Connection) -> Counter[tuple[str, str]]:
        """Mark cases as reported; return the number of them by project and checkpoint."""
        now = self._now()
        found = connection.execute(
            select(_C.id, _C.project, _C.checkpoint)
            .where(_C.state == CaseState.OPEN, _C.overdue.is_(False), _C.due_at < now)
            .order_by(_C.due_at)
            .limit(_AT_ONCE)
        ).all()
        connection.execute(
            update(t.review_cases).where(_C.id.in_([row.id for row in found])).values(overdue=True)
        )
        for row in found:
            record(connection, row.id, now, PLATFORM.user, "overdue")
        counts = Counter((row.project, row.checkpoint) for row in found)
        for (project, checkpoint), count in counts.items():
            whole = f"{count} review{'s are' if count > 1 else ' is'} overdue at {checkpoint}"
            self._notifications.tell(
                connection,
                project,
                Severity.WARNING,
                whole,
                f"{whole}. Open the page of reviews to claim and decide the cases.",
                checkpoint=checkpoint,
                payload={"reviews_overdue": count},
                key=f"reviews-overdue {checkpoint} {now:%Y-%m-%dT%H}",
            )
        return counts

    def _close(self, checkpoint: str, queue: ReviewSettings, connection: Connection) -> None:
        now = self._now()
        found = connection.scalars(_too_old(checkpoint, queue, now).limit(_AT_ONCE)).all()
        connection.execute(
            update(t.review_cases)
            .where(_C.id.in_(found))
            .values(state=CaseState.CLOSED, ended_at=now, version=_C.version + 1)
        )
        why = {"why": f"nobody decided it within {queue.open_days:g} days"}
        for case in found:
            record(connection, case, now, PLATFORM.user, "closed", why)

    def _delete(self, checkpoint: str, queue: ReviewSettings, connection: Connection) -> None:
        found = connection.scalars(_outdated(checkpoint, queue, self._now()).limit(_AT_ONCE)).all()
        for table in (t.review_events, t.review_outbox):
            connection.execute(delete(table).where(table.c.case.in_(found)))
        connection.execute(delete(t.review_cases).where(_C.id.in_(found)))


def _too_old(checkpoint: str, queue: ReviewSettings, now: datetime) -> Select[int]:
    """Return the query for the open cases of a checkpoint that are closed without an outcome."""
    before = now - timedelta(days=queue.open_days)
    return select(_C.id).where(
        _C.checkpoint == checkpoint, _C.state == CaseState.OPEN, _C.answered_at < before
    )


def _outdated(checkpoint: str, queue: ReviewSettings, now: datetime) -> Select[int]:
    """Return the query for the ended cases of a checkpoint that are deleted."""
    before = now - timedelta(days=queue.keep_days)
    return select(_C.id).where(
        _C.checkpoint == checkpoint, _C.ended_at < before, _C.delivery != CaseDelivery.WAITING
    )


def _first(connection: Connection, query: Select[int]) -> bool:
    return connection.execute(query.limit(1)).first() is not None
