"""What waits to be sent: claimed for a while by one process, so that several do not send twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, and_, delete, or_, select, update

from scorer.release.store import Store, tables

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS = 8
"""After so many a message is given up, some three hours after the first."""

LEASE = timedelta(minutes=3)
"""A claim of a process that was killed runs out after so long."""

KEPT = timedelta(days=90)
"""How long messages that are over are shown."""

WAITING, SENT, GIVEN_UP = "waiting", "sent", "given up"

_LONGEST = timedelta(hours=1)


def pause(attempts: int) -> timedelta:
    """How long after a failed attempt the next: 10 s, 40 s, 160 s, ..., at most an hour."""
    return min(timedelta(seconds=10 * 4 ** (attempts - 1)), _LONGEST)


class Outbox:
    """Rows of `outbox`, by claim."""

    def __init__(self, store: Store, holder: str, now: Callable[[], datetime]) -> None:
        self._store = store
        self._holder = holder
        self._now = now

    def claim(self, busy: Sequence[int], channels: int, each: int) -> dict[int, list[Row[Any]]]:
        """Messages that are due, oldest first: `each` of at most so many `channels`, none of them `busy`."""
        box, channel = tables.outbox, tables.channels
        with self._store.read() as connection:  # mostly there is nothing, and no need for the writers' lock
            if connection.execute(select(box.c.id).where(self._due()).limit(1)).first() is None:
                return {}
        with self._store.write() as connection:
            # Some are left where one channel has very many; the next call finds them.
            rows = connection.execute(
                select(box, channel.c.url, channel.c.secret, channel.c.project)
                .join(channel, channel.c.id == box.c.channel)
                .where(self._due(), box.c.channel.not_in(list(busy)))
                .order_by(box.c.id)
                .limit(1000)
            )
            found: dict[int, list[Row[Any]]] = {}
            for row in rows:
                if row.channel in found or len(found) < channels:
                    batch = found.setdefault(row.channel, [])
                    if len(batch) < each:
                        batch.append(row)
            claimed = [row.id for batch in found.values() for row in batch]
            connection.execute(
                update(box)
                .where(box.c.id.in_(claimed))
                .values(claimed_by=self._holder, claimed_until=self._now() + LEASE)
            )
        return found

    def ended(self, row: Row[Any], error: str | None) -> None:
        """What came of an attempt; nothing where the claim has gone to somebody else meanwhile."""
        box = tables.outbox
        attempts = row.attempts + 1
        now = self._now()
        values: dict[str, Any] = {"attempts": attempts, "claimed_by": None, "claimed_until": None}
        if error is None:
            values.update(state=SENT, ended_at=now, error="")
        elif attempts >= ATTEMPTS:
            values.update(state=GIVEN_UP, ended_at=now, error=error)
        else:
            values.update(error=error, due_at=now + pause(attempts))
        with self._store.write() as connection:
            connection.execute(
                update(box)
                .where(box.c.id == row.id, box.c.claimed_by == self._holder, box.c.state == WAITING)
                .values(values)
            )

    def release(self, rows: Sequence[Row[Any]]) -> None:
        """Give claimed messages back without an attempt."""
        box = tables.outbox
        with self._store.write() as connection:
            connection.execute(
                update(box)
                .where(box.c.id.in_([row.id for row in rows]), box.c.claimed_by == self._holder)
                .values(claimed_by=None, claimed_until=None)
            )

    def forget(self) -> None:
        """Deletes what has been over for long."""
        box = tables.outbox
        with self._store.write() as connection:
            connection.execute(delete(box).where(box.c.ended_at < self._now() - KEPT))

    def _due(self) -> Any:
        """Due and not claimed; a time further off than we ever set is from a clock that was set back."""
        box, now = tables.outbox.c, self._now()
        return and_(
            box.state == WAITING,
            or_(box.due_at <= now, box.due_at > now + 2 * _LONGEST),
            or_(box.claimed_until.is_(None), box.claimed_until <= now, box.claimed_until > now + 2 * LEASE),
        )
