"""Permissions and versions of operations on change requests, checked before and within a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from scorer.release import states
from scorer.release.access import roles
from scorer.release.changes import rows
from scorer.release.changes.writer import ChangeWriter, outrun
from scorer.release.errors import ConflictError, NotAllowedError, NotFoundError, PlatformError
from scorer.release.model import Actor, ChangeRequest, Role
from scorer.release.states import Who

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts

_BY_APPROVER = frozenset({"rollback", "pause", "resume"})
"""Operations of authors that the approver of the change may perform as well."""
_ADOPTING = frozenset({"edit", "delete", "submit"})
"""Operations by which any modeler adopts the draft of an agent and becomes its author."""


class ChangeGuard:
    """Opens change requests for operations.

    Args:
        parts: Dependencies that operations on change requests share.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def see(self, actor: Actor, change: str) -> ChangeRequest:
        """Return a change request that the actor may see. Raises NotFoundError."""
        with self._parts.store.read() as connection:
            found = rows.load(connection, change)
        self.check_visible(actor, found)
        return found

    def check_visible(self, actor: Actor, change: ChangeRequest) -> None:
        """Raise NotFoundError if the actor may not see a change request, as if it did not exist."""
        try:
            roles.require(actor, Role.VIEWER, change.project)
        except PlatformError:
            raise unknown(change.id) from None

    def allowed(self, actor: Actor, change: str, name: str) -> ChangeRequest:
        """Return a change request if the actor may perform an operation on it now.

        Raises:
            NotFoundError: There is no such change, or the actor may not see it.
            NotAllowedError: The actor may not perform the operation.
            ConflictError: The state of the change does not allow the operation.
        """
        found = self.see(actor, change)
        self.authorise(actor, found, name)
        return found

    @contextmanager
    def open(
        self, actor: Actor, before: ChangeRequest, name: str, version: int | None = None
    ) -> Iterator[ChangeWriter]:
        """Open the transaction of an operation, in which permissions and state are checked again."""
        with self._parts.store.write() as connection:
            now = self._current(connection, before, name, version)
            self.authorise(actor, now, name, connection)
            yield ChangeWriter(self._parts, connection, now, actor)

    def authorise(
        self, actor: Actor, change: ChangeRequest, name: str, connection: Connection | None = None
    ) -> None:
        """Raise NotAllowedError unless the actor may perform an operation, regardless of the state."""
        if connection is None:
            with self._parts.store.read() as opened:
                authors = rows.authors(opened, change.id)
        else:
            authors = rows.authors(connection, change.id)
        self._authorise(actor, change, name, authors)

    def _authorise(self, actor: Actor, change: ChangeRequest, name: str, authors: frozenset[str]) -> None:
        who = states.who(name)
        if who is Who.APPROVER:
            roles.require(actor, Role.APPROVER, change.project)
            if name != "reject" and actor.user in authors:
                did = "submitted" if actor.user == change.submitted_by else "drafted or edited"
                raise NotAllowedError(
                    f"{actor.user} {did} {change.id} and cannot {name} it: four eyes; ask another approver "
                    f"of {change.project}"
                )
            return
        if who is Who.MEMBER:
            roles.require(actor, Role.MODELER, change.project)
            return
        if name == "edit" and actor.user in authors and roles.is_agent_in(actor, change.project):
            roles.require(actor, Role.AGENT, change.project)
            if change.agent != agent_name(actor):
                raise NotAllowedError(
                    f"{change.id} was not drafted by this agent, and an agent edits only drafts of its own; "
                    "draft another change request"
                )
            return
        if change.agent and name in _ADOPTING:
            roles.require(actor, Role.MODELER, change.project)
            return
        mine = authors | ({change.approved_by} if name in _BY_APPROVER else set())
        roles.require(actor, Role.MODELER if actor.user in mine else Role.OWNER, change.project)

    def may(self, actor: Actor, change: ChangeRequest, name: str, authors: frozenset[str]) -> bool:
        """Return whether the state of the change allows an operation and the actor may perform it."""
        if not states.allows(change, name):
            return False
        try:
            self._authorise(actor, change, name, authors)
        except PlatformError:
            return False
        return True

    def _current(
        self, connection: Connection, before: ChangeRequest, name: str, version: int | None = None
    ) -> ChangeRequest:
        """Return the change as it is in this transaction, if its state allows the operation `name`."""
        now = rows.load(connection, before.id)
        if version is not None and now.version != version:
            raise outrun(connection, now.id, version)
        if not states.allows(now, name):
            refusal = states.refusal(now, name)
            if now.version != before.version:
                raise ConflictError(f"{refusal} ({outrun(connection, now.id, before.version)})")
            if name == "approve" and now.approved_by:
                raise ConflictError(f"{refusal}; {now.approved_by} approved it")
            raise refusal
        return now


def agent_name(actor: Actor) -> str:
    """Return the name by which a draft records its agent: the id of the token, else the user."""
    return actor.token or actor.user


def unknown(change: str) -> NotFoundError:
    """Return the error for a change request that does not exist, or that the actor may not see."""
    return NotFoundError(f'there is no change request "{change}"; list those there are')
