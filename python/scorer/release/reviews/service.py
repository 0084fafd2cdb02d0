"""The operations of reviewers: list, claim, release, assign, decide."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Row, and_, case, func, insert, or_, select, update

from scorer.release.access.roles import rank, refuse_agent
from scorer.release.errors import ConflictError, InvalidError, NotAllowedError, NotFoundError, QuotaError
from scorer.release.model import Actor, CaseDecision, CaseDelivery, CaseReason, CaseState, Role
from scorer.release.requests import AssignCase, CaseFilter, CaseVersion, DecideCase, SetReasons
from scorer.release.review_answers import CaseCounts, ReviewCase, ReviewCaseDetail
from scorer.release.review_settings import ReviewSettings
from scorer.release.reviews import rows
from scorer.release.reviews.reasons import check_reason, reasons_of, replace_reasons
from scorer.release.store import Store, conflict, dumps, instant, micros, utcnow
from scorer.release.store import tables as t
from scorer.release.store.searching import contains

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.release.audit import Audit
    from scorer.release.reviews.clock import ReviewClock
    from scorer.release.reviews.outbox import OutcomeOutbox
    from scorer.release.settings import PlatformFile

_EVENTS = 200
"""Limit on the entries in the history of a case that operations of users write."""
_CORRECTIONS = 50
_CURSOR = re.compile(r"([0-9]{1,16})\.([0-9]{1,16})")
_C = t.review_cases.c


@dataclass(frozen=True)
class _Work:
    """A case that is being changed in a transaction.

    Attributes:
        connection: The transaction.
        row: The case as it was.
        actor: The acting user.
        at: Time of the change.
        audit: The audit log.
    """

    connection: Connection
    row: Row[Any]
    actor: Actor
    at: datetime
    audit: Audit

    def save(self, action: str, details: dict[str, Any], **values: Any) -> ReviewCase:
        """Store new values, an entry in the history and one in the audit log; return the case."""
        number = self.row.id
        entries = select(func.count()).where(t.review_events.c.case == number)
        if action != "decided" and (self.connection.scalar(entries) or 0) >= _EVENTS:
            raise QuotaError(
                f"case {number} has {_EVENTS} entries in its history, as many as it may; decide it"
            )
        self.connection.execute(
            update(t.review_cases).where(_C.id == number).values(**values, version=self.row.version + 1)
        )
        rows.record(self.connection, number, self.at, self.actor.user, action, details)
        self.audit.append(
            self.connection,
            self.actor,
            f"review.{action}",
            f"case {number}",
            project=self.row.project,
            details={**details, "checkpoint": self.row.checkpoint, "decision_id": self.row.decision_id},
        )
        return rows.case_of(rows.found(self.connection, number), self.at)


class Reviews:
    """The review queue of all checkpoints.

    Args:
        settings: The settings of the checkpoints' queues.
        store: The database.
        access: Checks roles.
        audit: The audit log, which receives an entry per operation.
        clock: Reports and ends cases that are late.
        outbox: Reports decisions to the servers.
        now: Returns the current time.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        access: Access,
        audit: Audit,
        *,
        clock: ReviewClock | None = None,
        outbox: OutcomeOutbox | None = None,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._settings, self._store, self._access, self._audit = settings, store, access, audit
        self._clock, self._outbox, self._now = clock, outbox, now

    # --- lists ---

    def list(
        self, actor: Actor, asked: CaseFilter, *, cursor: str | None = None, limit: int = 50
    ) -> tuple[Sequence[ReviewCase], str | None]:
        """Return the cases that match a filter: open ones most urgent first, others newest first.

        Args:
            actor: The calling user.
            asked: The filter.
            cursor: Position that an earlier call returned; None: the first cases.
            limit: Limit on the number of cases, at most 1,000.

        Returns:
            The cases, and the position of the next ones; None: there are no more.

        Raises:
            InvalidError: The cursor is not one of this list.
        """
        limit = max(1, min(limit, 1000))
        is_urgent = asked.state is CaseState.OPEN or asked.overdue
        query = select(t.review_cases).where(*self._conditions(actor, asked))
        if cursor is not None:
            match = _CURSOR.fullmatch(cursor)
            if match is None:
                raise InvalidError(f'"{cursor[:100]}" is not a position in this list; omit the cursor')
            due, number = instant(int(match[1])), int(match[2])
            after = (_C.due_at > due, _C.id > number) if is_urgent else (_C.due_at < due, _C.id < number)
            query = query.where(or_(after[0], and_(_C.due_at == due, after[1])))
        order = (_C.due_at, _C.id) if is_urgent else (_C.due_at.desc(), _C.id.desc())
        with self._store.read() as connection:
            found = connection.execute(query.order_by(*order).limit(limit + 1)).all()
        now = self._now()
        items = [rows.case_of(row, now) for row in found[:limit]]
        more = len(found) > limit
        return items, f"{micros(items[-1].due_at)}.{items[-1].id}" if more else None

    def _conditions(self, actor: Actor, asked: CaseFilter) -> Iterator[ColumnElement[bool]]:
        yield self._visible(actor)
        for column, value in (
            (_C.project, asked.project),
            (_C.checkpoint, asked.checkpoint),
            (_C.state, asked.state),
            (_C.assignee, asked.assignee),
            (_C.delivery, asked.delivery),
            (_C.decision_id, asked.decision_id),
            (_C.queue, asked.queue),
        ):
            if value is not None:
                yield column == value
        if asked.unassigned:
            yield _C.assignee.is_(None)
        if asked.overdue:
            yield and_(_C.state == CaseState.OPEN, _C.due_at < self._now())
        if asked.code is not None:
            # The column has a JSON list.
            yield contains(dumps(asked.code), _C.codes)
        for column, low, high in (
            (_C.score, asked.low, asked.high),
            (_C.amount, asked.amount_low, asked.amount_high),
        ):
            if low is not None:
                yield column >= low
            if high is not None:
                yield column <= high
        if asked.begin is not None:
            yield _C.answered_at >= asked.begin
        if asked.end is not None:
            yield _C.answered_at < asked.end

    def _visible(self, actor: Actor) -> ColumnElement[bool]:
        return _C.id > 0 if actor.admin else _C.project.in_(sorted(actor.roles))

    def get(self, actor: Actor, case: int) -> ReviewCaseDetail:
        """Return a case with its history. Raises NotFoundError."""
        e, o = t.review_events.c, t.review_outbox.c
        with self._store.read() as connection:
            row = self._row(connection, actor, case)
            entries = connection.execute(select(t.review_events).where(e.case == case).order_by(e.id)).all()
            reasons = reasons_of(connection, row.project)
            error = connection.scalar(select(o.error).where(o.case == case, o.state == rows.WAITING))
        return ReviewCaseDetail(
            rows.case_of(row, self._now()),
            tuple(map(rows.event_of, entries)),
            reasons,
            may_review=self._has(actor, self.role(row.checkpoint), row.project),
            may_manage=self._has(actor, Role.OWNER, row.project),
            error=error or "",
        )

    def of_decision(self, actor: Actor, checkpoint: str, decision_id: str) -> ReviewCase | None:
        """Return the case of a decision; None: there is none that the actor may see."""
        query = select(t.review_cases).where(
            self._visible(actor), _C.checkpoint == checkpoint, _C.decision_id == decision_id
        )
        with self._store.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else rows.case_of(row, self._now())

    def next(self, actor: Actor, project: str, *, after: int, queue: str = "") -> int | None:
        """Return the id of the most urgent open case that the actor or nobody has claimed; None: none.

        Args:
            actor: The calling user.
            project: Name of the project.
            after: Id of a case to leave out.
            queue: Queue of the cases; empty: those without a queue.
        """
        query = select(_C.id).where(
            self._visible(actor),
            _C.project == project,
            _C.queue == queue,
            _C.state == CaseState.OPEN,
            or_(_C.assignee.is_(None), _C.assignee == actor.user),
            _C.id != after,
        )
        with self._store.read() as connection:
            return connection.scalar(query.order_by(_C.due_at, _C.id).limit(1))

    def counts(self) -> Sequence[CaseCounts]:
        """Return the numbers of cases of each checkpoint with a queue or with cases, for metrics."""
        now = self._now()
        is_open = _C.state == CaseState.OPEN
        query = (
            select(
                _C.checkpoint,
                func.sum(case((is_open, 1), else_=0)),
                func.sum(case((and_(is_open, _C.due_at < now), 1), else_=0)),
                func.sum(case((_C.delivery == CaseDelivery.WAITING, 1), else_=0)),
            )
            .where(or_(is_open, _C.delivery == CaseDelivery.WAITING))
            .group_by(_C.checkpoint)
        )
        with self._store.read() as connection:
            found = {str(row[0]): row for row in connection.execute(query)}
        names = {name for name, one in self._settings.checkpoints.items() if one.review.project}
        return [
            CaseCounts(name, *(int(number) for number in found[name][1:]))
            if name in found
            else CaseCounts(name, 0, 0, 0)
            for name in sorted({*found, *names})
        ]

    # --- work on a case ---

    def claim(self, actor: Actor, case: int, asked: CaseVersion | None = None) -> ReviewCase:
        """Assign an open case to the actor. A repeated claim has no effect.

        Raises:
            ConflictError: The case is not open, or another user has claimed it.
        """
        with self._open(actor, case, asked) as work:
            if work.row.assignee == actor.user:
                return rows.case_of(work.row, work.at)
            self._must_be_free(work.row, actor)
            return work.save("claimed", {}, assignee=actor.user)

    def release(self, actor: Actor, case: int, asked: CaseVersion | None = None) -> ReviewCase:
        """End the assignment of an open case. For its assignee and for owners.

        Raises:
            NotAllowedError: Another user has claimed it, and the actor is not an owner.
        """
        with self._open(actor, case, asked) as work:
            if work.row.assignee is None:
                return rows.case_of(work.row, work.at)
            self._must_be_own(work.row, actor, "releases")
            return work.save("released", {"from": work.row.assignee}, assignee=None)

    def assign(self, actor: Actor, case: int, asked: AssignCase) -> ReviewCase:
        """Assign an open case to a user whose role allows the review.

        A reviewer assigns a case that nobody has claimed, or an own one. Owners assign every case.

        Raises:
            NotAllowedError: Another user has claimed it, and the actor is not an owner.
            InvalidError: The user may not review the case.
        """
        with self._open(actor, case, asked) as work:
            if work.row.assignee is not None:
                self._must_be_own(work.row, actor, "assigns")
            if not self._is_reviewer(work.connection, asked.user, work.row):
                role = self.role(work.row.checkpoint)
                raise InvalidError(
                    f"user {asked.user}: this user is not a {role} of project {work.row.project}, as a "
                    "review requires; name a member with that role"
                )
            if work.row.assignee == asked.user:
                return rows.case_of(work.row, work.at)
            return work.save("assigned", {"from": work.row.assignee, "to": asked.user}, assignee=asked.user)

    def decide(self, actor: Actor, case: int, asked: DecideCase) -> ReviewCase:
        """Decide a case, or correct the decision. The platform reports the outcome to a server.

        An open case must be the actor's or unassigned. A correction, by the user who decided or by an owner,
        is a new revision of the outcome. The same decision again has no effect.

        Raises:
            ConflictError: Another user has claimed the case, or it was closed.
            InvalidError: The reason is not one of the project for this decision.
        """
        notes = asked.notes.strip()
        token = None if asked.decision_token is None else _token(asked.decision_token)
        with self._open(actor, case, asked, states=(CaseState.OPEN, CaseState.DECIDED)) as work:
            row, revision = work.row, 0
            check_reason(reasons_of(work.connection, row.project), asked.reason, asked.decision, notes)
            if row.state is CaseState.OPEN:
                self._must_be_free(row, actor)
            else:
                if (row.decision, row.reason, row.notes) == (asked.decision, asked.reason, notes):
                    return rows.case_of(row, work.at)
                if row.decided_by != actor.user and not self._has(actor, Role.OWNER, row.project):
                    raise NotAllowedError(
                        f"case {case} was decided by {row.decided_by}; only this user or an owner of project "
                        f"{row.project} corrects it"
                    )
                revision = row.revision + 1
                if revision > _CORRECTIONS:
                    raise QuotaError(f"case {case} was corrected {_CORRECTIONS} times, as often as it may be")
            self._post(work, asked, revision, token)
            details = {"decision": asked.decision, "reason": asked.reason, "notes": notes}
            return work.save(
                "decided",
                {**details, "revision": revision},
                **details,
                state=CaseState.DECIDED,
                assignee=actor.user,
                decided_by=actor.user,
                # A correction does not change whether the case was decided in time.
                ended_at=row.ended_at or work.at,
                delivery=CaseDelivery.WAITING,
                revision=revision,
            )

    def _post(self, work: _Work, asked: DecideCase, revision: int, token: str | None) -> None:
        """Put the outcome into the outbox, instead of an earlier revision that was not delivered."""
        box = t.review_outbox
        number = work.row.id
        work.connection.execute(
            update(box)
            .where(box.c.case == number, box.c.state == rows.WAITING)
            .values(state=rows.REPLACED, error="")
        )
        work.connection.execute(
            insert(box).values(
                case=number,
                kind=self._queue(work.row.checkpoint).outcome,
                value=float(asked.decision is CaseDecision.DECLINE),
                revision=revision,
                occurred_at=work.at,
                token=token,
                state=rows.WAITING,
                attempts=0,
                due_at=work.at,
                error="",
            )
        )

    # --- reasons ---

    def reasons(self, actor: Actor, project: str) -> Sequence[CaseReason]:
        """Return the reasons that reviewers of a project can give."""
        self._access.require(actor, Role.VIEWER, project)
        with self._store.read() as connection:
            return reasons_of(connection, project)

    def set_reasons(self, actor: Actor, project: str, asked: SetReasons) -> Sequence[CaseReason]:
        """Replace the reasons of a project; for owners. An empty list restores the standard reasons."""
        self._access.require(actor, Role.OWNER, project)
        with self._store.write() as connection:
            replace_reasons(connection, project, asked.reasons)
            codes = [one.code for one in asked.reasons]
            self._audit.append(
                connection, actor, "review.reasons", project, project=project, details={"codes": codes}
            )
            return reasons_of(connection, project)

    # --- rounds ---

    def watch(self) -> None:
        """Report and end the cases that are late. The ticker calls this method periodically."""
        if self._clock is not None:
            self._clock.tick()

    def deliver(self) -> int:
        """Report the outcomes that are due; return the number of those that were recorded."""
        return 0 if self._outbox is None else self._outbox.deliver()

    @property
    def failed(self) -> int:
        """Number of failed attempts to report an outcome, in this process."""
        return 0 if self._outbox is None else self._outbox.failed

    def close(self) -> None:
        """Close the connections to the servers."""
        if self._outbox is not None:
            self._outbox.close()

    # --- helpers ---

    def role(self, checkpoint: str) -> Role:
        """Return the lowest role that reviews cases of a checkpoint."""
        return Role(self._queue(checkpoint).role)

    def _queue(self, checkpoint: str) -> ReviewSettings:
        known = self._settings.checkpoints.get(checkpoint)
        return ReviewSettings() if known is None else known.review

    @staticmethod
    def _has(actor: Actor, role: Role, project: str) -> bool:
        own = actor.roles.get(project)
        return actor.admin or (own is not None and rank(own) >= rank(role))

    def _row(self, connection: Connection, actor: Actor, case: int) -> Row[Any]:
        row = rows.found(connection, case)
        if not actor.admin and row.project not in actor.roles:
            raise rows.unknown_case(case)
        return row

    @contextmanager
    def _open(
        self,
        actor: Actor,
        case: int,
        asked: CaseVersion | None,
        *,
        states: Sequence[CaseState] = (CaseState.OPEN,),
    ) -> Iterator[_Work]:
        """Open a transaction on a case that the actor may review."""
        refuse_agent(actor, "decides cases")
        with self._store.read() as connection:
            before = self._row(connection, actor, case)
        try:
            self._access.require(actor, self.role(before.checkpoint), before.project)
        except NotFoundError:
            # The settings name a project that does not exist yet, which only an admin can see.
            raise NotFoundError(
                f'project "{before.project}" of checkpoint "{before.checkpoint}" does not exist; create it'
            ) from None
        with self._store.write() as connection:
            row = rows.found(connection, case)
            if asked is not None and asked.version not in (None, row.version):
                raise conflict(f"case {case}")
            if row.state not in states:
                raise ConflictError(f"case {case} is {row.state}, not {states[0]}; load it again")
            yield _Work(connection, row, actor, self._now(), self._audit)

    def _must_be_free(self, row: Row[Any], actor: Actor) -> None:
        if row.assignee not in (None, actor.user):
            raise ConflictError(
                f"case {row.id} is assigned to {row.assignee}; {row.assignee} or an owner of project "
                f"{row.project} can release or assign it"
            )

    def _must_be_own(self, row: Row[Any], actor: Actor, verb: str) -> None:
        if row.assignee != actor.user and not self._has(actor, Role.OWNER, row.project):
            raise NotAllowedError(
                f"case {row.id} is assigned to {row.assignee}; only this user or an owner of project "
                f"{row.project} {verb} it"
            )

    def _is_reviewer(self, connection: Connection, user: str, row: Row[Any]) -> bool:
        m, u = t.members.c, t.users.c
        found = connection.scalar(select(m.role).where(m.project == row.project, m.user == user))
        if found is not None and rank(Role(found)) >= rank(self.role(row.checkpoint)):
            return True
        admin = select(u.name).where(u.name == user, u.admin.is_(True), u.removed_at.is_(None))
        return connection.scalar(admin) is not None


def _token(text: str) -> str:
    """Return a decision token in standard base64. Raises InvalidError if it is not base64."""
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    standard += "=" * (-len(standard) % 4)
    try:
        base64.b64decode(standard, validate=True)
    except binascii.Error:
        raise InvalidError("decision_token is not base64; send the token of the response whole") from None
    return standard
