"""What access control speaks of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scorer.release.model import Actor, Role


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
    created_by: str = ""


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


@dataclass(frozen=True, slots=True)
class User:
    """Somebody that the platform knows."""

    name: str
    admin: bool
    created_at: datetime
    removed: bool = False
