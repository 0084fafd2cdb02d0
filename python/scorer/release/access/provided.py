"""Users that an identity provider has authenticated, and the roles that their groups grant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select, update

from scorer.release.access import names
from scorer.release.access.roles import rank
from scorer.release.audit import Audit
from scorer.release.errors import InvalidError, NotAuthenticatedError
from scorer.release.model import PLATFORM, Role
from scorer.release.store import tables
from scorer.release.store.rows import row_of

_UNSAFE = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True)
class ProvidedIdentity:
    """A user that signed in at the identity provider.

    Attributes:
        subject: Issuer and subject at the provider, which never change and are never reused.
        user: Name of the user on the platform.
        is_known: Whether the groups admit a user that does not exist on the platform yet.
        admin: Whether the groups make the user an admin; None: the groups do not decide.
        roles: Role by project, for the projects whose members the groups decide; None: not a member.
    """

    subject: str
    user: str
    is_known: bool = False
    admin: bool | None = None
    roles: Mapping[str, Role | None] = field(default_factory=dict)


def admit(connection: Connection, audit: Audit, identity: ProvidedIdentity, now: datetime) -> None:
    """Update a user and the roles that groups decide, in the caller's transaction.

    Args:
        connection: Connection of the caller's transaction.
        audit: The audit log.
        identity: The user that signed in.
        now: Current time.

    Raises:
        NotAuthenticatedError: The user may not sign in.
    """
    users, name = tables.users, identity.user
    try:
        names.check_user(name)
    except InvalidError as error:
        raise NotAuthenticatedError(f"the identity provider's name cannot be used: {error}") from None
    row = row_of(connection, users, name=name)
    tied = row_of(connection, users, subject=identity.subject)
    if tied is not None and tied.name != name:
        raise NotAuthenticatedError(
            f"this account of the identity provider belongs to user {tied.name} and is now named {name}; "
            "ask an admin"
        )
    if row is None and not identity.is_known:
        raise NotAuthenticatedError(
            f'there is no user "{name}", and no group admits the account; ask an admin to add the user'
        )
    if row is not None and row.removed_at is not None:
        raise NotAuthenticatedError(f"user {name} was removed; ask an admin")
    if row is not None and row.subject not in (None, identity.subject):
        raise NotAuthenticatedError(
            f"user {name} belongs to another account of the identity provider; ask an admin"
        )
    if row is None:
        connection.execute(insert(users).values(name=name, created_at=now))
        audit.append(connection, PLATFORM, "user.add", name, details={"by": "oidc"})
    if tied is None:
        connection.execute(update(users).where(users.c.name == name).values(subject=identity.subject))
        audit.append(connection, PLATFORM, "user.tie", name, details={"subject": identity.subject})
    _set_admin(connection, audit, identity, is_admin=bool(row and row.admin))
    for project, role in identity.roles.items():
        _set_role(connection, audit, identity, project, role, now)


def _set_admin(connection: Connection, audit: Audit, identity: ProvidedIdentity, *, is_admin: bool) -> None:
    users = tables.users
    if identity.admin is None or identity.admin == is_admin:
        return
    others = select(func.count()).where(users.c.admin.is_(True), users.c.removed_at.is_(None))
    if not identity.admin and connection.scalar(others) == 1:
        return  # the last admin cannot be removed
    connection.execute(update(users).where(users.c.name == identity.user).values(admin=identity.admin))
    details = {"admin": identity.admin, "by": "oidc"}
    audit.append(connection, PLATFORM, "user.admin", identity.user, details=details)


def _set_role(
    connection: Connection,
    audit: Audit,
    identity: ProvidedIdentity,
    project: str,
    role: Role | None,
    now: datetime,
) -> None:
    members = tables.members
    if row_of(connection, tables.projects, name=project) is None:
        return  # the settings may name a project before it is created
    membership = (members.c.project == project, members.c.user == identity.user)
    before = connection.scalar(select(members.c.role).where(*membership))
    if before == role:
        return
    connection.execute(delete(members).where(*membership))
    if role is not None:
        connection.execute(
            insert(members).values(
                project=project, user=identity.user, role=role, added_by=PLATFORM.user, added_at=now
            )
        )
    audit.append(
        connection,
        PLATFORM,
        "member.set" if role else "member.remove",
        identity.user,
        project=project,
        details={"from": before, "to": role, "by": "oidc"},
    )


def highest(one: Role | None, other: Role) -> Role:
    """Return the role with more permissions."""
    return other if one is None or rank(other) > rank(one) else one


def printable(text: str) -> bool:
    """Whether a text of the provider is not empty and contains no control characters or spaces."""
    return bool(text) and not _UNSAFE.search(text)
