"""Writes what becomes of a change request, as part of a transaction, guarded by the change's version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update
from sqlalchemy.event import listen

from scorer.release import states
from scorer.release.calendar import moment
from scorer.release.changes import rows
from scorer.release.errors import ConflictError
from scorer.release.lanes import recorded
from scorer.release.model import PLATFORM, Actor, ChangeKind, ChangeRequest, LaneSpec, Severity
from scorer.release.states import Effect
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scorer.events import EventLog
    from scorer.release.audit import Audit
    from scorer.release.calendar import Calendar
    from scorer.release.notify import Notifications
    from scorer.release.settings import PlatformFile


class Ledger:
    """Moves of changes, their events, audit entries and messages."""

    def __init__(
        self,
        settings: PlatformFile,
        audit: Audit,
        notifications: Notifications,
        calendar: Calendar,
        now: Callable[[], datetime],
        events: EventLog | None = None,
    ) -> None:
        self._events = events
        self.settings = settings
        self.audit = audit
        self.calendar = calendar
        self.now = now
        self._notifications = notifications

    def move(
        self,
        connection: Connection,
        change: ChangeRequest,
        name: str,
        actor: Actor,
        message: str,
        *,
        step: str = "",
        severity: Severity = Severity.INFO,
        details: Mapping[str, Any] | None = None,
        answer: Sequence[LaneSpec] | None = None,
        cause: str = "",
        alias: str | None = None,
        alias_from: str | None = None,
        restores: int | None = None,
        **values: Any,
    ) -> ChangeRequest:
        """Takes a change to its next state, with everything that comes with it.

        Args:
            connection: of the transaction.
            change: as read in it.
            name: of the move (`states.MOVES`).
            actor: who.
            message: a sentence for people.
            step: the first of the new state.
            severity: of the message.
            details: for event and audit.
            answer: the answer lanes, for moves that have `ANSWER` or `RESTORE`.
            cause: of the table.
            alias: see `recorded.record`.
            alias_from: see `recorded.record`.
            restores: see `recorded.record`.
            **values: further columns.

        Raises:
            ConflictError: the state has moved on, or somebody else was first.
        """
        move = states.move(change, name)
        at = self.now()
        reset = {"mark": None, "failures": 0, "retry_at": None}
        moved = self.save(
            connection,
            change,
            **{"state": move.target.value, "step": step, "since": at, "note": message, **reset, **values},
        )
        if Effect.GIVE_BACK in move.effects:
            self.calendar.give_back(connection, change.id, at=at)
        if move.effects & {Effect.OBSERVE, Effect.UNOBSERVE, Effect.ANSWER, Effect.RESTORE}:
            self.record(
                connection,
                moved,
                cause or recorded.SHADOW,
                actor,
                answer=answer,
                alias=alias,
                alias_from=alias_from,
                restores=restores,
            )
        self.close_steps(
            connection, change, "failed" if moved.state.is_final and severity is not Severity.INFO else "done"
        )
        self.audit.append(
            connection,
            actor,
            f"change.{name.replace(' ', '-')}",
            change.id,
            project=change.project,
            details={
                "from": change.state.value,
                "to": moved.state.value,
                "version": moved.version,
                **(details or {}),
            },
        )
        self.event(connection, moved, actor, message, severity=severity, details=details)
        if self._events is not None:
            log, after = self._events, moved
            line = {"change": after.id, "move": name, "state": after.state.value, "actor": actor.user}
            # A move that is rolled back with its transaction is no line of the platform's log.
            listen(connection, "commit", lambda _: log.info("change_moved", **line), once=True)
        return moved

    def record(
        self,
        connection: Connection,
        change: ChangeRequest,
        cause: str,
        actor: Actor,
        *,
        answer: Sequence[LaneSpec] | None = None,
        alias: str | None = None,
        alias_from: str | None = None,
        restores: int | None = None,
    ) -> None:
        """Records the lanes from now on."""
        recorded.record(
            connection,
            self.settings,
            change.checkpoint,
            at=self.now(),
            actor=actor.user,
            cause=cause,
            change=change.id,
            answer=answer,
            alias=alias,
            alias_from=alias_from,
            restores=restores,
        )

    def save(self, connection: Connection, change: ChangeRequest, **values: Any) -> ChangeRequest:
        """Writes columns, provided that nobody wrote since the change was read.

        Raises:
            ConflictError: somebody did; it says who, and what.
        """
        c = t.changes.c
        done = connection.execute(
            update(t.changes)
            .where(c.id == change.id, c.version == change.version)
            .values(**values, version=change.version + 1, updated_at=self.now())
            .returning(t.changes)
        ).first()
        if done is None:
            raise self.outrun(connection, change.id, change.version)
        return rows.change(done)

    def outrun(self, connection: Connection, name: str, version: int) -> ConflictError:
        """Return an error that names who changed the request first."""
        now = rows.load(connection, name)
        e = t.change_events.c
        last = connection.execute(
            select(t.change_events).where(e.change == name).order_by(e.id.desc()).limit(1)
        ).first()
        who = f": {last.actor} at {moment(last.at)}, {last.message}" if last else ""
        return ConflictError(
            f"{name} has moved on since version {version}; it is now version {now.version}, "
            f'"{now.state}"{who}; look at it again'
        )

    def event(
        self,
        connection: Connection,
        change: ChangeRequest,
        actor: Actor,
        message: str,
        *,
        severity: Severity = Severity.INFO,
        details: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> bool:
        """Writes an event and tells the project's channels, once for each key; whether it did."""
        e = t.change_events.c
        if key is not None:
            query = select(e.id).where(e.change == change.id, e.key == key)
            if connection.execute(query).first() is not None:
                return False
        connection.execute(
            insert(t.change_events).values(
                change=change.id,
                at=self.now(),
                actor=actor.user,
                state=change.state.value,
                step=change.step,
                severity=severity.value,
                message=message,
                details=dict(details or {}),
                key=key,
            )
        )
        if change.kind is ChangeKind.OVERLAY and severity is Severity.INFO:
            # Every few minutes, by permission: channels hear of those that go wrong.
            return True
        self._notifications.tell(
            connection,
            change.project,
            severity,
            f"{change.id} {change.state}: {change.title}",
            message,
            checkpoint=change.checkpoint,
            payload={
                "change": change.id,
                "kind": change.kind.value,
                "checkpoint": change.checkpoint,
                "bundle": change.bundle,
                "state": change.state.value,
                "step": change.step,
                "version": change.version,
                "actor": actor.user,
                "message": message,
            },
        )
        return True

    # --- steps ---

    def step(
        self,
        connection: Connection,
        change: ChangeRequest,
        words: str,
        *,
        status: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes how the present step fares."""
        s, at = t.change_steps.c, self.now()
        key = (s.change == change.id, s.state == change.state.value, s.name == change.step)
        row = connection.execute(select(t.change_steps).where(*key)).first()
        ended = None if status in ("running", "waiting") else at
        if row is None:
            number = connection.execute(select(s.position).where(s.change == change.id)).all()
            connection.execute(
                insert(t.change_steps).values(
                    change=change.id,
                    state=change.state.value,
                    name=change.step,
                    position=len(number),
                    status=status,
                    words=words,
                    began=at,
                    ended=ended,
                    attempts=1,
                    data=dict(data) if data is not None else None,
                )
            )
            return
        values: dict[str, Any] = {"status": status, "words": words, "ended": ended}
        if data is not None:
            values["data"] = dict(data)
        if any(getattr(row, name) != value for name, value in values.items()):
            connection.execute(update(t.change_steps).where(*key).values(**values))

    def step_data(self, connection: Connection, change: ChangeRequest) -> dict[str, Any]:
        """What the present step remembers."""
        s = t.change_steps.c
        found = connection.execute(
            select(s.data).where(s.change == change.id, s.state == change.state.value, s.name == change.step)
        ).scalar()
        return dict(found or {})

    def watched(self, connection: Connection, change: ChangeRequest) -> dict[str, int]:
        """By server: when it was started (Unix ms) as last seen for this change; 0: it was away."""
        c = t.cursors.c
        found = connection.execute(select(c.position).where(c.name == f"watch:{change.id}")).scalar()
        return dict(found or {})

    def watch(self, connection: Connection, change: ChangeRequest, servers: Mapping[str, int]) -> None:
        """Keep when each server was started (Unix ms), which `watched` returns."""
        own = t.cursors.c.name == f"watch:{change.id}"
        values = {"position": dict(servers), "at": self.now()}
        if not connection.execute(update(t.cursors).where(own).values(**values)).rowcount:
            connection.execute(insert(t.cursors).values(name=f"watch:{change.id}", **values))

    def close_steps(self, connection: Connection, change: ChangeRequest, status: str) -> None:
        """Ends what is under way, as the change leaves its state."""
        s = t.change_steps.c
        connection.execute(
            update(t.change_steps)
            .where(s.change == change.id, s.ended.is_(None))
            .values(status=status, ended=self.now())
        )

    def narrate(
        self,
        connection: Connection,
        change: ChangeRequest,
        message: str,
        *,
        key: str | None = None,
        severity: Severity = Severity.INFO,
        details: Mapping[str, Any] | None = None,
    ) -> bool:
        """Says something on behalf of the platform."""
        return self.event(connection, change, PLATFORM, message, severity=severity, details=details, key=key)
