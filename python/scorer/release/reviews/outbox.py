"""The outbox of the review queue: reports the decisions of reviewers to servers until they are recorded.

A report can be sent twice, if the process ends or the response is lost after the server has recorded it. The
server recognises it by its revision and records it once, so nothing needs to be claimed.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, Row, and_, or_, select, update

from scorer.release.errors import ConflictError, NotFoundError, PlatformError, UnreachableError
from scorer.release.fleet.outcomes import ScoringAddress
from scorer.release.model import PLATFORM, CaseDelivery
from scorer.release.notify.outbox import ATTEMPTS, pause
from scorer.release.reviews.rows import DELIVERED, WAITING, record
from scorer.release.store import Store, micros, utcnow
from scorer.release.store import tables as t
from scorer.v1 import scoring_pb2 as pb

if TYPE_CHECKING:
    from scorer.release.settings import PlatformFile

_AT_ONCE = 100
"""Limit on the outcomes of one round."""
_SECONDS = 5.0
"""Time in seconds after which a round begins no further report."""
_TRIED = 3
"""Limit on the addresses that one attempt calls."""
_ALONE = timedelta(minutes=10)
"""Time for which an outcome without a token is reported only to the server of its decision.

Another server does not know the decision, so the outcome would be unproven there.
"""
_LONGEST = timedelta(hours=1)
_SOURCE_ID = 64
"""Limit of servers on the characters of a source's id."""
_BOX, _CASE = t.review_outbox.c, t.review_cases.c


class OutcomeReporter(Protocol):
    """Reports an outcome to a server; see `scorer.release.fleet.outcomes.OutcomeCalls`."""

    def report(self, to: ScoringAddress, request: pb.ReportOutcomeRequest) -> pb.ReportOutcomeResponse:
        """Report one outcome; a repeated report has no further effect."""

    def close(self) -> None:
        """Close the connections to the servers."""


class OutcomeOutbox:
    """Reports the outcomes that are due.

    Args:
        settings: The servers with their addresses.
        store: The database.
        calls: Calls the servers.
        now: Returns the current time.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        calls: OutcomeReporter,
        *,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._settings, self._store, self._calls, self._now = settings, store, calls, now
        self.failed = 0
        """Number of failed attempts in this process."""

    def deliver(self) -> int:
        """Report outcomes that are due, oldest first; return the number of those that were recorded."""
        until = time.monotonic() + _SECONDS
        now = self._now()
        columns = (_CASE.checkpoint, _CASE.decision_id, _CASE.server, _CASE.decided_by)
        query = (
            select(t.review_outbox, *columns)
            .join(t.review_cases, _CASE.id == _BOX.case)
            # A time further in the future than any pause was written before the clock was set back.
            .where(
                _BOX.state == WAITING,
                or_(_BOX.due_at <= now, _BOX.due_at > now + 2 * _LONGEST),
            )
            .order_by(_BOX.due_at, _BOX.id)
            .limit(_AT_ONCE)
        )
        with self._store.read() as connection:
            due = connection.execute(query).all()
        delivered = 0
        for row in due:
            if time.monotonic() > until:
                break
            delivered += self._deliver(row)
        return delivered

    def close(self) -> None:
        """Close the connections to the servers."""
        self._calls.close()

    def _deliver(self, row: Row[Any]) -> bool:
        try:
            server, response = self._report(row)
        except ConflictError as error:
            self._store.transact(partial(self._revise, row, str(error)))
            return False
        except PlatformError as error:
            self.failed += 1
            self._store.transact(partial(self._delay, row, str(error)))
            return False
        return self._store.transact(partial(self._keep, row, server, response))

    def _report(self, row: Row[Any]) -> tuple[str, pb.ReportOutcomeResponse]:
        """Report an outcome to the first server that takes it; return its name and response."""
        request = pb.ReportOutcomeRequest(
            checkpoint=row.checkpoint,
            decision_id=row.decision_id,
            kind=row.kind,
            value=row.value,
            revision=row.revision,
            occurred_at_ms=micros(row.occurred_at) // 1000,
            decision_token=b"" if row.token is None else base64.b64decode(row.token),
            source=self._source(row),
        )
        failed: PlatformError = UnreachableError(
            "no server has an address for outcomes; set `scoring` of a [[fleet]] server, or of [platform], "
            "in platform.toml"
        )
        for to in self._addresses(row)[:_TRIED]:
            try:
                return to.name, self._calls.report(to, request)
            except (UnreachableError, NotFoundError) as error:
                failed = error
        raise failed

    def _source(self, row: Row[Any]) -> pb.OutcomeSource:
        """Return the reviewer as the source of an outcome."""
        known = self._settings.checkpoints.get(row.checkpoint)
        user = row.decided_by if known is not None and known.review.source_id == "user" else None
        by = user if user is not None and len(user) <= _SOURCE_ID else f"case-{row.case}"
        return pb.OutcomeSource(kind=pb.OUTCOME_SOURCE_KIND_REVIEWER, id=by)

    def _addresses(self, row: Row[Any]) -> Sequence[ScoringAddress]:
        """Return the servers to call, that of the decision first."""
        live = [one for one in self._settings.fleet if one.scoring and one.role == "live"]
        known = [ScoringAddress(one.name, str(one.scoring)) for one in live]
        own = [one for one in known if one.name == row.server]
        if own and row.token is None and self._now() - row.occurred_at < _ALONE:
            return own
        others = [one for one in known if one.name != row.server]
        others += [ScoringAddress(one, one) for one in self._settings.platform.scoring]
        # Each attempt begins at another server, so that a few that are away do not delay it.
        begin = row.attempts % len(others) if others else 0
        return [*own, *others[begin:], *others[:begin]]

    # --- results ---

    def _keep(
        self, row: Row[Any], server: str, response: pb.ReportOutcomeResponse, connection: Connection
    ) -> bool:
        """Store that an outcome was recorded; return whether it was waiting until now."""
        if not self._end(connection, row, state=DELIVERED, error=""):
            return False
        details = {
            "server": server,
            "revision": row.revision,
            "proven": response.proven,
            "superseded": response.superseded,
        }
        connection.execute(
            update(t.review_cases)
            .where(_CASE.id == row.case, _CASE.revision == row.revision)
            .values(delivery=CaseDelivery.DELIVERED, version=_CASE.version + 1)
        )
        record(connection, row.case, self._now(), PLATFORM.user, "delivered", details)
        return True

    def _revise(self, row: Row[Any], error: str, connection: Connection) -> None:
        """Use the next revision, because the server has another value of this one."""
        if not self._end(connection, row, revision=row.revision + 1, error=error):
            return
        connection.execute(
            update(t.review_cases)
            .where(_CASE.id == row.case, _CASE.revision == row.revision)
            .values(revision=row.revision + 1, version=_CASE.version + 1)
        )
        details = {"revision": row.revision + 1, "why": error}
        record(connection, row.case, self._now(), PLATFORM.user, "revised", details)

    def _delay(self, row: Row[Any], error: str, connection: Connection) -> None:
        attempts = row.attempts + 1
        due = self._now() + pause(min(attempts, ATTEMPTS))
        self._end(connection, row, attempts=attempts, due_at=due, error=error[:500])

    @staticmethod
    def _end(connection: Connection, row: Row[Any], **values: Any) -> bool:
        """Update the outcome, unless another process has or a correction has replaced it."""
        done = connection.execute(
            update(t.review_outbox)
            .where(and_(_BOX.id == row.id, _BOX.state == WAITING, _BOX.revision == row.revision))
            .values(**values)
        )
        return bool(done.rowcount)
