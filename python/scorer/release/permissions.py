"""Standing permissions, which let a learning loop submit changes of a checkpoint within limits.

An owner grants a permission to a user for a limited time. Permissions are listed, audited and revocable, and
a freeze overrides them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select, update

from scorer.release.calendar import moment
from scorer.release.errors import ConflictError, InvalidError, NotAllowedError, NotFoundError, QuotaError
from scorer.release.fields import reason_of
from scorer.release.model import Actor, ChangeKind, Role, StandingPermission
from scorer.release.requests import NewPermission
from scorer.release.store import Store, utcnow
from scorer.release.store import tables as t
from scorer.release.store.rows import read, row_of

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.release.audit import Audit
    from scorer.release.calendar import Calendar


class Permissions:
    """Grants, revokes and checks standing permissions.

    Args:
        store: The database.
        access: Checks roles.
        audit: The audit log, which receives an entry per grant and revocation.
        calendar: The calendar, which checks the names of checkpoints.
        now: Returns the current time.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        audit: Audit,
        calendar: Calendar,
        *,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._store = store
        self._access = access
        self._audit = audit
        self._calendar = calendar
        self._now = now

    def grant(self, actor: Actor, project: str, asked: NewPermission) -> StandingPermission:
        """Permit a user to submit changes of one kind at a checkpoint for a limited time.

        The permission covers a TEST or RELEASE with evidence and the publication of an overlay revision. A
        RELEASE still requires a person's approval.

        Args:
            actor: An owner of the project.
            project: Name of the project.
            asked: The user, the kind of changes, and the limits.

        Raises:
            NotAllowedError: The actor is not an owner.
            InvalidError: The user is not a modeler of the project, or the project may not change the
                checkpoint.
        """
        self._access.require(actor, Role.OWNER, project)
        self._calendar.checkpoint(asked.checkpoint)
        at = self._now()
        values = {
            **asked.model_dump(exclude={"days"}),
            "id": f"sp_{secrets.token_hex(8)}",
            "project": project,
            "reason": reason_of(asked.reason),
            "granted_by": actor.user,
            "granted_at": at,
            "expires_at": at + timedelta(days=asked.days),
        }
        with self._store.write() as connection:
            m = t.members.c
            role = connection.scalar(select(m.role).where(m.project == project, m.user == asked.user))
            if role in (None, Role.VIEWER, Role.AGENT):
                raise InvalidError(
                    f'"{asked.user}" is not a modeler of project {project}; add the user as a member first'
                )
            p = t.projects.c
            allowed = connection.scalar(select(p.checkpoints).where(p.name == project))
            if allowed and asked.checkpoint not in allowed:
                raise InvalidError(
                    f'project "{project}" may not change checkpoint "{asked.checkpoint}", only '
                    f"{', '.join(allowed)}; use one of them"
                )
            connection.execute(insert(t.permissions).values(**values))
            details = {
                name: value.isoformat() if isinstance(value, datetime) else value
                for name, value in values.items()
                if name not in ("id", "project", "granted_at", "granted_by")
            }
            self._audit.append(
                connection, actor, "permission.grant", str(values["id"]), project=project, details=details
            )
            return read(StandingPermission, _row(connection, str(values["id"])))

    def revoke(self, actor: Actor, permission: str, *, reason: str) -> StandingPermission:
        """Revoke a permission. Change requests that were submitted under it and not released are rejected.

        Raises:
            NotAllowedError: The actor is not an owner of its project.
            ConflictError: The permission has been revoked already.
        """
        reason = reason_of(reason)
        with self._store.read() as connection:
            found = read(StandingPermission, _row(connection, permission))
        self._access.require(actor, Role.OWNER, found.project)
        with self._store.write() as connection:
            p = t.permissions.c
            done = connection.execute(
                update(t.permissions)
                .where(p.id == permission, p.revoked_at.is_(None))
                .values(revoked_at=self._now(), revoked_by=actor.user)
            )
            if not done.rowcount:
                raise ConflictError(f"{permission} has been revoked already")
            self._audit.append(
                connection,
                actor,
                "permission.revoke",
                permission,
                project=found.project,
                details={"reason": reason},
            )
            return read(StandingPermission, _row(connection, permission))

    def list(self, actor: Actor, project: str) -> Sequence[StandingPermission]:
        """Return all permissions of a project, including expired and revoked ones, newest first."""
        self._access.require(actor, Role.VIEWER, project)
        p = t.permissions.c
        with self._store.read() as connection:
            rows = connection.execute(
                select(t.permissions).where(p.project == project).order_by(p.granted_at.desc(), p.id)
            )
            return [read(StandingPermission, row) for row in rows]

    # --- inside a transaction ---

    def demand(
        self, connection: Connection, *, project: str, kind: ChangeKind, checkpoint: str, user: str
    ) -> StandingPermission:
        """Return the user's permission for this kind of change. Raises NotAllowedError if there is none."""
        p, now = t.permissions.c, self._now()
        row = connection.execute(
            select(t.permissions)
            .where(
                p.project == project,
                p.kind == kind.value,
                p.checkpoint == checkpoint,
                p.user == user,
                p.revoked_at.is_(None),
                p.expires_at > now,
            )
            .order_by(p.expires_at.desc())
            .limit(1)
        ).first()
        if row is None:
            raise NotAllowedError(
                f'{user} has no standing permission for changes of kind "{kind}" at checkpoint '
                f'"{checkpoint}"; an owner of project {project} can grant one '
                "(`scorer change permission grant`)"
            )
        return read(StandingPermission, row)

    def spend(self, connection: Connection, permission: StandingPermission) -> None:
        """Raise QuotaError if the permitted number of changes has been submitted within the last hour."""
        c, since = t.changes.c, self._now() - timedelta(hours=1)
        count = connection.scalar(
            select(func.count())
            .select_from(t.changes)
            .where(c.permission == permission.id, c.created_at > since)
        )
        if (count or 0) >= permission.per_hour:
            raise QuotaError(
                f"{permission.id} permits {permission.per_hour} changes per hour; {count} were submitted: "
                "wait, or ask an owner for a higher rate"
            )

    def holds(self, connection: Connection, permission: str | None) -> str:
        """Return the reason why a permission is not valid any more; empty if it is valid."""
        if permission is None:
            return ""
        row = _row(connection, permission)
        if row.revoked_at is not None:
            return f"{permission} was revoked by {row.revoked_by} at {moment(row.revoked_at)}"
        if row.expires_at <= self._now():
            return f"{permission} expired at {moment(row.expires_at)}"
        return ""

    def of(self, permission: str) -> StandingPermission:
        """Return a permission by its id. Raises NotFoundError."""
        with self._store.read() as connection:
            return read(StandingPermission, _row(connection, permission))


def _row(connection: Connection, permission: str) -> Any:
    row = row_of(connection, t.permissions, id=permission)
    if row is None:
        raise NotFoundError(f'there is no standing permission "{permission}"; list those of the project')
    return row
