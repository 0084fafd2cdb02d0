"""Outbox of messages. One process claims a message for a limited time, so that no other process sends it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, and_, delete, or_, select, update

from scorer.release.store import Store, tables

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS = 8
"""Number of failed attempts after which a message is abandoned, about three hours after the first one."""

LEASE = timedelta(minutes=3)
"""Duration of a claim. Afterwards, another process may send the message."""

KEPT = timedelta(days=90)
"""Retention time of messages that were sent or abandoned."""

WAITING, SENT, GIVEN_UP = "waiting", "sent", "given up"

_LONGEST = timedelta(hours=1)


def pause(attempts: int) -> timedelta:
    """Return the pause after a failed attempt: 10 s, 40 s, 160 s, ..., at most one hour.

    Args:
        attempts: Number of failed attempts, from 1.
    """
    return min(timedelta(seconds=10 * 4 ** (attempts - 1)), _LONGEST)


class Outbox:
    """Claims messages for one process and records the results.

    Args:
        store: The database.
        holder: Id of this process in its claims.
        now: Returns the current time.
    """

    def __init__(self, store: Store, holder: str, now: Callable[[], datetime]) -> None:
        self._store = store
        self._holder = holder
        self._now = now

    def claim(self, busy: Sequence[int], channels: int, each: int) -> dict[int, list[Row[Any]]]:
        """Claim messages that are due, oldest first.

        Args:
            busy: Ids of channels to skip.
            channels: Limit on the number of channels.
            each: Limit on the messages of one channel.

        Returns:
            The claimed messages by channel.
        """
        box, channel = tables.outbox, tables.channels
        with self._store.read() as connection:  # usually nothing is due; this read needs no writers' lock
            if connection.execute(select(box.c.id).where(self._due()).limit(1)).first() is None:
                return {}
        with self._store.write() as connection:
            # If one channel has very many messages, those of other channels may be left to the next call.
            rows = connection.execute(
                select(box, channel.c.url, channel.c.secret, channel.c.project)
                .join(channel, channel.c.id == box.c.channel)
                .where(self._due(), box.c.channel.not_in(list(busy)))
                .order_by(box.c.id)
                .limit(1000)
            )
            batches: dict[int, list[Row[Any]]] = {}
            for row in rows:
                if row.channel in batches or len(batches) < channels:
                    batch = batches.setdefault(row.channel, [])
                    if len(batch) < each:
                        batch.append(row)
            claimed = [row.id for batch in batches.values() for row in batch]
            connection.execute(
                update(box)
                .where(box.c.id.in_(claimed))
                .values(claimed_by=self._holder, claimed_until=self._now() + LEASE)
            )
        return batches

    def ended(self, row: Row[Any], error: str | None) -> None:
        """Record the result of an attempt, unless the claim has passed to another process.

        Args:
            row: The message.
            error: Reason of the failure; None: the message was sent.
        """
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
        """Release claims without an attempt."""
        box = tables.outbox
        with self._store.write() as connection:
            connection.execute(
                update(box)
                .where(box.c.id.in_([row.id for row in rows]), box.c.claimed_by == self._holder)
                .values(claimed_by=None, claimed_until=None)
            )

    def forget(self) -> None:
        """Delete messages that ended more than `KEPT` ago."""
        box = tables.outbox
        with self._store.write() as connection:
            connection.execute(delete(box).where(box.c.ended_at < self._now() - KEPT))

    def _due(self) -> Any:
        """Return the condition for messages that are due and not claimed.

        A time further in the future than any pause was written before the clock was set back; it is ignored.
        """
        box, now = tables.outbox.c, self._now()
        return and_(
            box.state == WAITING,
            or_(box.due_at <= now, box.due_at > now + 2 * _LONGEST),
            or_(box.claimed_until.is_(None), box.claimed_until <= now, box.claimed_until > now + 2 * LEASE),
        )
