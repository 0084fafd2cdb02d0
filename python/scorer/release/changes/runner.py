"""Moves change requests along: every open one by at most one step a tick.

Whoever ticks may be killed between any two statements. A step looks at what is in the database and at what
servers say, does something that may be done again, and writes what came of it in one transaction; the next
tick, of whatever process, begins from there.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from scorer.release import states
from scorer.release.changes import rows
from scorer.release.changes.pipeline import Pipeline
from scorer.release.errors import ConflictError, UnreachableError
from scorer.release.model import ChangeRequest, ChangeState, Severity
from scorer.release.store import Store, utcnow
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.events import EventLog
    from scorer.release.changes.operations import Changes
    from scorer.release.lanes.reconcile import Reconciler
    from scorer.release.store.leader import Leader

_LONGEST_PAUSE = timedelta(minutes=5)


class Runner:
    """The pipeline's motor.

    Args:
        store: everything durable.
        changes: whose ledger it writes.
        pipeline: the steps.
        reconciler: brings servers in step, first in every tick.
        leader: only its holder ticks; None: whoever calls has seen to that.
        events: where defects are said; None: nowhere but in the change's events.
        now: the time.
    """

    def __init__(
        self,
        store: Store,
        changes: Changes,
        pipeline: Pipeline,
        reconciler: Reconciler,
        *,
        leader: Leader | None = None,
        events: EventLog | None = None,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._store = store
        self._ledger = changes.ledger
        self._pipeline = pipeline
        self._reconciler = reconciler
        self._leader = leader
        self._events = events
        self._now = now

    def tick(self) -> int:
        """One round, where this process leads: how many changes were looked at.

        Raises:
            UnreachableError: the database is away; nothing else leaves it.
        """
        if self._leader is not None and not self._leader.lead():
            return 0
        self._reconciler.round()
        looked = 0
        for name in self._open():
            looked += 1
            self._advance(name)
        return looked

    def _open(self) -> list[str]:
        c = t.changes.c
        moving = [state.value for state in states.OPEN if state is not ChangeState.DRAFT]
        with self._store.read() as connection:
            found = connection.execute(select(c.id).where(c.state.in_(moving)).order_by(c.number))
            return list(found.scalars())

    def _advance(self, name: str) -> None:
        """One change; what goes wrong with it stays with it."""
        with self._store.read() as connection:
            row = connection.execute(select(t.changes).where(t.changes.c.id == name)).one()
        change = rows.change(row)
        # A time further ahead than any pause is from before the clock was set back.
        if row.retry_at and self._now() < row.retry_at <= self._now() + _LONGEST_PAUSE:
            return
        try:
            self._pipeline.advance(change, row)
        except ConflictError:
            # Somebody was first: the next tick looks again.
            return
        except UnreachableError as error:
            self._say_once(change, str(error))
        except Exception as error:
            self._defect(change, row.failures, error)
        else:
            if row.failures:
                self._note(name, failures=0, retry_at=None)

    def _say_once(self, change: ChangeRequest, message: str) -> None:
        """What is tried again is said when it begins, not at every tick."""
        mark = hashlib.sha256(f"{change.state}/{change.step}/{message}".encode()).hexdigest()[:16]
        with self._store.write() as connection:
            self._ledger.narrate(
                connection,
                change,
                f"{message} (tried again until it does)",
                key=f"away:{mark}",
                severity=Severity.WARNING,
            )

    def _defect(self, change: ChangeRequest, failures: int, error: Exception) -> None:
        """Counts what nobody expected, says so under an id, and leaves the change alone for a while."""
        number = uuid.uuid4().hex[:8]
        if self._events is not None:
            self._events.defect("change_step_failed", error)
        pause = min(timedelta(seconds=2.0 ** min(failures, 10)), _LONGEST_PAUSE)
        self._note(change.id, failures=failures + 1, retry_at=self._now() + pause)
        with self._store.write() as connection:
            self._ledger.narrate(
                connection,
                change,
                f"step {change.step} failed unexpectedly ({type(error).__name__}, id {number}); "
                f"tried again, the server's log has more",
                key=f"defect:{change.state}:{change.step}:{type(error).__name__}:{failures.bit_length()}",
                severity=Severity.ERROR,
                details={"id": number, "failures": failures + 1},
            )

    def _note(self, name: str, *, failures: int, retry_at: datetime | None) -> None:
        with self._store.write() as connection:
            connection.execute(
                update(t.changes).where(t.changes.c.id == name).values(failures=failures, retry_at=retry_at)
            )
