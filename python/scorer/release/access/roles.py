"""Order of roles, and the effective roles of an actor after the token's restrictions are applied."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import Connection, select

from scorer.release.errors import NotAllowedError, NotFoundError
from scorer.release.model import Actor, Role
from scorer.release.store import tables

_RANKS = {role: rank for rank, role in enumerate(Role)}


def rank(role: Role) -> int:
    """Return a role's position in the order of `Role`. Each role includes the permissions of those below."""
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
    """Return the actor for a user, with the user's present memberships and the token's restrictions.

    An admin acts as admin only with an unrestricted token. With a token for one project, an admin is at most
    an owner of that project.

    Args:
        connection: Connection of the caller's transaction.
        user: Name of the user.
        admin: Whether the user is an admin.
        via: How the user was authenticated, as in `Actor.via`.
        token: Id of the token; None: there is none.
        most: Highest role that the token allows.
        project: Project that the token is restricted to; None: all.
    """
    memberships: dict[str, Role]
    if admin:
        memberships = dict.fromkeys(connection.scalars(select(tables.projects.c.name)), Role.OWNER)
    else:
        members = tables.members.c
        rows = connection.execute(select(members.project, members.role).where(members.user == user))
        memberships = {row.project: Role(row.role) for row in rows}
    roles = {name: lower_role(role, most) for name, role in memberships.items() if project in (None, name)}
    highest = max(memberships.values(), key=rank, default=Role.VIEWER)
    is_agent = most is Role.AGENT or (highest is Role.AGENT and not admin)
    return Actor(user, roles, admin and most is Role.ADMIN and project is None, via, token, is_agent)


def as_agent(actor: Actor, projects: Collection[str]) -> Actor:
    """Return the actor on whose behalf a tool runs: with at most the role `agent`, in some projects only.

    Whatever a tool calls, the service layer rejects more than an agent may do, and objects of other projects
    do not exist for it.

    Args:
        actor: The caller.
        projects: The projects whose owners allow the tool.
    """
    roles = {name: lower_role(role, Role.AGENT) for name, role in actor.roles.items() if name in projects}
    return replace(actor, roles=roles, admin=False, via="agent", is_agent=True)


def is_agent_in(actor: Actor, project: str) -> bool:
    """Return whether the actor acts as an agent in a project."""
    return actor.is_agent or (not actor.admin and actor.roles.get(project) is Role.AGENT)


def refuse_agent(actor: Actor, what: str) -> None:
    """Raise NotAllowedError if the actor is an agent, for operations that need no role of a project.

    Args:
        actor: The caller.
        what: The operation in words, for example `creates tokens`.
    """
    if actor.is_agent:
        raise NotAllowedError(f"{actor.user} is an agent, and no agent {what}; ask a person to do it")


def require(actor: Actor, role: Role, project: str) -> None:
    """Raise an error unless the actor has a role in a project.

    Args:
        actor: The calling user.
        role: The required role.
        project: Name of the project; "": the platform itself, which requires an admin.

    Raises:
        NotFoundError: The actor may not see the project. The error is the same as for an unknown project.
        NotAllowedError: The actor may see the project but lacks the role.
    """
    if actor.admin:
        return
    if not project or role is Role.ADMIN:
        raise NotAllowedError(
            f"{actor.user} is not an admin of the platform; this requires one: ask an admin"
        )
    has = actor.roles.get(project)
    if has is None:
        raise unknown_project(project)
    if rank(has) < rank(role):
        raise NotAllowedError(
            f"{actor.user} is {has} in project {project}; this requires {role} or above: "
            "ask an owner of the project" + (", or use a token with a higher role" if actor.token else "")
        )


def unknown_project(project: str) -> NotFoundError:
    """Return the error for a project that does not exist or that the actor may not see."""
    return NotFoundError(
        f'there is no project "{project[:100]}" that you may see; `GET /projects` lists yours'
    )
