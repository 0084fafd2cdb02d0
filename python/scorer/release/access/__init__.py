"""Who may do what: projects, roles, tokens, sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from scorer.release.model import Actor, Project, Quotas, Role
from scorer.release.store import Store


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret."""

    id: str
    user: str
    label: str
    project: str | None
    """None: every project of its user."""
    role: Role
    """The most that it may do."""
    expires_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None
    revoked: bool


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody at a browser."""

    actor: Actor
    csrf: str
    """What a form must carry."""
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody in a project."""

    user: str
    project: str
    role: Role


class Access:
    """Projects, members, tokens, sessions."""

    def __init__(self, store: Store) -> None:
        raise NotImplementedError

    def authenticate(self, secret: str) -> Actor:
        """Who a token's bearer is. Raises NotAuthenticatedError."""
        raise NotImplementedError

    def open_session(self, secret: str) -> tuple[str, Session]:
        """The cookie's value and the session, for a token."""
        raise NotImplementedError

    def session(self, cookie: str) -> Session:
        """Who is behind a cookie. Raises NotAuthenticatedError."""
        raise NotImplementedError

    def close_session(self, cookie: str) -> None:
        """Ends it; ending it again is fine."""
        raise NotImplementedError

    def by_proxy(self, user: str) -> Actor:
        """Whom a trusted proxy vouches for. Raises NotAuthenticatedError where nobody is called so."""
        raise NotImplementedError

    def require(self, actor: Actor, role: Role, project: str) -> None:
        """Raises NotAllowedError (NotFoundError where not even reading is allowed) unless he has it there."""
        raise NotImplementedError

    def projects(self, actor: Actor) -> Sequence[Project]:
        """Those that he may see."""
        raise NotImplementedError

    def project(self, actor: Actor, name: str) -> Project:
        """One of them."""
        raise NotImplementedError

    def create_project(
        self,
        actor: Actor,
        name: str,
        title: str,
        *,
        quotas: Quotas | None = None,
        checkpoints: Sequence[str] = (),
    ) -> Project:
        """Admins."""
        raise NotImplementedError

    def update_project(
        self,
        actor: Actor,
        name: str,
        *,
        title: str | None = None,
        quotas: Quotas | None = None,
        checkpoints: Sequence[str] | None = None,
    ) -> Project:
        """Admins."""
        raise NotImplementedError

    def members(self, actor: Actor, project: str) -> Sequence[Member]:
        """Of a project."""
        raise NotImplementedError

    def set_member(self, actor: Actor, project: str, user: str, role: Role | None) -> None:
        """Owners; None removes."""
        raise NotImplementedError

    def tokens(self, actor: Actor) -> Sequence[Token]:
        """His own; every one for admins, those of their projects for owners."""
        raise NotImplementedError

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
        """The token and, this once, its secret. Never more than who makes it may himself."""
        raise NotImplementedError

    def revoke_token(self, actor: Actor, token: str) -> None:
        """At once, its sessions too."""
        raise NotImplementedError
