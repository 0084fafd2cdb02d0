"""Writing a change request within one transaction, with optimistic locking by its version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.event import listen

from scorer.release import states
from scorer.release.calendar import moment
from scorer.release.changes import rows
from scorer.release.errors import ConflictError
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import LaneDecision
from scorer.release.model import PLATFORM, Actor, ChangeKind, ChangeRequest, Severity
from scorer.release.states import Effect
from scorer.release.store import tables as t
from scorer.release.store.rows import row_of, upsert

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts


NEW_STAGE: Mapping[str, Any] = {"mark": None, "paused_by": None, "paused_at": None, "resumed_at": None}
"""Values of the columns of the present stage when a step of the release begins."""


class ChangeWriter:
    """Writes transitions, events, audit entries and messages of a change request in a transaction.

    Args:
        parts: Dependencies that operations on change requests share.
        connection: Connection of the transaction.
        change: The change request as it was read. A write fails if it has been changed since.
        actor: The user or component on whose behalf it is written.
    """

    def __init__(
        self, parts: Parts, connection: Connection, change: ChangeRequest, actor: Actor = PLATFORM
    ) -> None:
        self._parts = parts
        self.connection = connection
        self.change = change
        """The change request as it was last saved in this transaction."""
        self.actor = actor

    def move(
        self,
        name: str,
        message: str,
        *,
        step: str = "",
        severity: Severity = Severity.INFO,
        details: Mapping[str, Any] | None = None,
        decision: LaneDecision | None = None,
        **values: Any,
    ) -> ChangeRequest:
        """Take the change request to its next state, with all effects of the transition.

        Args:
            name: Name of the transition (`states.MOVES`).
            message: The message of the event, a sentence for display.
            step: The first step of the new state.
            severity: Severity of the message.
            details: Details of the event and the audit entry.
            decision: The lanes, for transitions with the effect `ANSWER` or `RESTORE`.
            **values: Values of further columns.

        Raises:
            ConflictError: The state does not allow the transition, or the change was changed concurrently.
        """
        before, move = self.change, states.move(self.change, name)
        at = self._parts.now()
        reset = {"failures": 0, "retry_at": None, **NEW_STAGE}
        moved = self.save(
            **{"state": move.target, "step": step, "since": at, "note": message, **reset, **values}
        )
        if Effect.GIVE_BACK in move.effects:
            self._parts.calendar.give_back(self.connection, before.id, at=at)
        if move.effects & {Effect.OBSERVE, Effect.UNOBSERVE, Effect.ANSWER, Effect.RESTORE}:
            self.record(decision or LaneDecision(recorded.SHADOW))
        self._close_steps("failed" if moved.state.is_final and severity is not Severity.INFO else "done")
        about = {"from": before.state, "to": moved.state, "version": moved.version, **(details or {})}
        self.audit(name.replace(" ", "-"), about)
        self.event(message, severity=severity, details=details)
        if self._parts.events is not None:
            log = self._parts.events
            line = {"change": moved.id, "move": name, "state": moved.state.value, "actor": self.actor.user}
            # Logged after the commit, so that a transition that is rolled back is not logged.
            listen(self.connection, "commit", lambda _: log.info("change_moved", **line), once=True)
        return moved

    def record(self, decision: LaneDecision) -> None:
        """Record the lanes of the checkpoint as a new lane table."""
        recorded.record(
            self.connection,
            self._parts.settings,
            self.change.checkpoint,
            decision,
            at=self._parts.now(),
            actor=self.actor.user,
            change=self.change.id,
        )

    def save(self, **values: Any) -> ChangeRequest:
        """Write columns, unless another write came since the change was read.

        Raises:
            ConflictError: The change has been changed since. The message names the user and the operation.
        """
        c, change = t.changes.c, self.change
        done = self.connection.execute(
            update(t.changes)
            .where(c.id == change.id, c.version == change.version)
            .values(**values, version=change.version + 1, updated_at=self._parts.now())
            .returning(t.changes)
        ).first()
        if done is None:
            raise outrun(self.connection, change.id, change.version)
        self.change = rows.change(done)
        return self.change

    def audit(self, action: str, details: Mapping[str, Any] | None = None) -> None:
        """Append an entry `change.<action>` to the audit log."""
        self._parts.audit.append(
            self.connection,
            self.actor,
            f"change.{action}",
            self.change.id,
            project=self.change.project,
            details=details,
        )

    def done(
        self,
        action: str,
        message: str,
        *,
        severity: Severity = Severity.INFO,
        details: Mapping[str, Any] | None = None,
    ) -> ChangeRequest:
        """Append an audit entry and an event for an operation without a transition; return the change."""
        self.audit(action, details)
        self.event(message, severity=severity, details=details)
        return self.change

    def event(
        self,
        message: str,
        *,
        severity: Severity = Severity.INFO,
        details: Mapping[str, Any] | None = None,
        key: str | None = None,
        actor: Actor | None = None,
    ) -> None:
        """Write an event and notify the project's channels.

        Args:
            message: The message, a sentence for display.
            severity: Severity of the message.
            details: Details that are stored with the event.
            key: The change gets one event with this key, however often the step is repeated.
            actor: Actor of the event; default: that of the writer.
        """
        connection, change, actor = self.connection, self.change, actor or self.actor
        if key is not None and row_of(connection, t.change_events, change=change.id, key=key):
            return
        connection.execute(
            insert(t.change_events).values(
                change=change.id,
                at=self._parts.now(),
                actor=actor.user,
                state=change.state,
                step=change.step,
                severity=severity,
                message=message,
                details=dict(details or {}),
                key=key,
            )
        )
        if change.kind is ChangeKind.OVERLAY and severity is Severity.INFO:
            # Overlay revisions are frequent, so channels are notified only of those that fail.
            return
        self._parts.notifications.tell(
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

    # --- steps ---

    def step(self, words: str, *, status: str, data: Mapping[str, Any] | None = None) -> None:
        """Write the status, the text and the data of the present step."""
        at = self._parts.now()
        row = row_of(self.connection, t.change_steps, **step_key(self.change))
        values: dict[str, Any] = {"status": status, "words": words}
        values["ended"] = None if status in ("running", "waiting") else at
        if data is not None:
            values["data"] = dict(data)
        if row is None:
            count = select(func.count()).select_from(t.change_steps).filter_by(change=self.change.id)
            place = {"position": self.connection.scalar(count), "began": at, "attempts": 1}
            self.connection.execute(insert(t.change_steps).values(**step_key(self.change), **place, **values))
        elif any(getattr(row, name) != value for name, value in values.items()):
            self.connection.execute(
                update(t.change_steps).filter_by(**step_key(self.change)).values(**values)
            )

    def watch(self, servers: Mapping[str, int]) -> None:
        """Store the start of each server (Unix ms), which `watched` returns."""
        name = {"name": f"watch:{self.change.id}"}
        upsert(self.connection, t.cursors, name, position=dict(servers), at=self._parts.now())

    def _close_steps(self, status: str) -> None:
        self.connection.execute(
            update(t.change_steps)
            .filter_by(change=self.change.id, ended=None)
            .values(status=status, ended=self._parts.now())
        )


@contextmanager
def writing(parts: Parts, change: ChangeRequest, actor: Actor = PLATFORM) -> Iterator[ChangeWriter]:
    """Open a transaction that writes about a change request."""
    with parts.store.write() as connection:
        yield ChangeWriter(parts, connection, change, actor)


def outrun(connection: Connection, name: str, version: int) -> ConflictError:
    """Return the error for a concurrent change, which names the user who made it."""
    now = rows.load(connection, name)
    query = select(t.change_events).filter_by(change=name).order_by(t.change_events.c.id.desc()).limit(1)
    last = connection.execute(query).first()
    who = f": {last.actor} at {moment(last.at)}, {last.message}" if last else ""
    return ConflictError(
        f"{name} has moved on since version {version}; it is now version {now.version}, "
        f'"{now.state}"{who}; look at it again'
    )


def step_key(change: ChangeRequest) -> dict[str, Any]:
    """Return the key of the present step's row."""
    return {"change": change.id, "state": change.state, "name": change.step}


def step_data(connection: Connection, change: ChangeRequest) -> dict[str, Any]:
    """Return the data of the present step."""
    row = row_of(connection, t.change_steps, **step_key(change))
    return dict(row.data or {}) if row else {}


def watched(connection: Connection, change: ChangeRequest) -> dict[str, int]:
    """Return the start of each server (Unix ms) at the last check of this change; 0: it did not respond."""
    row = row_of(connection, t.cursors, name=f"watch:{change.id}")
    return dict(row.position) if row else {}
