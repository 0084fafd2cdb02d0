"""Users whom an identity provider has authenticated, and what their groups grant."""

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
    """Who signed in at the identity provider.

    Attributes:
        subject: The issuer and the subject there, which never change and are never reused.
        user: The user's name here.
        is_known: Whether the groups admit a user who does not exist here yet.
        admin: Whether the groups make the user an admin; None: the groups do not decide.
        roles: By project whose members the groups decide: the role, None for none.
    """

    subject: str
    user: str
    is_known: bool = False
    admin: bool | None = None
    roles: Mapping[str, Role | None] = field(default_factory=dict)


def admit(connection: Connection, audit: Audit, identity: ProvidedIdentity, now: datetime) -> None:
    """Bring a user and the roles that groups decide up to date, in the caller's transaction.

    Raises:
        NotAuthenticatedError: The user cannot sign in.
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
            f"this account of the identity provider signed in as {tied.name} before and is now named {name}; "
            "ask an admin"
        )
    if row is None and not identity.is_known:
        raise NotAuthenticatedError(
            f'there is no user "{name}", and no group admits one; ask an admin to add one'
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
        return  # the last admin stays one, as everywhere
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
    one = (members.c.project == project, members.c.user == identity.user)
    before = connection.scalar(select(members.c.role).where(*one))
    if before == role:
        return
    connection.execute(delete(members).where(*one))
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
    """Whether a text of the provider can stand in a name or a log line."""
    return bool(text) and not _UNSAFE.search(text)
