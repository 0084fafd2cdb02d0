"""Tokens: who may have which, and who their bearers are."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Row, delete, func, insert, or_, select, update

from scorer.release.access import names, secrets
from scorer.release.access.base import SEEN_EVERY, Base
from scorer.release.access.roles import actor_of, rank, unknown_project
from scorer.release.answers import Token
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    UnreachableError,
)
from scorer.release.model import Actor, Role
from scorer.release.store import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

_ASK = "ask for a new one (an admin makes it: `scorer platform token create`)"


class Tokens(Base):
    """Creates, lists, verifies and revokes API tokens."""

    def authenticate(self, secret: str) -> Actor:
        """Who a token's bearer is. Raises NotAuthenticatedError.

        Expiry goes by this machine's clock as it is now: a clock set back lets an expired token in again, so
        keep it by NTP. (A token is not killed by having been refused once: a clock that jumped ahead for a
        minute would otherwise end every token in use.) His roles are those of this moment: a membership taken
        away counts with the next request.
        """
        with self._store.read() as connection:
            row = self._live(connection, secret)
            actor = self._bearer(connection, row, via="token")
        now = self._now()
        if row.last_used_at is None or now - row.last_used_at >= SEEN_EVERY:
            # A busy database must not keep anybody out for the sake of a time that is only shown.
            with contextlib.suppress(UnreachableError), self._store.write() as connection:
                connection.execute(
                    update(tables.tokens)
                    .where(tables.tokens.c.id == row.id)
                    .where(or_(tables.tokens.c.last_used_at.is_(None), tables.tokens.c.last_used_at < now))
                    .values(last_used_at=now)
                )
        return actor

    def bootstrap(self, user: str, *, force_new_token: bool = False) -> tuple[Token, str]:
        """The first admin and a token of his, for whoever sits beside the database.

        `force_new_token` gives one more (and makes the user an admin) where there is an admin already: for
        somebody who has lost his; only the local command line offers it.

        Raises:
            ConflictError: There is an admin already.
        """
        names.check_user(user)
        local = Actor(user, admin=True, via="local")
        with self._store.write() as connection:
            known = tables.users
            admins = connection.scalar(
                select(func.count()).where(known.c.admin.is_(True), known.c.removed_at.is_(None))
            )
            if admins and not force_new_token:
                raise ConflictError(
                    "the platform has an admin already; ask him for a token, or repeat with "
                    "--force-new-token beside the database"
                )
            found = connection.execute(select(known).where(known.c.name == user)).one_or_none()
            if found is None:
                connection.execute(insert(known).values(name=user, admin=True, created_at=self._now()))
            else:
                connection.execute(
                    update(known).where(known.c.name == user).values(admin=True, removed_at=None)
                )
            self._audit.append(
                connection, local, "platform.bootstrap", user, details={"forced": bool(admins)}
            )
            return self._new_token(connection, local, user, "bootstrap", None, Role.ADMIN, None)

    def tokens(self, actor: Actor) -> Sequence[Token]:
        """His own; every one for admins, those of their projects for owners. Newest first."""
        table = tables.tokens
        query = select(table).order_by(table.c.created_at.desc(), table.c.id)
        if not actor.admin:
            query = query.where(_visible(actor))
        with self._store.read() as connection:
            return [_token(row) for row in connection.execute(query)]

    def create_token(
        self,
        actor: Actor,
        *,
        user: str | None = None,
        label: str,
        project: str | None = None,
        role: Role,
        expires_at: datetime | None = None,
    ) -> tuple[Token, str]:
        """The token and, this once, its secret. Never more than who makes it may himself.

        For another user only by admins: whoever could make tokens of others could approve his own changes. A
        token made with one that is scoped to a project or expires is scoped likewise and expires no later.
        """
        label = names.check_line("label", label, 100)
        if expires_at is not None and expires_at.tzinfo is None:
            raise InvalidError(
                f"expires_at {expires_at.isoformat()} has no time zone; write it with one, such as Z"
            )
        if expires_at is not None and expires_at <= self._now():
            raise InvalidError(f"expires_at {expires_at.isoformat()} is past; give a time to come, or none")
        whose = names.check_user(user) if user is not None else actor.user
        if whose != actor.user and not actor.admin:
            raise NotAllowedError(
                f"a token of {whose} is made by himself or by an admin; make one of your own"
            )
        if role is Role.ADMIN and (project is not None or not actor.admin):
            raise (
                InvalidError(
                    "an admin's token is of the whole platform; leave the project out, or take owner"
                )
                if actor.admin
                else NotAllowedError(f"{actor.user} is no admin; take {Role.OWNER} or below")
            )
        with self._store.write() as connection:
            expires_at = self._bounded(connection, actor, project, expires_at)
            self._check_reach(connection, actor, project, role)
            known = select(tables.users.c.name).where(
                tables.users.c.name == whose, tables.users.c.removed_at.is_(None)
            )
            if connection.scalar(known) is None:
                raise NotFoundError(
                    f'there is no user "{whose}"; an admin adds him (`scorer platform user add {whose}`)'
                )
            return self._new_token(connection, actor, whose, label, project, role, expires_at)

    def revoke_token(self, actor: Actor, token: str) -> None:
        """At once, its sessions too. Revoking it again is fine."""
        table = tables.tokens
        with self._store.write() as connection:
            query = select(table).where(table.c.id == token)
            if not actor.admin:
                query = query.where(_visible(actor))
            row = connection.execute(query).one_or_none()
            if row is None:
                raise NotFoundError(f'there is no token "{token[:100]}" that you may see; list yours')
            if row.revoked_at is None:
                self._revoke(connection, actor, row)

    def _revoke(self, connection: Connection, actor: Actor, row: Row[Any]) -> None:
        connection.execute(
            update(tables.tokens).where(tables.tokens.c.id == row.id).values(revoked_at=self._now())
        )
        connection.execute(delete(tables.sessions).where(tables.sessions.c.token == row.id))
        self._audit.append(
            connection, actor, "token.revoke", row.id, project=row.project or "", details={"user": row.user}
        )

    def _live(self, connection: Connection, secret: str) -> Row[Any]:
        """The row of a token that may be used now, with `admin` of its user."""
        table, users = tables.tokens, tables.users
        row = connection.execute(
            select(table, users.c.admin)
            .join(users, users.c.name == table.c.user)
            .where(table.c.hash == secrets.digest(secret), users.c.removed_at.is_(None))
        ).one_or_none()
        if row is None or not secrets.matches(secret, row.hash):
            raise NotAuthenticatedError(f"this token is not known here; check it, or {_ASK}")
        if row.revoked_at is not None:
            raise NotAuthenticatedError(f"token {row.id} ({row.label}) has been revoked; {_ASK}")
        if row.expires_at is not None and row.expires_at <= self._now():
            raise NotAuthenticatedError(
                f"token {row.id} ({row.label}) expired at {row.expires_at:%Y-%m-%d %H:%M} UTC; {_ASK}"
            )
        return row

    def _bearer(self, connection: Connection, row: Row[Any], *, via: str) -> Actor:
        return actor_of(
            connection,
            row.user,
            admin=row.admin,
            via=via,
            token=row.id,
            most=Role(row.role),
            project=row.project,
        )

    def _bounded(
        self, connection: Connection, actor: Actor, project: str | None, expires_at: datetime | None
    ) -> datetime | None:
        """When a token made with the actor's may expire; refuses one that would reach further than his."""
        if actor.token is None:
            return expires_at
        own = connection.execute(select(tables.tokens).where(tables.tokens.c.id == actor.token)).one_or_none()
        if own is None or own.revoked_at is not None:
            raise NotAuthenticatedError(f"your token has been revoked meanwhile; {_ASK}")
        if own.project is not None and project != own.project:
            raise NotAllowedError(
                f"your token is of project {own.project}; make the new one of that project too"
            )
        if own.expires_at is not None:
            if expires_at is not None and expires_at > own.expires_at:
                raise NotAllowedError(
                    f"your token expires at {own.expires_at:%Y-%m-%d %H:%M} UTC, and what it makes no later; "
                    "give an earlier time, or ask an admin for a longer one"
                )
            return expires_at or own.expires_at
        return expires_at

    def _check_reach(self, connection: Connection, actor: Actor, project: str | None, role: Role) -> None:
        if project is not None:
            found = connection.scalar(select(tables.projects.c.name).where(tables.projects.c.name == project))
            if found is None or not (actor.admin or project in actor.roles):
                raise unknown_project(project)
        if actor.admin:
            return
        has = [actor.roles[project]] if project is not None else list(actor.roles.values())
        most = max(has, key=rank, default=None)
        if most is None or rank(role) > rank(most):
            raise NotAllowedError(
                f"{actor.user} is {most or 'in no project'}"
                f"{f' in project {project}' if project else ''}, and a token may not do more; "
                f"take {most or 'none until an owner has added you'}"
            )

    def _new_token(
        self,
        connection: Connection,
        actor: Actor,
        user: str,
        label: str,
        project: str | None,
        role: Role,
        expires_at: datetime | None,
    ) -> tuple[Token, str]:
        secret = secrets.new_token()
        token = Token(
            id=secrets.new_id("tok"),
            user=user,
            label=label,
            project=project,
            role=role,
            expires_at=expires_at,
            created_at=self._now(),
            last_used_at=None,
            revoked=False,
            created_by=actor.user,
        )
        connection.execute(
            insert(tables.tokens).values(
                id=token.id,
                hash=secrets.digest(secret),
                user=user,
                label=label,
                project=project,
                role=role,
                created_by=actor.user,
                created_at=token.created_at,
                expires_at=expires_at,
            )
        )
        self._audit.append(
            connection,
            actor,
            "token.create",
            token.id,
            project=project or "",
            details={
                "user": user,
                "label": label,
                "role": role,
                "expires_at": expires_at.isoformat() if expires_at else None,
            },
        )
        return token, secret


def _visible(actor: Actor) -> ColumnElement[bool]:
    """Tokens that somebody who is no admin may see and revoke."""
    owned = [project for project, role in actor.roles.items() if rank(role) >= rank(Role.OWNER)]
    return or_(tables.tokens.c.user == actor.user, tables.tokens.c.project.in_(sorted(owned)))


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        user=row.user,
        label=row.label,
        project=row.project,
        role=Role(row.role),
        expires_at=row.expires_at,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        revoked=row.revoked_at is not None,
        created_by=row.created_by,
    )
