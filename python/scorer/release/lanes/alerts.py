"""Records and reports changes of a checkpoint that were made outside the platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, select

from scorer.release.model import PLATFORM, RecordedTable, Severity
from scorer.release.store import tables as t
from scorer.release.store.rows import upsert

if TYPE_CHECKING:
    from scorer.events import EventLog
    from scorer.release.audit import Audit
    from scorer.release.fleet import BrokenGlass
    from scorer.release.notify import Notifications

_DRIFT = "drift:"


class Alerts:
    """Writes audit entries and log events and notifies the projects of a checkpoint.

    Args:
        audit: The audit log.
        notifications: Sends to the projects' channels; None: no messages are sent.
        events: The platform's event log; None: no events are written.
        now: Returns the current time.
    """

    def __init__(
        self,
        audit: Audit,
        notifications: Notifications | None = None,
        events: EventLog | None = None,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._audit = audit
        self._notifications = notifications
        self._events = events
        self._now = now

    def changed_outside(
        self,
        connection: Connection,
        checkpoint: str,
        server: str,
        made: RecordedTable | None,
        answer: Mapping[str, str],
        glass: BrokenGlass | None,
    ) -> None:
        """Report lanes of a server that the platform had not recorded.

        Args:
            connection: Connection of the caller's transaction.
            checkpoint: Name of the checkpoint.
            server: Name of the server.
            made: The table that records these lanes.
            answer: Share and digest by answer lane.
            glass: The manual change behind them; None: there was none with `--break-glass`.
        """
        details: dict[str, Any] = {
            "server": server,
            "revision": made.revision if made else None,
            "answer": dict(answer),
        }
        if glass is None:
            self._audit.append(connection, PLATFORM, "lanes.found", checkpoint, details=details)
            is_first = made is not None and made.revision == 1
            level = "info" if is_first else "warning"
            self._log(level, "lanes_found", checkpoint=checkpoint, server=server)
            return
        details |= {"by": glass.by, "reason": glass.reason, "at": glass.at.isoformat()}
        self._audit.append(connection, PLATFORM, "lanes.break-glass", checkpoint, details=details)
        self._log(
            "error", "break_glass", checkpoint=checkpoint, server=server, by=glass.by, reason=glass.reason
        )
        self._notify(
            connection,
            checkpoint,
            Severity.ERROR,
            f"break glass at {checkpoint}",
            f"the answer lanes of {checkpoint} were changed at server {server} with --break-glass by "
            f"{glass.by or 'an unknown user'}: {glass.reason}",
            {"checkpoint": checkpoint, **details},
        )

    def drift(self, connection: Connection, checkpoint: str, digest: str, servers: list[str]) -> None:
        """Report once that a managed checkpoint's alias was moved outside the platform.

        Args:
            connection: Connection of the caller's transaction.
            checkpoint: Name of the checkpoint.
            digest: Digest that the alias points to; empty: the drift has ended.
            servers: Names of the servers that report it.
        """
        name, c = f"{_DRIFT}{checkpoint}", t.cursors.c
        known = connection.execute(select(c.position).where(c.name == name)).scalar()
        if (known or {}).get("digest", "") == digest:
            return
        if not digest:
            connection.execute(delete(t.cursors).where(c.name == name))
            self._audit.append(connection, PLATFORM, "alias.drift-ended", checkpoint, details=known)
            return
        position = {"digest": digest, "servers": servers}
        upsert(connection, t.cursors, {"name": name}, position=position, at=self._now())
        self._audit.append(connection, PLATFORM, "alias.drift", checkpoint, details=position)
        self._log("warning", "alias_drift", checkpoint=checkpoint, points_to=digest, servers=servers)
        self._notify(
            connection,
            checkpoint,
            Severity.WARNING,
            f"the alias of {checkpoint} was moved outside the platform",
            f"the registry's alias of {checkpoint} points to {digest[:19]}, which no change request "
            "released: the servers do not serve it; draft a change request, or move the alias back",
            {"checkpoint": checkpoint, **position},
        )

    def reachable(self, server: str, *, is_reachable: bool, error: str) -> None:
        """Log that a server has become unreachable, or reachable again."""
        if is_reachable:
            self._log("info", "server_back", server=server)
        else:
            self._log("warning", "server_lost", server=server, error=error)

    def pool(self, server: str, *, is_connected: bool, error: str) -> None:
        """Log that a live server has lost the connection to its shadow pool, or has restored it."""
        if is_connected:
            self._log("info", "pool_back", server=server)
        else:
            self._log("warning", "pool_lost", server=server, error=error)

    def _log(self, level: str, event: str, **fields: Any) -> None:
        if self._events is not None:
            getattr(self._events, level)(event, **fields)

    def _notify(
        self,
        connection: Connection,
        checkpoint: str,
        severity: Severity,
        subject: str,
        body: str,
        payload: Mapping[str, Any],
    ) -> None:
        if self._notifications is None:
            return
        for row in connection.execute(select(t.projects.c.name, t.projects.c.checkpoints)).all():
            if not row.checkpoints or checkpoint in row.checkpoints:
                self._notifications.tell(
                    connection, row.name, severity, subject, body, checkpoint=checkpoint, payload=payload
                )


def drift_of(connection: Connection, checkpoint: str) -> str:
    """Return the digest that a managed checkpoint's alias was moved to outside the platform, or ""."""
    c = t.cursors.c
    position = connection.execute(select(c.position).where(c.name == f"{_DRIFT}{checkpoint}")).scalar()
    return str((position or {}).get("digest", ""))
