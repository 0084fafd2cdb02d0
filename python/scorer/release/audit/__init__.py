"""The append-only audit log. Each entry contains the hash of its predecessor.

Triggers in the database reject changes, and the hash chain reveals every entry that was changed, removed,
inserted or reordered. The owner of the database could rewrite the whole chain and its head. Keep a copy of
the head elsewhere (`scorer audit head`) to detect that too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, or_, select, update

from scorer.release.answers import Verified
from scorer.release.audit.chain import Walk, entry_hash
from scorer.release.errors import NotAllowedError
from scorer.release.model import Actor, AuditEntry
from scorer.release.store import Store, dumps, instant, loads, micros, tables, utcnow

_PAGE = 1000


class Audit:
    """Appends to the audit log within the audited transaction, and reads and verifies it.

    Args:
        store: The database.
        now: Returns the current time.
    """

    def __init__(self, store: Store, *, now: Callable[[], datetime] = utcnow) -> None:
        self._store = store
        self._now = now

    def append(
        self,
        connection: Connection,
        actor: Actor,
        action: str,
        object: str,  # noqa: A002 - as the entry has it
        *,
        project: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> AuditEntry:
        """Append an entry in the caller's transaction. Its details contain the id of the actor's token.

        Args:
            connection: Connection of a `Store.write`.
            actor: The acting user.
            action: Name of the action, for example `change.approve`.
            object: Name or id of its object.
            project: Name of the project; empty: the platform.
            details: Further details.
        """
        head = tables.audit_head
        # `Store.write` serialises the platform's writers. The row lock also excludes other programs.
        last = connection.execute(select(head.c.sequence, head.c.hash).with_for_update()).one()
        fields: dict[str, Any] = {
            "sequence": last.sequence + 1,
            "at": micros(self._now()),
            "actor": actor.user,
            "via": actor.via,
            "action": action,
            "object": object,
            "project": project,
            "details": dumps({**(details or {}), **({"token": actor.token} if actor.token else {})}),
            "previous": last.hash,
        }
        fields["hash"] = entry_hash(fields)
        connection.execute(insert(tables.audit).values(fields))
        connection.execute(update(head).values(sequence=fields["sequence"], hash=fields["hash"]))
        return _entry(fields)

    def entries(
        self,
        actor: Actor,
        *,
        project: str | None = None,
        action: str | None = None,
        user: str | None = None,
        object: str | None = None,  # noqa: A002
        begin: datetime | None = None,
        end: datetime | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Return entries of the actor's projects and of the actor, newest first. Admins see all entries.

        Args:
            actor: The calling user.
            project: Only entries of this project.
            action: Only entries with this action, or with this prefix if it ends in `.`.
            user: Only entries of this acting user.
            object: Only entries about this object.
            begin: Only entries from this time on.
            end: Only entries before this time.
            before: Only entries with a lower sequence, to read the next page.
            limit: Limit on the number of entries, at most 1,000.
        """
        table = tables.audit.c
        query = select(tables.audit).order_by(table.sequence.desc()).limit(max(0, min(limit, _PAGE)))
        if not actor.admin:
            query = query.where(or_(table.project.in_(sorted(actor.roles)), table.actor == actor.user))
        if project is not None:
            query = query.where(table.project == project)
        if action is not None:
            query = query.where(
                table.action.startswith(action, autoescape=True)
                if action.endswith(".")
                else table.action == action
            )
        if begin is not None:
            query = query.where(table.at >= micros(begin))
        if end is not None:
            query = query.where(table.at < micros(end))
        if user is not None:
            query = query.where(table.actor == user)
        if object is not None:
            query = query.where(table.object == object)
        if before is not None:
            query = query.where(table.sequence < before)
        with self._store.read() as connection:
            return [_entry(_fields(row)) for row in connection.execute(query)]

    def head(self) -> tuple[int, str]:
        """Return the sequence and hash of the newest entry, to be kept elsewhere for a later `verify`."""
        with self._store.read() as connection:
            row = connection.execute(select(tables.audit_head)).one()
            return row.sequence, row.hash

    def verify_for(self, actor: Actor, *, expect: tuple[int, str] | None = None) -> Verified:
        """Verify the audit log of all projects; for admins. See `verify`."""
        if not actor.admin:
            raise NotAllowedError("only an admin verifies the audit log; ask one")
        return self.verify(expect=expect)

    def verify(self, *, expect: tuple[int, str] | None = None) -> Verified:
        """Verify the hash of every entry.

        Args:
            expect: Sequence and hash of an earlier head that was kept elsewhere; None: not compared.
        """
        walk = Walk(expect)
        entries = 0
        with self._store.read() as connection:
            head = connection.execute(select(tables.audit_head.c.sequence, tables.audit_head.c.hash)).first()
            rows = connection.execution_options(yield_per=_PAGE).execute(
                select(tables.audit).order_by(tables.audit.c.sequence)
            )
            for part in rows.partitions():
                walk.feed(_fields(row) for row in part)
                entries += len(part)
        problems = walk.problems(None if head is None else (head.sequence, head.hash))
        return Verified(entries, walk.hash, problems, walk.sequence)


def _fields(row: Row[Any]) -> dict[str, Any]:
    return dict(row._mapping)


def _entry(fields: dict[str, Any]) -> AuditEntry:
    return AuditEntry(**{**fields, "at": instant(fields["at"]), "details": loads(fields["details"])})
