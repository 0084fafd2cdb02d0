"""Projects and their members, users, tokens and sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
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
from scorer.release.store.shared import SharedReads

SEEN_EVERY = timedelta(minutes=1)
"""Minimum interval between two updates of `last_used_at` or `last_seen_at`, so that most reads do not
write."""

_SESSIONS_KEPT = 1024
"""Sessions that are kept in memory until the next commit."""
_PROJECTS_KEPT = 64
"""Projects whose members are kept in memory until the next commit."""

_ASK = "ask for a new one (an admin creates it with `scorer platform token create`)"


class Access:
    """Manages projects, users, tokens and sessions, and authenticates and authorises callers.

    Args:
        store: The database.
        audit: Receives an entry for each change.
        now: Returns the current time.
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
        self._sessions: SharedReads[tuple[Row[Any] | None, Actor | None]] = SharedReads(store, _SESSIONS_KEPT)
        self._members: SharedReads[tuple[ProjectMember, ...]] = SharedReads(store, _PROJECTS_KEPT)

    # --- projects ---

    def local(self, user: str) -> Actor:
        """Return the actor of the command line beside the database: an admin."""
        return Actor(user, admin=True, via="local")

    def require(self, actor: Actor, role: Role, project: str) -> None:
        """Raise NotAllowedError if the actor lacks the role, NotFoundError if the project is not visible."""
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

    def checkpoints(self, actor: Actor, known: Collection[str]) -> set[str]:
        """Return those of the known checkpoints that the actor may see: an admin sees all of them."""
        if actor.admin:
            return set(known)
        names: set[str] = set()
        for project in self.projects(actor):
            names.update(project.checkpoints or known)
        return names & set(known)

    def project(self, actor: Actor, name: str) -> Project:
        """Return a project that the actor may see."""
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
                raise ConflictError(f"project {name} exists already; update it, or choose another name")
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
        """Update a project; for admins. Arguments that are None stay unchanged.

        A smaller quota removes nothing. It applies to new requests only.
        """
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

    def set_agent_tools(self, actor: Actor, project: str, allowed: Sequence[str]) -> Project:
        """Set the tools that agents may use in a project, in place of the present ones; for owners.

        Args:
            actor: The calling user.
            project: Name of the project.
            allowed: Names of tools, which the caller has checked.
        """
        self.require(actor, Role.OWNER, project)
        wanted = tuple(sorted(set(allowed)))
        table = tables.projects
        with self._store.write() as connection:
            before = _project(self._row(connection, project)).agent_tools
            if before != wanted:
                connection.execute(update(table).where(table.c.name == project).values(agent_tools=wanted))
                details = {"from": before, "to": wanted}
                self._audit.append(
                    connection, actor, "project.agents", project, project=project, details=details
                )
            return _project(self._row(connection, project))

    def members(self, actor: Actor, project: str) -> Sequence[ProjectMember]:
        """Return the members of a project with their roles."""
        roles.require(actor, Role.VIEWER, project)
        return self._members.get(project, lambda: self._members_of(project))

    def _members_of(self, project: str) -> tuple[ProjectMember, ...]:
        members = tables.members
        with self._store.read() as connection:
            self._row(connection, project)
            rows = connection.execute(
                select(members).where(members.c.project == project).order_by(members.c.user)
            )
            return tuple(read(ProjectMember, row) for row in rows)

    def set_member(self, actor: Actor, project: str, user: str, role: Role | None) -> None:
        """Set or remove (None) a member's role; for owners. An admin may name a new user.

        Owners may only name existing users, because an invented second user would defeat two-person approval.
        """
        self.require(actor, Role.OWNER, project)
        if role is Role.ADMIN:
            raise InvalidError("admin is a role of the whole platform; use owner, or make the user an admin")
        if role is not None:
            names.check_user(user)
        members = tables.members
        membership = (members.c.project == project, members.c.user == user)
        with self._store.write() as connection:
            before = connection.scalar(select(members.c.role).where(*membership))
            if before == role:
                return
            if role is None:
                connection.execute(delete(members).where(*membership))
            elif before is not None:
                connection.execute(update(members).where(*membership).values(role=role))
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
        """Return all users, including removed ones; for admins."""
        roles.require(actor, Role.ADMIN, "")
        with self._store.read() as connection:
            return [
                read(User, row, removed=row.removed_at is not None)
                for row in connection.execute(select(tables.users).order_by(tables.users.c.name))
            ]

    def add_user(self, actor: Actor, user: str, *, admin: bool = False) -> User:
        """Add a user, or restore a removed one without memberships; for admins. The call is idempotent."""
        roles.require(actor, Role.ADMIN, "")
        names.check_user(user)
        with self._store.write() as connection:
            self._add_user(connection, actor, user)
            if admin:
                self._set_admin(connection, actor, user, admin=True)
            return read(User, connection.execute(select(tables.users).filter_by(name=user)).one())

    def set_admin(self, actor: Actor, user: str, *, admin: bool) -> None:
        """Grant or revoke a user's admin rights; for admins. The last admin cannot lose them."""
        roles.require(actor, Role.ADMIN, "")
        with self._store.write() as connection:
            self._set_admin(connection, actor, user, admin=admin)

    def remove_user(self, actor: Actor, user: str) -> None:
        """Remove a user with all tokens, sessions and memberships; for admins. Records keep the name."""
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
            raise ConflictError(f"{user} is the last admin; make another user an admin first")
        connection.execute(update(known).where(known.c.name == user).values(admin=admin))
        self._audit.append(connection, actor, "user.admin", user, details={"admin": admin})

    # --- tokens ---

    def authenticate(self, secret: str) -> Actor:
        """Return the actor of a token, with the user's present roles.

        A removed membership takes effect with the next request. Expiry is compared with this machine's clock;
        keep it synchronised by NTP, because a clock that is set back accepts an expired token again. A token
        that was rejected as expired is not revoked, because a clock that jumps ahead for a minute would then
        revoke all tokens in use.

        Raises:
            NotAuthenticatedError: The token is unknown, expired or revoked.
        """
        with self._store.read() as connection:
            row = self._live(connection, secret)
            actor = self._bearer(connection, row, via="token")
        now = self._now()
        if row.last_used_at is None or now - row.last_used_at >= SEEN_EVERY:
            # The time is only displayed, so a busy database must not reject the request.
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

        Args:
            user: Name of the user, which becomes an admin.
            force_new_token: Whether to create a token although there is an admin already, for an admin who
                has lost the previous one. Only the local command line offers this.

        Returns:
            The token and its secret.

        Raises:
            ConflictError: There is an admin already, and `force_new_token` is False.
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
            if row_of(connection, known, name=user) is None:
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
        """Return the actor's tokens, an owner's projects' tokens, or all for an admin; newest first."""
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
        """Create a token, which grants no more than the actor's own permissions.

        Only an admin creates a token for another user, because a holder of two users' tokens could approve
        their own change requests. If the actor's token is restricted to a project or expires, the new token
        is restricted to the same project and expires no later.

        Args:
            actor: The calling user.
            user: Name of the token's user; None: the actor.
            label: Description of its use.
            project: Project that it is restricted to; None: all of the user's projects.
            role: Highest role that it allows.
            expires_at: Time of its expiry; None: it does not expire.

        Returns:
            The token and its secret, which is not stored and cannot be shown again.
        """
        roles.refuse_agent(actor, "creates tokens")
        label = names.check_line("label", label, 100)
        if expires_at is not None and expires_at.tzinfo is None:
            raise InvalidError(
                f"expires_at {expires_at.isoformat()} has no time zone; write it with one, such as Z"
            )
        if expires_at is not None and expires_at <= self._now():
            raise InvalidError(f"expires_at {expires_at.isoformat()} is past; give a later time, or omit it")
        whose = names.check_user(user) if user is not None else actor.user
        if whose != actor.user and not actor.admin:
            raise NotAllowedError(
                f"only {whose} or an admin creates a token of {whose}; create one of your own"
            )
        if role is Role.ADMIN and (project is not None or not actor.admin):
            raise (
                InvalidError(
                    "a token with role admin is for the whole platform; omit the project, or use owner"
                )
                if actor.admin
                else NotAllowedError(f"{actor.user} is not an admin; use {Role.OWNER} or below")
            )
        with self._store.write() as connection:
            expires_at = self._bounded(connection, actor, project, expires_at)
            self._check_reach(connection, actor, project, role)
            self._check_user(connection, whose)
            return self._new_token(connection, actor, whose, label, project, role, expires_at)

    def revoke_token(self, actor: Actor, token: str) -> None:
        """Revoke a token and its sessions with immediate effect. The call is idempotent."""
        roles.refuse_agent(actor, "revokes tokens")
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
        """Return the row of a valid token with its user's `admin`. Raises NotAuthenticatedError."""
        table, users = tables.tokens, tables.users
        row = connection.execute(
            select(table, users.c.admin)
            .join(users, users.c.name == table.c.user)
            .where(table.c.hash == secrets.digest(secret), users.c.removed_at.is_(None))
        ).one_or_none()
        if row is None or not secrets.matches(secret, row.hash):
            raise NotAuthenticatedError(f"this token is unknown; check it, or {_ASK}")
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
        """Limit the expiry of a new token to that of the actor's token, and reject another project."""
        if actor.token is None:
            return expires_at
        parent = row_of(connection, tables.tokens, id=actor.token)
        if parent is None or parent.revoked_at is not None:
            raise NotAuthenticatedError(f"your token has been revoked; {_ASK}")
        if parent.project is not None and project != parent.project:
            raise NotAllowedError(
                f"your token is restricted to project {parent.project}; create the new one for that project"
            )
        if parent.expires_at is not None:
            if expires_at is not None and expires_at > parent.expires_at:
                raise NotAllowedError(
                    f"your token expires at {parent.expires_at:%Y-%m-%d %H:%M} UTC, and the new token cannot "
                    "expire later; give an earlier time, or ask an admin for a token that lasts longer"
                )
            return expires_at or parent.expires_at
        return expires_at

    def _check_reach(self, connection: Connection, actor: Actor, project: str | None, role: Role) -> None:
        if project is not None:
            exists = row_of(connection, tables.projects, name=project) is not None
            if not exists or not (actor.admin or project in actor.roles):
                raise unknown_project(project)
        if actor.admin:
            return
        has = [actor.roles[project]] if project is not None else list(actor.roles.values())
        most = max(has, key=rank, default=None)
        if most is None or rank(role) > rank(most):
            raise NotAllowedError(
                f"{actor.user} is {most or 'in no project'}"
                f"{f' in project {project}' if project else ''}, and a token cannot have a higher role; "
                f"{f'use {most}' if most else 'ask an owner of a project to add you'}"
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
        """Write a failed sign-in to the audit log.

        Args:
            who: User or source of the attempt.
            locked: Whether further attempts of this source are rejected now.
            details: Details of the entry.
        """
        with self._store.write() as connection:
            action = "sign_in.lock" if locked else "sign_in.fail"
            self._audit.append(connection, PLATFORM, action, who, details=details)

    # --- sessions ---

    def open_session(self, secret: str) -> tuple[str, Session]:
        """Open a session for a token. Returns the cookie's value and the session."""
        with self._store.write() as connection:
            row = self._live(connection, secret)
            actor = self._bearer(connection, row, via="session")
            return self._open(connection, actor, row.expires_at)

    def open_proxy_session(self, user: str) -> tuple[str, Session]:
        """Open a session for a user that a trusted proxy has authenticated.

        The caller must compare the proxy's user with the session's user on each request.
        """
        with self._store.write() as connection:
            return self._open(connection, self._vouched(connection, user), None)

    def open_oidc_session(self, identity: ProvidedIdentity) -> tuple[str, Session]:
        """Open a session for a user that the identity provider has authenticated; for the sign-in page.

        The first sign-in binds the user's name to the subject at the provider, and adds the user if its
        groups grant a role. Roles that the groups grant replace the previous ones.

        Raises:
            NotAuthenticatedError: The user is unknown or removed, or the name belongs to another subject.
        """
        with self._store.write() as connection:
            provided.admit(connection, self._audit, identity, self._now())
            row = row_of(connection, tables.users, name=identity.user, removed_at=None)
            assert row is not None  # noqa: S101 - as admitted
            return self._open(connection, actor_of(connection, row.name, admin=row.admin, via="oidc"), None)

    def session(self, cookie: str) -> Session:
        """Return the session of a cookie.

        A session that has ended stays ended when the clock is set back: it is deleted when its cookie is
        presented, or at the latest about a minute after the next request of another session. A session whose
        last request lies in the future has ended, too.

        Raises:
            NotAuthenticatedError: There is no such session, or it has ended.
        """
        table = tables.sessions
        hashed = secrets.digest(cookie)
        row, actor = self._sessions.get(hashed, lambda: self._session_of(hashed))
        if row is None or not secrets.matches(cookie, row.hash):
            raise NotAuthenticatedError("you are not signed in; sign in again")
        now = self._now()
        set_back = now < row.last_seen_at - SEEN_EVERY
        if actor is None or set_back or row.idle_until <= now or row.expires_at <= now:
            self.close_session(cookie)
            raise NotAuthenticatedError("your session has ended; sign in again")
        until = row.idle_until
        if now - row.last_seen_at >= SEEN_EVERY:
            until = now + self._idle
            # As in `authenticate`, a busy database must not reject the request.
            with contextlib.suppress(UnreachableError), self._store.write() as connection:
                connection.execute(
                    update(table).where(table.c.hash == row.hash).values(last_seen_at=now, idle_until=until)
                )
                self._sweep(connection, now)
        return Session(actor, secrets.csrf(cookie), min(until, row.expires_at))

    def _session_of(self, hashed: str) -> tuple[Row[Any] | None, Actor | None]:
        with self._store.read() as connection:
            row = row_of(connection, tables.sessions, hash=hashed)
            return row, None if row is None else self._behind(connection, row)

    def close_session(self, cookie: str) -> None:
        """End the session of a cookie. The call is idempotent."""
        with self._store.write() as connection:
            connection.execute(
                delete(tables.sessions).where(tables.sessions.c.hash == secrets.digest(cookie))
            )

    def by_proxy(self, user: str) -> Actor:
        """Return the actor for a user that a trusted proxy names. Raises NotAuthenticatedError if unknown."""
        with self._store.read() as connection:
            return self._vouched(connection, user)

    def by_subject(self, subject: str, client: str) -> Actor:
        """Return the agent that acts for the user of a subject at the identity provider.

        Args:
            subject: Issuer and subject, as in `ProvidedIdentity.subject`.
            client: Id of the agent's client at the provider.

        Raises:
            NotAuthenticatedError: No user has signed in with the subject, or the user was removed.
        """
        with self._store.read() as connection:
            row = row_of(connection, tables.users, subject=subject, removed_at=None)
            if row is None:
                raise NotAuthenticatedError(
                    "the user of this access token has not signed in on the pages; sign in there once"
                )
            token = f"oauth:{client}:{row.name}"
            return actor_of(connection, row.name, admin=row.admin, via="oidc", token=token, most=Role.AGENT)

    def _vouched(self, connection: Connection, user: str, *, via: str = "proxy") -> Actor:
        row = row_of(connection, tables.users, name=user, removed_at=None)
        if row is None:
            raise NotAuthenticatedError(
                f'the proxy names user "{user[:100]}", who does not exist here; ask an admin to add the user'
            )
        return actor_of(connection, row.name, admin=row.admin, via=via)

    def _behind(self, connection: Connection, row: Row[Any]) -> Actor | None:
        """Return the actor of a session with present roles; None if its token or user was removed."""
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
    """Return the condition for the tokens that an actor without admin rights may see and revoke."""
    owned = [project for project, role in actor.roles.items() if rank(role) >= rank(Role.OWNER)]
    return or_(tables.tokens.c.user == actor.user, tables.tokens.c.project.in_(sorted(owned)))


def _project(row: Row[Any]) -> Project:
    return read(Project, row, quotas=read(Quotas, row), agent_tools=row.agent_tools or ())
