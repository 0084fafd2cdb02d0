"""Comments and requested reviewers of change requests, and archiving.

A comment is an event of the change request, so it is stored in the order of events and sent to the channels.
It cannot be edited. The audit log contains it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Text, func, select, type_coerce

from scorer.release.changes import rows
from scorer.release.changes.guard import ChangeGuard
from scorer.release.errors import ConflictError, InvalidError, QuotaError
from scorer.release.model import Actor, ChangeEvent, ChangeRequest, Role
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scorer.release.changes.parts import Parts

COMMENT = "comment"
"""Step of an event that is a comment, and key of its text in the details."""
_TEXT = 2000
_COMMENTS = 500
_REVIEWERS = 10


class Discussion:
    """Operations that do not change what is released. Each is one transaction.

    Args:
        parts: Dependencies that operations on change requests share.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._guard = ChangeGuard(parts)

    def comment(self, actor: Actor, change: str, *, text: str) -> ChangeRequest:
        """Append a comment, in plain text. For modelers, in every state.

        Raises:
            InvalidError: The comment is empty or too long.
            QuotaError: The change request has as many comments as it may have.
        """
        said = text.strip()
        if not said or len(said) > _TEXT:
            raise InvalidError(f"comment: write 1 to {_TEXT} characters")
        before = self._guard.allowed(actor, change, "comment")
        with self._guard.open(actor, before, "comment") as work:
            if self._count(work.connection, change) >= _COMMENTS:
                raise QuotaError(f"{change} has {_COMMENTS} comments, as many as it may; write elsewhere")
            work.audit("comment", {COMMENT: said})
            work.event(f"{actor.user} commented: {said}", details={COMMENT: said})
            return work.change

    def request_review(self, actor: Actor, change: str, *, reviewers: Sequence[str]) -> ChangeRequest:
        """Request a review from approvers instead of the present reviewers; an empty list removes them.

        The project's channels are notified. For authors and owners, until the change has ended.

        Raises:
            InvalidError: A reviewer cannot approve the change request.
        """
        asked = list(dict.fromkeys(reviewers))
        if len(asked) > _REVIEWERS:
            raise InvalidError(f"reviewers: {len(asked)} users; name at most {_REVIEWERS}")
        before = self._guard.allowed(actor, change, "request_review")
        with self._guard.open(actor, before, "request_review") as work:
            authors = rows.authors(work.connection, change)
            able = self._approvers(work.connection, before.project) - authors
            unable = [user for user in asked if user not in able]
            if unable:
                raise InvalidError(
                    f"reviewers: {', '.join(unable)} cannot approve {change}; name approvers of "
                    f"{before.project} who did not write it: {', '.join(sorted(able)) or 'there are none'}"
                )
            if tuple(asked) == work.change.reviewers:
                return work.change
            work.save(reviewers=asked)
            names = ", ".join(asked)
            message = (
                f"{actor.user} asks for a review by {names}"
                if asked
                else f"{actor.user} asks nobody for a review any more"
            )
            return work.done("request-review", message, details={"reviewers": asked})

    def archive(self, actor: Actor, change: str, *, version: int | None = None) -> ChangeRequest:
        """Hide a change request that has ended from lists. It is kept, and found by its id and by filters."""
        return self._archived(actor, change, "archive", version)

    def unarchive(self, actor: Actor, change: str, *, version: int | None = None) -> ChangeRequest:
        """Show an archived change request in lists again."""
        return self._archived(actor, change, "unarchive", version)

    def _archived(self, actor: Actor, change: str, name: str, version: int | None) -> ChangeRequest:
        hides = name == "archive"
        with self._guard.open(actor, self._guard.allowed(actor, change, name), name, version) as work:
            if (work.change.archived_at is not None) is hides:
                raise ConflictError(
                    f"{change} is archived already; unarchive it to list it again"
                    if hides
                    else f"{change} is not archived, and lists show it; archive it to hide it"
                )
            work.save(
                archived_by=actor.user if hides else None, archived_at=self._parts.now() if hides else None
            )
            # No event is written, because archiving does not change the state of the change request.
            work.audit(name)
            return work.change

    def _count(self, connection: Connection, change: str) -> int:
        e = t.change_events.c
        query = select(func.count()).where(
            e.change == change, type_coerce(e.details, Text).like(f'{{"{COMMENT}":%')
        )
        return connection.scalar(query) or 0

    def _approvers(self, connection: Connection, project: str) -> set[str]:
        m, u = t.members.c, t.users.c
        roles = (Role.APPROVER, Role.OWNER, Role.ADMIN)
        members = connection.scalars(select(m.user).where(m.project == project, m.role.in_(roles)))
        admins = connection.scalars(select(u.name).where(u.admin.is_(True), u.removed_at.is_(None)))
        return {*members, *admins}


def comments(events: Sequence[ChangeEvent]) -> list[ChangeEvent]:
    """Return the events that are comments."""
    return [event for event in events if COMMENT in event.details]
