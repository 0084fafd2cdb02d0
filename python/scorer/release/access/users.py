"""Who there is: identities are the admins' matter, roles in a project its owners'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, select, update

from scorer.release.access import names
from scorer.release.access.roles import require
from scorer.release.access.sessions import Sessions
from scorer.release.answers import User
from scorer.release.errors import ConflictError, NotFoundError
from scorer.release.model import Actor, Role
from scorer.release.store import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Users(Sessions):
    """Creates and removes users, and makes administrators."""

    def users(self, actor: Actor) -> Sequence[User]:
        """Admins: everybody, those that were removed too."""
        require(actor, Role.ADMIN, "")
        with self._store.read() as connection:
            return [
                User(row.name, row.admin, row.created_at, row.removed_at is not None)
                for row in connection.execute(select(tables.users).order_by(tables.users.c.name))
            ]

    def add_user(self, actor: Actor, user: str, *, admin: bool = False) -> User:
        """Admins; adding him again is fine, and brings back one that was removed, without his memberships."""
        require(actor, Role.ADMIN, "")
        names.check_user(user)
        with self._store.write() as connection:
            self._add_user(connection, actor, user)
            if admin:
                self._set_admin(connection, actor, user, admin=True)
            row = connection.execute(select(tables.users).where(tables.users.c.name == user)).one()
            return User(row.name, row.admin, row.created_at)

    def set_admin(self, actor: Actor, user: str, *, admin: bool) -> None:
        """Admins; the last one stays."""
        require(actor, Role.ADMIN, "")
        with self._store.write() as connection:
            self._set_admin(connection, actor, user, admin=admin)

    def remove_user(self, actor: Actor, user: str) -> None:
        """Admins: his tokens, sessions and memberships end at once; what he did stays under his name."""
        require(actor, Role.ADMIN, "")
        with self._store.write() as connection:
            self._set_admin(connection, actor, user, admin=False)
            for row in connection.execute(
                select(tables.tokens).where(
                    tables.tokens.c.user == user, tables.tokens.c.revoked_at.is_(None)
                )
            ).all():
                self._revoke(connection, actor, row)
            connection.execute(delete(tables.sessions).where(tables.sessions.c.user == user))
            connection.execute(delete(tables.members).where(tables.members.c.user == user))
            connection.execute(
                update(tables.users).where(tables.users.c.name == user).values(removed_at=self._now())
            )
            self._audit.append(connection, actor, "user.remove", user)

    def _add_user(self, connection: Connection, actor: Actor, user: str) -> None:
        known = tables.users
        row = connection.execute(select(known).where(known.c.name == user)).one_or_none()
        if row is None:
            connection.execute(insert(known).values(name=user, created_at=self._now()))
        elif row.removed_at is not None:
            connection.execute(update(known).where(known.c.name == user).values(removed_at=None))
        else:
            return
        self._audit.append(connection, actor, "user.add", user)

    def _set_admin(self, connection: Connection, actor: Actor, user: str, *, admin: bool) -> None:
        known = tables.users
        there = known.c.removed_at.is_(None)
        row = connection.execute(select(known).where(known.c.name == user, there)).one_or_none()
        if row is None:
            raise NotFoundError(
                f'there is no user "{user[:100]}"; list them with `scorer platform user list`'
            )
        if row.admin == admin:
            return
        if not admin and connection.scalar(select(func.count()).where(known.c.admin.is_(True), there)) == 1:
            raise ConflictError(f"{user} is the last admin; make somebody else one first")
        connection.execute(update(known).where(known.c.name == user).values(admin=admin))
        self._audit.append(connection, actor, "user.admin", user, details={"admin": admin})
