"""Finding the decisions that require a review, in the pass over the logs that reports make.

The pass calls `CaseIntake.take` with each batch of records before it stores its position. A batch that is
read again after a kill adds nothing, because a case is unique by checkpoint and decision id, and because
decisions that are older than every deleted case are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, select, update

from scorer.log.scanning import WITHDRAWN
from scorer.log.tables import digest_of
from scorer.release.model import PLATFORM, CaseDelivery, CaseState
from scorer.release.reviews.rows import record as record_event
from scorer.release.store import Store, instant
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.bundle.models import Feature
    from scorer.log.scanning import Entry
    from scorer.release.review_settings import ReviewSettings
    from scorer.release.settings import PlatformFile
    from scorer.v1.log_pb2 import DecisionRecord

_AT_ONCE = 500
"""Rows of one statement; SQLite limits its parameters."""
_CODES, _CODE = 64, 200
"""Limits on the reason codes of a case, and on the characters of one and of the queue's name."""


class CaseIntake:
    """Adds the decisions of batches of records that require a review to the queue.

    Args:
        settings: The settings, whose checkpoints have the review queues.
        store: The database.
        features: Returns the features of a bundle by its digest; None: the bundle is not known.
        now: Returns the current time.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        features: Callable[[str], Sequence[Feature] | None],
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._settings, self._store, self._features, self._now = settings, store, features, now

    def take(self, server: str, batch: Sequence[Entry]) -> None:
        """Add the cases of a batch. Taking a batch, or a part of it, again has no effect.

        Args:
            server: Name of the server whose log has the records.
            batch: Records in the order of the log.
        """
        queues = {name: one.review for name, one in self._settings.checkpoints.items() if one.review.project}
        if not queues:
            return
        now = self._now()
        cases: dict[tuple[str, str], dict[str, Any]] = {}
        withdrawn: dict[tuple[str, str], int] = {}
        for sequence, kind, record in batch:
            if kind == "decision":
                queue = queues.get(record.checkpoint)
                if queue is not None and record.decision == queue.label:
                    answered = instant(record.decided_at_us)
                    if now - answered <= timedelta(days=queue.open_days):
                        key = record.checkpoint, record.decision_id
                        case = self._case(server, record, queue, answered, now)
                        cases.setdefault(key, {**case, "sequence": sequence})
            elif kind == WITHDRAWN and not record.kind and record.checkpoint in queues:
                # A withdrawn record of the same batch was left out already, unless it is far behind.
                key = record.checkpoint, record.decision_id
                if cases.get(key, {}).get("sequence") == record.sequence:
                    del cases[key]
                withdrawn[key] = record.sequence
        if cases or withdrawn:
            self._store.transact(lambda connection: self._write(connection, server, cases, withdrawn, now))

    def _case(
        self,
        server: str,
        record: DecisionRecord,
        queue: ReviewSettings,
        answered: datetime,
        now: datetime,
    ) -> dict[str, Any]:
        codes = [*record.reasons, *(one.code for one in record.feature_reasons)]
        return {
            "project": queue.project,
            "checkpoint": record.checkpoint,
            "decision_id": record.decision_id,
            "server": server,
            "lane": record.lane,
            "bundle": digest_of(record),
            "score": record.score if math.isfinite(record.score) else None,
            "amount": self._amount(record, queue.amount),
            "queue": record.rules.queue[:_CODE],
            "codes": [one[:_CODE] for one in dict.fromkeys(codes)][:_CODES],
            "answered_at": answered,
            "found_at": now,
            "due_at": answered + timedelta(minutes=queue.sla_minutes),
            "overdue": False,
            "state": CaseState.OPEN,
            "notes": "",
            "delivery": CaseDelivery.NONE,
            "revision": 0,
            "version": 1,
        }

    def _amount(self, record: DecisionRecord, name: str) -> float | None:
        """Return the value of a feature; None if it is missing, sensitive or not known."""
        features = self._features(digest_of(record)) if name else None
        if features is None or len(features) != len(record.features):
            return None
        place = next((at for at, one in enumerate(features) if one.name == name), None)
        if place is None or features[place].type != "number" or place in record.withheld:
            return None
        value = record.features[place]
        return value if math.isfinite(value) else None

    def _write(
        self,
        connection: Connection,
        server: str,
        cases: dict[tuple[str, str], dict[str, Any]],
        withdrawn: dict[tuple[str, str], int],
        now: datetime,
    ) -> None:
        for row in _existing(connection, list(withdrawn)):
            if (row.server, row.sequence) == (server, withdrawn[row.checkpoint, row.decision_id]):
                _withdraw(connection, row, now)
        known = {(row.checkpoint, row.decision_id) for row in _existing(connection, list(cases))}
        new = [case for key, case in cases.items() if key not in known]
        for at in range(0, len(new), _AT_ONCE):
            connection.execute(insert(t.review_cases), new[at : at + _AT_ONCE])


def _withdraw(connection: Connection, row: Any, now: datetime) -> None:
    """Remove a case whose decision does not count. A case that is in work is closed instead."""
    c = t.review_cases.c
    if row.state is not CaseState.OPEN:
        return
    if row.assignee is None:
        # The answer to a repeated request can add it again.
        connection.execute(delete(t.review_events).where(t.review_events.c.case == row.id))
        connection.execute(delete(t.review_cases).where(c.id == row.id))
        return
    values = {"state": CaseState.CLOSED, "ended_at": now, "version": row.version + 1}
    connection.execute(update(t.review_cases).where(c.id == row.id).values(**values))
    why = {"why": "the record of the decision was withdrawn"}
    record_event(connection, row.id, now, PLATFORM.user, "closed", why)


def _existing(connection: Connection, keys: Sequence[tuple[str, str]]) -> Iterator[Any]:
    """Yield the rows of the cases with these checkpoints and decision ids."""
    c = t.review_cases.c
    for checkpoint in dict.fromkeys(checkpoint for checkpoint, _ in keys):
        ids = [decision for name, decision in keys if name == checkpoint]
        for at in range(0, len(ids), _AT_ONCE):
            query = select(t.review_cases).where(
                c.checkpoint == checkpoint, c.decision_id.in_(ids[at : at + _AT_ONCE])
            )
            yield from connection.execute(query).all()
