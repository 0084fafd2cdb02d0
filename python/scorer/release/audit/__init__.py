"""The audit log: append-only, each entry with the hash of the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scorer.release.model import Actor, AuditEntry
from scorer.release.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class Verified:
    """What checking the whole chain found."""

    entries: int
    head: str
    """Hash of the newest entry."""
    problems: tuple[str, ...]


class Audit:
    """Reads for everybody; writes inside the transaction of what is audited."""

    def __init__(self, store: Store) -> None:
        raise NotImplementedError

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
        """Adds an entry as part of the caller's transaction."""
        raise NotImplementedError

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
        """Newest first: those of the projects that he may see."""
        raise NotImplementedError

    def verify(self, *, expect: tuple[int, str] | None = None) -> Verified:
        """Checks every hash; `expect` is a sequence and hash that were written down elsewhere."""
        raise NotImplementedError
