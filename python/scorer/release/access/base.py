"""What the parts of `Access` share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from scorer.release.audit import Audit
from scorer.release.store import Store, utcnow

SEEN_EVERY = timedelta(minutes=1)
"""`last_used_at` and `last_seen_at` are written at most so often: reading must not become writing."""


class Base:
    """The database, the audit log, the clock and how long sessions last."""

    def __init__(
        self,
        store: Store,
        audit: Audit | None = None,
        *,
        now: Callable[[], datetime] = utcnow,
        session_hours: float = 12.0,
        idle_hours: float = 4.0,
    ) -> None:
        """`session_hours` ends every session; `idle_hours` ends one that nobody uses."""
        self._store = store
        self._audit = audit or Audit(store, now=now)
        self._now = now
        self._session = timedelta(hours=session_hours)
        self._idle = timedelta(hours=min(idle_hours, session_hours))
