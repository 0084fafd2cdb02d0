"""Who may do what: projects, members, users, tokens."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from scorer.release.model import Actor, Project, Role
from scorer.sdk.base import Operations
from scorer.sdk.results import IssuedToken, ProjectMember, Token, User


class AccessCalls(Operations):
    """Its operations."""

    def me(self) -> Actor:
        """Who the token's bearer is, and what he may do where."""
        return self._call(Actor, "GET", "/me")

    def projects(self) -> builtins.list[Project]:
        """Those that one may see."""
        return self._call(list[Project], "GET", "/projects")

    def project(self, name: str) -> Project:
        """One of them."""
        return self._call(Project, "GET", f"/projects/{quote(name, safe='')}")

    def create_project(
        self,
        name: str,
        title: str,
        *,
        quotas: Mapping[str, int] | None = None,
        checkpoints: Sequence[str] = (),
    ) -> Project:
        """Admins. `quotas`: any of open_changes, slot_minutes_per_week, bundles."""
        body = {"name": name, "title": title, "quotas": quotas, "checkpoints": list(checkpoints)}
        return self._call(Project, "POST", "/projects", json=body)

    def update_project(
        self,
        name: str,
        *,
        title: str | None = None,
        quotas: Mapping[str, int] | None = None,
        checkpoints: Sequence[str] | None = None,
    ) -> Project:
        """Admins: what is given changes."""
        body = {"title": title, "quotas": quotas, "checkpoints": checkpoints and list(checkpoints)}
        if checkpoints is not None:
            body["checkpoints"] = list(checkpoints)
        return self._call(Project, "PATCH", f"/projects/{quote(name, safe='')}", json=body)

    def members(self, project: str) -> builtins.list[ProjectMember]:
        """Who is in a project, and as what."""
        return self._call(list[ProjectMember], "GET", f"/projects/{quote(project, safe='')}/members")

    def set_member(self, project: str, user: str, role: Role | str) -> ProjectMember:
        """Owners: adds somebody, or changes what he may do."""
        path = f"/projects/{quote(project, safe='')}/members/{quote(user, safe='')}"
        return self._call(ProjectMember, "PUT", path, json={"role": str(role)})

    def remove_member(self, project: str, user: str) -> None:
        """Owners: takes somebody out."""
        self._send("DELETE", f"/projects/{quote(project, safe='')}/members/{quote(user, safe='')}")

    def users(self) -> builtins.list[User]:
        """Admins: everybody that the platform knows."""
        return self._call(list[User], "GET", "/users")

    def add_user(self, name: str, *, admin: bool = False) -> User:
        """Admins: somebody new."""
        return self._call(User, "POST", "/users", json={"name": name, "admin": admin})

    def set_admin(self, name: str, *, admin: bool) -> User:
        """Admins: makes somebody an admin, or no longer one."""
        return self._call(User, "PATCH", f"/users/{quote(name, safe='')}", json={"admin": admin})

    def remove_user(self, name: str) -> None:
        """Admins: his tokens end at once."""
        self._send("DELETE", f"/users/{quote(name, safe='')}")

    def tokens(self) -> builtins.list[Token]:
        """One's own; every one for admins, those of their projects for owners."""
        return self._call(list[Token], "GET", "/tokens")

    def create_token(
        self,
        label: str,
        role: Role | str,
        *,
        user: str | None = None,
        project: str | None = None,
        expires_at: datetime | None = None,
    ) -> IssuedToken:
        """A new token; its secret is in this answer and nowhere else."""
        body: dict[str, Any] = {"label": label, "role": str(role), "user": user, "project": project}
        body["expires_at"] = expires_at.isoformat() if expires_at else None
        return self._call(IssuedToken, "POST", "/tokens", json=body)

    def revoke_token(self, token: str) -> None:
        """At once, its sessions too."""
        self._send("DELETE", f"/tokens/{quote(token, safe='')}")
