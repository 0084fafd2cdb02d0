"""Projects and their members, users, tokens and sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, or_, select, update

from scorer.release.access import names, provided, roles, secrets
from scorer.release.access.provided import ProvidedIdentity
from scorer.release.access.roles import actor_of, rank, unknown_project
from scorer.release.answers import ProjectMember, Session, Token, User
from scorer.release.audit import Audit
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    UnreachableError,
)
from scorer.release.model import PLATFORM, Actor, Project, Quotas, Role
from scorer.release.store import Store, tables, utcnow
from scorer.release.store.rows import read, row_of

SEEN_EVERY = timedelta(minutes=1)
"""`last_used_at` and `last_seen_at` are written at most so often: reading must not become writing."""

_ASK = "ask for a new one (an admin makes it: `scorer platform token create`)"


class Access:
    """Who may do what, and who presents a token or a session.

    Args:
        store: Where projects, users, tokens and sessions are kept.
        audit: Gets an entry for each change.
        now: The time.
        session_hours: Hours after which a session ends.
        idle_hours: Hours without a request after which a session ends.
    """

    def __init__(
        self,
        store: Store,
        audit: Audit | None = None,
        *,
        now: Callable[[], datetime] = utcnow,
        session_hours: float = 12.0,
        idle_hours: float = 4.0,
    ) -> None:
        self._store = store
        self._audit = audit or Audit(store, now=now)
        self._now = now
        self._session = timedelta(hours=session_hours)
        self._idle = timedelta(hours=min(idle_hours, session_hours))

    # --- projects ---

    def local(self, user: str) -> Actor:
        """Return the actor of the command line beside the database: an admin."""
        return Actor(user, admin=True, via="local")

    def require(self, actor: Actor, role: Role, project: str) -> None:
        """Raise NotAllowedError unless the actor has the role; NotFoundError where the actor sees nothing."""
        roles.require(actor, role, project)
        if actor.admin and project:
            with self._store.read() as connection:
                self._row(connection, project)

    def projects(self, actor: Actor) -> Sequence[Project]:
        """Return the projects that the actor can see."""
        query = select(tables.projects).order_by(tables.projects.c.name)
        if not actor.admin:
            query = query.where(tables.projects.c.name.in_(sorted(actor.roles)))
        with self._store.read() as connection:
            return [_project(row) for row in connection.execute(query)]

    def project(self, actor: Actor, name: str) -> Project:
        """Return a project that the caller can see."""
        roles.require(actor, Role.VIEWER, name)
        with self._store.read() as connection:
            return _project(self._row(connection, name))

    def create_project(
        self,
        actor: Actor,
        name: str,
        title: str,
        *,
        quotas: Quotas | None = None,
        checkpoints: Sequence[str] = (),
    ) -> Project:
        """Create a project; for administrators only."""
        roles.require(actor, Role.ADMIN, "")
        values = {
            "name": names.check_project(name),
            "title": names.check_line("title", title),
            **asdict(names.check_quotas(quotas or Quotas())),
            "checkpoints": names.check_checkpoints(checkpoints),
        }
        with self._store.write() as connection:
            there = connection.scalar(select(tables.projects.c.name).where(tables.projects.c.name == name))
            if there is not None:
                raise ConflictError(f"project {name} exists already; change it, or take another name")
            connection.execute(insert(tables.projects).values(**values, created_at=self._now()))
            self._audit.append(connection, actor, "project.create", name, project=name, details=values)
            return _project(self._row(connection, name))

    def update_project(
        self,
        actor: Actor,
        name: str,
        *,
        title: str | None = None,
        quotas: Quotas | None = None,
        checkpoints: Sequence[str] | None = None,
    ) -> Project:
        """Admins. What is None stays; a smaller quota takes nothing away, it refuses what would come."""
        roles.require(actor, Role.ADMIN, "")
        values: dict[str, Any] = {}
        if title is not None:
            values["title"] = names.check_line("title", title)
        if quotas is not None:
            values.update(asdict(names.check_quotas(quotas)))
        if checkpoints is not None:
            values["checkpoints"] = tuple(names.check_checkpoints(checkpoints))
        with self._store.write() as connection:
            before = self._row(connection, name)._mapping
            changed = {key: value for key, value in values.items() if before[key] != value}
            if changed:
                connection.execute(
                    update(tables.projects).where(tables.projects.c.name == name).values(changed)
                )
                self._audit.append(
                    connection,
                    actor,
                    "project.update",
                    name,
                    project=name,
                    details={key: {"from": before[key], "to": value} for key, value in changed.items()},
                )
            return _project(self._row(connection, name))

    def members(self, actor: Actor, project: str) -> Sequence[ProjectMember]:
        """Return the members of a project with their roles."""
        self.require(actor, Role.VIEWER, project)
        members = tables.members
        with self._store.read() as connection:
            rows = connection.execute(
                select(members).where(members.c.project == project).order_by(members.c.user)
            )
            return [read(ProjectMember, row) for row in rows]

    def set_member(self, actor: Actor, project: str, user: str, role: Role | None) -> None:
        """Set or remove (None) a member's role; for owners. An admin may name a new user.

        Owners choose among users that there are: a made-up second user would defeat two-person approval.
        """
        self.require(actor, Role.OWNER, project)
        if role is Role.ADMIN:
            raise InvalidError("admin is a role of the whole platform; take owner, or make the user an admin")
        if role is not None:
            names.check_user(user)
        members = tables.members
        one = (members.c.project == project, members.c.user == user)
        with self._store.write() as connection:
            before = connection.scalar(select(members.c.role).where(*one))
            if before == role:
                return
            if role is None:
                connection.execute(delete(members).where(*one))
            elif before is not None:
                connection.execute(update(members).where(*one).values(role=role))
            else:
                if actor.admin:
                    self._add_user(connection, actor, user)
                self._check_user(connection, user)
                connection.execute(
                    insert(members).values(
                        project=project, user=user, role=role, added_by=actor.user, added_at=self._now()
                    )
                )
            self._audit.append(
                connection,
                actor,
                "member.set" if role else "member.remove",
                user,
                project=project,
                details={"from": before, "to": role},
            )

    def _check_user(self, connection: Connection, user: str) -> None:
        if row_of(connection, tables.users, name=user, removed_at=None) is None:
            raise NotFoundError(
                f'there is no user "{user}"; an admin adds one (`scorer platform user add {user}`)'
            )

    def _row(self, connection: Connection, name: str) -> Row[Any]:
        row = row_of(connection, tables.projects, name=name)
        if row is None:
            raise unknown_project(name)
        return row

    # --- users ---

    def users(self, actor: Actor) -> Sequence[User]:
        """Admins: everybody, those that were removed too."""
        roles.require(actor, Role.ADMIN, "")
        with self._store.read() as connection:
            return [
                read(User, row, removed=row.removed_at is not None)
                for row in connection.execute(select(tables.users).order_by(tables.users.c.name))
            ]

    def add_user(self, actor: Actor, user: str, *, admin: bool = False) -> User:
        """Add a user, or restore a removed one without memberships; for admins, repeatable."""
        roles.require(actor, Role.ADMIN, "")
        names.check_user(user)
        with self._store.write() as connection:
            self._add_user(connection, actor, user)
            if admin:
                self._set_admin(connection, actor, user, admin=True)
            return read(User, connection.execute(select(tables.users).filter_by(name=user)).one())

    def set_admin(self, actor: Actor, user: str, *, admin: bool) -> None:
        """Admins; the last one stays."""
        roles.require(actor, Role.ADMIN, "")
        with self._store.write() as connection:
            self._set_admin(connection, actor, user, admin=admin)

    def remove_user(self, actor: Actor, user: str) -> None:
        """Remove a user with tokens, sessions and memberships; for admins. Records keep the name."""
        roles.require(actor, Role.ADMIN, "")
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
        row = row_of(connection, known, name=user)
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
        row = row_of(connection, known, name=user, removed_at=None)
        if row is None:
            raise NotFoundError(
                f'there is no user "{user[:100]}"; list them with `scorer platform user list`'
            )
        if row.admin == admin:
            return
        if not admin and connection.scalar(select(func.count()).where(known.c.admin.is_(True), there)) == 1:
            raise ConflictError(f"{user} is the last admin; make another user one first")
        connection.execute(update(known).where(known.c.name == user).values(admin=admin))
        self._audit.append(connection, actor, "user.admin", user, details={"admin": admin})

    # --- tokens ---

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
        """Create the first admin and a token, for the command line beside the database.

        `force_new_token` gives one more (and makes the user an admin) where there is an admin already: for
        somebody who has lost theirs; only the local command line offers it.

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
                    "the platform has an admin already; ask that user for a token, or repeat with "
                    "--force-new-token beside the database"
                )
            found = row_of(connection, known, name=user)
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
            return [read(Token, row, revoked=row.revoked_at is not None) for row in connection.execute(query)]

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
        """The token and, this once, its secret. It grants no more than the actor may do.

        For another user only by admins: the holder of another user's token could approve their own changes. A
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
                f"a token of {whose} is made by that user or by an admin; make one of your own"
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
            self._check_user(connection, whose)
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
            connection, row.user, admin=row.admin, via=via, token=row.id, most=row.role, project=row.project
        )

    def _bounded(
        self, connection: Connection, actor: Actor, project: str | None, expires_at: datetime | None
    ) -> datetime | None:
        """When a token made with the actor's may expire; refuses one that would reach further."""
        if actor.token is None:
            return expires_at
        own = row_of(connection, tables.tokens, id=actor.token)
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
        values = {name: value for name, value in asdict(token).items() if name in tables.tokens.c}
        connection.execute(insert(tables.tokens).values(**values, hash=secrets.digest(secret)))
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

    def record_failed_sign_in(self, who: str, *, locked: bool, details: Mapping[str, str]) -> None:
        """Write a failed sign-in to the audit log, and whether more of them are refused now."""
        with self._store.write() as connection:
            action = "sign_in.lock" if locked else "sign_in.fail"
            self._audit.append(connection, PLATFORM, action, who, details=details)

    # --- sessions ---

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

    def open_oidc_session(self, identity: ProvidedIdentity) -> tuple[str, Session]:
        """Open a session for a user whom the identity provider has authenticated; for the sign-in page.

        The first sign-in ties the user's name to the subject at the provider, and adds the user where the
        groups grant something. The roles that groups grant replace those of before.

        Raises:
            NotAuthenticatedError: The user is unknown or removed, or the name belongs to another subject.
        """
        with self._store.write() as connection:
            provided.admit(connection, self._audit, identity, self._now())
            row = row_of(connection, tables.users, name=identity.user, removed_at=None)
            assert row is not None  # noqa: S101 - as admitted
            return self._open(connection, actor_of(connection, row.name, admin=row.admin, via="oidc"), None)

    def session(self, cookie: str) -> Session:
        """Who is behind a cookie. Raises NotAuthenticatedError.

        No clock brings a session back: one that has ended is deleted when it is found, or within a minute or
        so of anybody else's request, and one that was last seen later than it is now ends as well.
        """
        table = tables.sessions
        with self._store.read() as connection:
            row = row_of(connection, table, hash=secrets.digest(cookie))
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
            # As with tokens: a busy database keeps no user out.
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
        """Return the user whom a trusted proxy names. Raises NotAuthenticatedError for an unknown one."""
        with self._store.read() as connection:
            return self._vouched(connection, user)

    def _vouched(self, connection: Connection, user: str, *, via: str = "proxy") -> Actor:
        row = row_of(connection, tables.users, name=user, removed_at=None)
        if row is None:
            raise NotAuthenticatedError(
                f'the proxy names "{user[:100]}", and there is no such user here; ask an admin to add one'
            )
        return actor_of(connection, row.name, admin=row.admin, via=via)

    def _behind(self, connection: Connection, row: Row[Any]) -> Actor | None:
        """The session's user as of now; None where the token or the user was removed."""
        tokens, users = tables.tokens, tables.users
        if row.token is None:
            try:
                return self._vouched(connection, row.user, via=row.via or "proxy")
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
        """Delete sessions that have ended."""
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
                via="oidc" if actor.via == "oidc" else None,
            )
        )
        self._audit.append(connection, actor, "session.open", actor.user)
        return cookie, Session(actor, secrets.csrf(cookie), until)


def _visible(actor: Actor) -> ColumnElement[bool]:
    """Tokens that an actor who is no admin may see and revoke."""
    owned = [project for project, role in actor.roles.items() if rank(role) >= rank(Role.OWNER)]
    return or_(tables.tokens.c.user == actor.user, tables.tokens.c.project.in_(sorted(owned)))


def _project(row: Row[Any]) -> Project:
    return read(Project, row, quotas=read(Quotas, row))
