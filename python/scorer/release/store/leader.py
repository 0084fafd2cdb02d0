"""Leader election among the platform processes of one database. Only the leader runs the ticker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select, update

from scorer.release.store.tables import leader
from scorer.release.store.values import utcnow

if TYPE_CHECKING:
    from scorer.release.store import Store


class Leader:
    """A lease that one process holds and renews.

    The leader's writes are also guarded by versions and keys, so two leaders for a short time do no harm.

    Args:
        store: The database that the processes share.
        holder: Name of this process.
        seconds: Duration of the lease.
        now: Returns the current time.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        seconds: float = 15.0,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._store = store
        self._holder = holder
        self._length = timedelta(seconds=seconds)
        self._now = now

    def lead(self) -> bool:
        """Acquire the lease if it is free or has expired, or renew it. Returns whether this process holds it.

        A lease that ends later than its full duration from now was written before the clock was set back. It
        counts as expired, because otherwise no process would lead until that time.
        """
        with self._store.write() as connection:
            now = self._now()
            row = connection.execute(select(leader)).one_or_none()
            until = now + self._length
            if row is None:
                connection.execute(insert(leader).values(id=1, holder=self._holder, since=now, until=until))
                return True
            if row.holder == self._holder:
                connection.execute(update(leader).values(until=until))
                return True
            if row.until <= now or row.until > until + self._length:
                connection.execute(update(leader).values(holder=self._holder, since=now, until=until))
                return True
            return False

    def resign(self) -> None:
        """Release the lease, so that another process can acquire it immediately."""
        with self._store.write() as connection:
            connection.execute(delete(leader).where(leader.c.holder == self._holder))
