"""The audit log: append-only, each entry with the hash of the one before.

The chain shows every change, removal, insertion and reordering that is not itself followed through to the
head; triggers in the database refuse to make them. Who owns the database can rewrite both, chain and head:
a copy of the head kept elsewhere (`scorer audit head`) shows that too.
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

_AT_ONCE = 1000


class Audit:
    """Reads for everybody; writes inside the transaction of what is audited."""

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
        """Adds an entry as part of the caller's transaction, which must be one of `Store.write`.

        The token that the actor came with stands in the details as `token`.
        """
        head = tables.audit_head
        # Writers take turns anyway; the row's lock holds off programs that do not know of that.
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
        before: int | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Newest first: those of the actor's projects, and the actor's own; admins see all.

        `action` may end in `.`, for everything that begins so. At most 1,000 at once; `before` pages on.
        """
        table = tables.audit.c
        query = select(tables.audit).order_by(table.sequence.desc()).limit(max(0, min(limit, _AT_ONCE)))
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
        if user is not None:
            query = query.where(table.actor == user)
        if object is not None:
            query = query.where(table.object == object)
        if before is not None:
            query = query.where(table.sequence < before)
        with self._store.read() as connection:
            return [_entry(_fields(row)) for row in connection.execute(query)]

    def head(self) -> tuple[int, str]:
        """Sequence and hash of the newest entry: what is written down elsewhere to verify against later."""
        with self._store.read() as connection:
            row = connection.execute(select(tables.audit_head)).one()
            return row.sequence, row.hash

    def verify_for(self, actor: Actor, *, expect: tuple[int, str] | None = None) -> Verified:
        """Do the same for an admin: it walks the log of all projects."""
        if not actor.admin:
            raise NotAllowedError("the whole audit log is checked by admins; ask one")
        return self.verify(expect=expect)

    def verify(self, *, expect: tuple[int, str] | None = None) -> Verified:
        """Checks every hash; `expect` is a sequence and hash that were written down elsewhere."""
        walk = Walk(expect)
        entries = 0
        with self._store.read() as connection:
            head = connection.execute(select(tables.audit_head.c.sequence, tables.audit_head.c.hash)).first()
            rows = connection.execution_options(yield_per=_AT_ONCE).execute(
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
