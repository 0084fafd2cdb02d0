"""Who may do what where: ranks of roles, and the effective roles after the token's restrictions."""

from __future__ import annotations

from sqlalchemy import Connection, select

from scorer.release.errors import NotAllowedError, NotFoundError
from scorer.release.model import Actor, Role
from scorer.release.store import tables

_RANKS = {role: rank for rank, role in enumerate(Role)}


def rank(role: Role) -> int:
    """Return the place in the order of `Role`; each role includes those below."""
    return _RANKS[role]


def lower_role(one: Role, other: Role) -> Role:
    """Return the role with fewer permissions."""
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
    """Return a user with the present memberships (an admin: every project), cut to `most` and `project`.

    Only an admin whose token is neither cut nor scoped acts as one; a scoped one is at most an owner there.
    """
    found: dict[str, Role]
    if admin:
        found = dict.fromkeys(connection.scalars(select(tables.projects.c.name)), Role.OWNER)
    else:
        members = tables.members.c
        rows = connection.execute(select(members.project, members.role).where(members.user == user))
        found = {row.project: Role(row.role) for row in rows}
    roles = {name: lower_role(role, most) for name, role in found.items() if project in (None, name)}
    return Actor(user, roles, admin and most is Role.ADMIN and project is None, via, token)


def require(actor: Actor, role: Role, project: str) -> None:
    """Raise unless the actor has the role there; `project` "" is the platform itself, which only admins run.

    Raises:
        NotFoundError: The actor cannot see it; worded as for a project that does not exist.
        NotAllowedError: The actor can see it, and this takes a higher role.
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
    """Return one error for a project that is not there and for one that the actor cannot see."""
    return NotFoundError(
        f'there is no project "{project[:100]}" that you may see; `GET /projects` lists yours'
    )
