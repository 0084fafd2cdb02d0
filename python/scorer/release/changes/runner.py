"""The runner, which advances every open change request by at most one step per tick.

The process may be killed at any point. A step reads the database and the servers' statuses, performs an
operation that can be repeated, and writes its result in one transaction. The next tick, in any process,
continues from the database.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from scorer.release import states
from scorer.release.changes import rows
from scorer.release.changes.backtesting import Backtesting
from scorer.release.changes.pipeline import Pipeline
from scorer.release.changes.writer import writing
from scorer.release.errors import ConflictError, UnreachableError
from scorer.release.model import ChangeRequest, ChangeState, Severity
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts

_LONGEST_PAUSE = timedelta(minutes=5)


class Runner:
    """Advances every open change request. The caller ensures that only one process runs it.

    Args:
        parts: Dependencies that operations on change requests share.
        pipeline: The steps.
    """

    def __init__(self, parts: Parts, pipeline: Pipeline) -> None:
        self._parts = parts
        self._pipeline = pipeline
        self._backtesting = Backtesting(parts)

    def tick(self) -> int:
        """Advance every open change request by at most one step; return their number.

        Raises:
            UnreachableError: The database cannot be reached. Other errors are logged.
        """
        self._parts.reconciler.round()
        self._backtesting.keep()
        looked = 0
        for name in self._open():
            looked += 1
            self._advance(name)
        return looked

    def _open(self) -> list[str]:
        c = t.changes.c
        moving = [state.value for state in states.OPEN if state is not ChangeState.DRAFT]
        with self._parts.store.read() as connection:
            found = connection.execute(select(c.id).where(c.state.in_(moving)).order_by(c.number))
            return list(found.scalars())

    def _advance(self, name: str) -> None:
        """Advance one change request. Its errors do not affect others."""
        with self._parts.store.read() as connection:
            row = rows.row_of(connection, name)
        change = rows.change(row)
        # A retry time that is further ahead than the longest pause was written before the clock was set back.
        if row.retry_at and self._parts.now() < row.retry_at <= self._parts.now() + _LONGEST_PAUSE:
            return
        try:
            self._pipeline.advance(change, row)
        except ConflictError:
            # The change request was changed concurrently; the next tick reads it again.
            return
        except UnreachableError as error:
            self._say_once(change, str(error))
        except Exception as error:
            self._defect(change, row.failures, error)
        else:
            if row.failures:
                self._note(name, failures=0, retry_at=None)

    def _say_once(self, change: ChangeRequest, message: str) -> None:
        """Write an event for an operation that is retried at its first failure, and not at every tick."""
        mark = hashlib.sha256(f"{change.state}/{change.step}/{message}".encode()).hexdigest()[:16]
        with writing(self._parts, change) as work:
            work.event(
                f"{message} (tried again until it does)", key=f"away:{mark}", severity=Severity.WARNING
            )

    def _defect(self, change: ChangeRequest, failures: int, error: Exception) -> None:
        """Log an unexpected error under an id, count it, and postpone the next attempt."""
        number = uuid.uuid4().hex[:8]
        if self._parts.events is not None:
            self._parts.events.defect("change_step_failed", error)
        pause = min(timedelta(seconds=2.0 ** min(failures, 10)), _LONGEST_PAUSE)
        self._note(change.id, failures=failures + 1, retry_at=self._parts.now() + pause)
        with writing(self._parts, change) as work:
            work.event(
                f"step {change.step} failed unexpectedly ({type(error).__name__}, id {number}); "
                f"tried again, the server's log has more",
                key=f"defect:{change.state}:{change.step}:{type(error).__name__}:{failures.bit_length()}",
                severity=Severity.ERROR,
                details={"id": number, "failures": failures + 1},
            )

    def _note(self, name: str, *, failures: int, retry_at: datetime | None) -> None:
        with self._parts.store.write() as connection:
            connection.execute(
                update(t.changes).filter_by(id=name).values(failures=failures, retry_at=retry_at)
            )
