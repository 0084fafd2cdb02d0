"""What users see of a change request: its records, and the operations that each user may perform.

All viewers of a change request share one read of its records for as long as nothing is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from scorer.release import states
from scorer.release.answers import ChangeDetail, Outlook, Step
from scorer.release.changes import control, fit, rows
from scorer.release.changes.guard import ChangeGuard
from scorer.release.changes.outlook import outlook
from scorer.release.changes.plan import specs_of, stages_of, steps_of
from scorer.release.changes.review import review
from scorer.release.errors import ConflictError, PlatformError
from scorer.release.lanes import recorded
from scorer.release.model import (
    PLATFORM,
    Actor,
    Booking,
    ChangeEvent,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    GateResult,
    Outcome,
)
from scorer.release.store import tables as t
from scorer.release.store.rows import read
from scorer.release.store.shared import SharedReads

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts

_OPERATIONS = (
    "edit",
    "delete",
    "submit",
    "rebook",
    "finish",
    "approve",
    "reject",
    "waive",
    "withdraw",
    "pause",
    "resume",
    "promote",
    "skip",
    "request_review",
    "comment",
    "archive",
    "unarchive",
    "rollback",
)
_DIFFERENCES = 64
"""Differences between two bundles that are kept in memory."""
_RECORDS = 32
"""Change requests whose records are kept in memory until the next commit."""
_RESPONSES = 256
"""Responses with events that are kept in memory until the next commit."""


@dataclass(frozen=True, slots=True)
class ChangeRecords:
    """What the database has of a change request, the same for all users."""

    change: ChangeRequest
    events: tuple[ChangeEvent, ...]
    steps: tuple[Step, ...]
    """Steps that have begun."""
    gates: tuple[GateResult, ...]
    booking: Booking | None
    against: str | None
    """Digest of the bundle that it is compared with; None: there is none."""
    authors: frozenset[str]
    backtest: dict[str, Any] | None
    mark: datetime | None
    """Start of the present step's time measurement."""
    is_approvable: bool
    is_answering: bool
    """Whether what it released still answers."""


class ChangeViews:
    """Reads change requests for users.

    Args:
        parts: The parts of the service layer.
        guard: Checks permissions.
    """

    def __init__(self, parts: Parts, guard: ChangeGuard) -> None:
        self._parts, self._guard = parts, guard
        # Bundles never change, and every view of a change request shows the difference of two.
        self._difference = lru_cache(maxsize=_DIFFERENCES)(self._differs)
        self._records: SharedReads[ChangeRecords] = SharedReads(parts.store, _RECORDS)
        self._events: SharedReads[tuple[ChangeRequest, tuple[ChangeEvent, ...]]] = SharedReads(
            parts.store, _RESPONSES
        )

    def get(self, actor: Actor, change: str) -> ChangeDetail:
        """Return a change request with everything that is shown of it. Raises NotFoundError."""
        found = self._records.get(change, lambda: self._read(change))
        self._guard.check_visible(actor, found.change)
        diff = self._diff(found)
        return ChangeDetail(
            found.change,
            steps_of(found.change, self._parts.settings, found.steps),
            found.events,
            found.gates,
            found.booking,
            diff,
            tuple(name for name in _OPERATIONS if self._may(actor, found, name)),
            found.backtest,
            self._outlook(found),
            review(found.gates, diff) if found.gates else None,
        )

    def events(
        self, actor: Actor, change: str, after: int, limit: int
    ) -> tuple[ChangeState, Sequence[ChangeEvent]]:
        """Return the state of a change request, and its events after a known one, oldest first."""
        found, events = self._events.get((change, after, limit), lambda: self._after(change, after, limit))
        self._guard.check_visible(actor, found)
        return found.state, events

    def _read(self, change: str) -> ChangeRecords:
        with self._parts.store.read() as connection:
            row = rows.row_of(connection, change)
            found = rows.change(row)
            last = recorded.newest(connection, found.checkpoint)
            live = recorded.main_lane(last.answer).bundle if last and last.answer else None
            return ChangeRecords(
                change=found,
                events=rows.events(connection, change),
                steps=rows.steps(connection, change),
                gates=rows.gates(connection, change),
                booking=self._parts.calendar.of(connection, change),
                against=found.before or live,
                authors=frozenset(row.authors),
                backtest=rows.backtest(connection, change),
                mark=row.mark,
                is_approvable=states.allows(found, "approve") and _is_approvable(connection, found),
                is_answering=states.allows(found, "rollback") and is_answering(connection, found),
            )

    def _after(self, change: str, after: int, limit: int) -> tuple[ChangeRequest, tuple[ChangeEvent, ...]]:
        e = t.change_events.c
        with self._parts.store.read() as connection:
            found = rows.load(connection, change)
            events = connection.execute(
                select(t.change_events).where(e.change == change, e.id > after).order_by(e.id).limit(limit)
            )
            return found, tuple(read(ChangeEvent, row) for row in events)

    def _may(self, actor: Actor, found: ChangeRecords, name: str) -> bool:
        if not self._guard.may(actor, found.change, name, found.authors):
            return False
        if name == "approve":
            return found.is_approvable
        if name in states.CONTROLS:
            return control.refusal(found.change, name, self._parts.settings) is None
        if name in ("archive", "unarchive"):
            return (found.change.archived_at is None) is (name == "archive")
        return name != "rollback" or found.is_answering

    def _outlook(self, found: ChangeRecords) -> Outlook | None:
        change = found.change
        if change.state is not ChangeState.RELEASED or change.kind is not ChangeKind.RELEASE:
            return None
        settings = self._parts.settings.checkpoints[change.checkpoint]
        settling = [
            step.words for step in found.steps if step.name == change.step and step.status == "waiting"
        ]
        return outlook(
            change,
            stages_of(change, self._parts.settings),
            # Before its first evaluation, a stage has no results; those of the phase before are not its own.
            found.gates if found.mark is not None else (),
            mark=found.mark,
            least={spec.metric: spec.min_rows for spec in specs_of(change, self._parts.settings)},
            settling="".join(settling[:1]),
            patience=timedelta(minutes=settings.patience_minutes),
            frozen=self._parts.calendar.frozen(change.checkpoint),
            now=self._parts.now(),
        )

    def _differs(self, bundle: str, against: str) -> dict[str, Any]:
        bundles = self._parts.bundles
        return fit.difference(bundles.detail(PLATFORM, bundle), bundles.detail(PLATFORM, against))

    def _diff(self, found: ChangeRecords) -> dict[str, Any]:
        if found.against is None:
            return {}
        try:
            return self._difference(found.change.bundle, found.against)
        except PlatformError as error:
            # A page about a change must open while the registry is away.
            return {"against": found.against, "error": str(error)}


def check_approvable(connection: Connection, change: ChangeRequest) -> None:
    """Raise ConflictError unless the gates of a change request permit its approval."""
    if change.step != "approval":
        raise ConflictError(f"{change.id}'s report is being made; try again in a moment")
    results = rows.gates(connection, change.id, "report")
    if rows.verdict(results) is Outcome.PASS:
        return
    blocking = [f"{each.metric} ({each.outcome}: {each.words})" for each in results if each.blocks]
    raise ConflictError(
        f"{change.id} cannot be approved: {'; '.join(blocking) or 'no gate has judged it'}; waive "
        "what may be waived, or reject it"
    )


def is_answering(connection: Connection, change: ChangeRequest) -> bool:
    """Whether what a change released still answers, at whatever revision of its overlay."""
    if change.kind is ChangeKind.OVERLAY:
        newest = recorded.newest(connection, change.checkpoint)
        return bool(newest and any(lane.bundle == change.bundle for lane in newest.answer))
    decided = recorded.deciding(connection, change.checkpoint)
    return bool(decided and decided.change == change.id and decided.cause != recorded.ROLLBACK)


def _is_approvable(connection: Connection, change: ChangeRequest) -> bool:
    try:
        check_approvable(connection, change)
    except PlatformError:
        return False
    return True
