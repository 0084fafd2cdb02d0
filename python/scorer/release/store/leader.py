"""Which of several platform processes ticks: the one that holds the row and renews it in time."""

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
    """A lease by name. What a leader does is guarded by versions and keys besides, so two do no harm."""

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
        """Takes the lease where it is free or has run out, renews it where it is ours; whether it is ours.

        A row that ends later than a whole lease from now is from a clock that has since been set back: it
        counts as run out, or no process would tick until that time comes again.
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
        """Gives it back, so that the next need not wait."""
        with self._store.write() as connection:
            connection.execute(delete(leader).where(leader.c.holder == self._holder))
