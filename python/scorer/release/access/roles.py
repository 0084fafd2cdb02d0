"""Who may do what where: ranks of roles, and what somebody is once his token has had its say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from scorer.release.errors import NotAllowedError, NotFoundError
from scorer.release.model import Actor, Role
from scorer.release.store import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

_RANKS = {role: rank for rank, role in enumerate(Role)}


def rank(role: Role) -> int:
    """Its place in the order of `Role`; whoever has one has those below."""
    return _RANKS[role]


def least(one: Role, other: Role) -> Role:
    """The one that may less."""
    return min(one, other, key=rank)


def actor_of(
    connection: Connection,
    user: str,
    *,
    admin: bool,
    via: str,
    token: str | None = None,
    most: Role = Role.ADMIN,
    project: str | None = None,
) -> Actor:
    """What a user is now: his memberships, where he is an admin every project, cut to `most` and `project`.

    Only an admin whose token is neither cut nor scoped acts as one; scoped, he is at most an owner there.
    """
    found: dict[str, Role]
    if admin:
        found = dict.fromkeys(connection.scalars(select(tables.projects.c.name)), Role.OWNER)
    else:
        members = tables.members.c
        rows = connection.execute(select(members.project, members.role).where(members.user == user))
        found = {row.project: Role(row.role) for row in rows}
    roles = {name: least(role, most) for name, role in found.items() if project in (None, name)}
    return Actor(user, roles, admin and most is Role.ADMIN and project is None, via, token)


def require(actor: Actor, role: Role, project: str) -> None:
    """Raises unless he has the role there; `project` "" is the platform itself, which only admins run.

    Raises:
        NotFoundError: He may not even see it; worded as for a project that does not exist.
        NotAllowedError: He may see it, but this takes more.
    """
    if actor.admin:
        return
    if not project or role is Role.ADMIN:
        raise NotAllowedError(f"{actor.user} is no admin of the platform, and this takes one; ask an admin")
    has = actor.roles.get(project)
    if has is None:
        raise unknown_project(project)
    if rank(has) < rank(role):
        raise NotAllowedError(
            f"{actor.user} is {has} in project {project}, and this takes {role} or above; "
            "ask an owner of the project" + (", or use a token that may more" if actor.token else "")
        )


def unknown_project(project: str) -> NotFoundError:
    """The same for a project that is not there and for one that he may not see."""
    return NotFoundError(
        f'there is no project "{project[:100]}" that you may see; `GET /projects` lists yours'
    )
