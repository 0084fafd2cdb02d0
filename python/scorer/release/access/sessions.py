"""Sessions of browsers: a random cookie, kept as a hash, that ends when unused and ends anyway."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, delete, insert, or_, select, update

from scorer.release.access import secrets
from scorer.release.access.base import SEEN_EVERY
from scorer.release.access.roles import actor_of
from scorer.release.access.tokens import Tokens
from scorer.release.answers import Session
from scorer.release.errors import NotAuthenticatedError, UnreachableError
from scorer.release.model import Actor
from scorer.release.store import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Sessions(Tokens):
    """Opened by a token or a trusted proxy's word; gone with the token."""

    def open_session(self, secret: str) -> tuple[str, Session]:
        """The cookie's value and the session, for a token."""
        with self._store.write() as connection:
            row = self._live(connection, secret)
            actor = self._bearer(connection, row, via="session")
            return self._open(connection, actor, row.expires_at)

    def open_proxy_session(self, user: str) -> tuple[str, Session]:
        """As `open_session`, for whom a trusted proxy vouches; compare the two names with each request."""
        with self._store.write() as connection:
            return self._open(connection, self._vouched(connection, user), None)

    def session(self, cookie: str) -> Session:
        """Who is behind a cookie. Raises NotAuthenticatedError.

        No clock brings a session back: one that has ended is deleted when it is found, or within a minute or
        so of anybody else's request, and one that was last seen later than it is now ends as well.
        """
        table = tables.sessions
        with self._store.read() as connection:
            row = connection.execute(
                select(table).where(table.c.hash == secrets.digest(cookie))
            ).one_or_none()
            if row is None or not secrets.matches(cookie, row.hash):
                raise NotAuthenticatedError("you are not signed in, or no longer; sign in again")
            now = self._now()
            set_back = now < row.last_seen_at - SEEN_EVERY
            ended = set_back or row.idle_until <= now or row.expires_at <= now
            actor = None if ended else self._behind(connection, row)
        if actor is None:
            self.close_session(cookie)
            raise NotAuthenticatedError("your session has ended; sign in again")
        until = row.idle_until
        if now - row.last_seen_at >= SEEN_EVERY:
            until = now + self._idle
            # As with tokens: a busy database keeps nobody out.
            with contextlib.suppress(UnreachableError), self._store.write() as connection:
                connection.execute(
                    update(table).where(table.c.hash == row.hash).values(last_seen_at=now, idle_until=until)
                )
                self._sweep(connection, now)
        return Session(actor, secrets.csrf(cookie), min(until, row.expires_at))

    def close_session(self, cookie: str) -> None:
        """Ends it; ending it again is fine."""
        with self._store.write() as connection:
            connection.execute(
                delete(tables.sessions).where(tables.sessions.c.hash == secrets.digest(cookie))
            )

    def by_proxy(self, user: str) -> Actor:
        """Whom a trusted proxy vouches for. Raises NotAuthenticatedError where nobody is called so."""
        with self._store.read() as connection:
            return self._vouched(connection, user)

    def _vouched(self, connection: Connection, user: str) -> Actor:
        users = tables.users.c
        row = connection.execute(
            select(tables.users).where(users.name == user, users.removed_at.is_(None))
        ).one_or_none()
        if row is None:
            raise NotAuthenticatedError(
                f'the proxy says "{user[:100]}", and there is no such user here; ask an admin to add him'
            )
        return actor_of(connection, row.name, admin=row.admin, via="proxy")

    def _behind(self, connection: Connection, row: Row[Any]) -> Actor | None:
        """Who the session's user is now; None where his token or he himself is no longer let in."""
        tokens, users = tables.tokens, tables.users
        if row.token is None:
            try:
                return self._vouched(connection, row.user)
            except NotAuthenticatedError:
                return None
        token = connection.execute(
            select(tokens, users.c.admin)
            .join(users, users.c.name == tokens.c.user)
            .where(tokens.c.id == row.token, tokens.c.revoked_at.is_(None), users.c.removed_at.is_(None))
        ).one_or_none()
        if token is None:
            return None
        return self._bearer(connection, token, via="session")

    def _sweep(self, connection: Connection, now: datetime) -> None:
        """Deletes those that have ended, whoever comes back to them or not."""
        table = tables.sessions
        connection.execute(delete(table).where(or_(table.c.expires_at <= now, table.c.idle_until <= now)))

    def _open(self, connection: Connection, actor: Actor, most: datetime | None) -> tuple[str, Session]:
        now = self._now()
        table = tables.sessions
        self._sweep(connection, now)
        cookie = secrets.new_cookie()
        expires_at = now + self._session
        if most is not None:
            expires_at = min(expires_at, most)
        until = min(now + self._idle, expires_at)
        connection.execute(
            insert(table).values(
                hash=secrets.digest(cookie),
                user=actor.user,
                token=actor.token,
                created_at=now,
                last_seen_at=now,
                idle_until=until,
                expires_at=expires_at,
            )
        )
        self._audit.append(connection, actor, "session.open", actor.user)
        return cookie, Session(actor, secrets.csrf(cookie), until)
