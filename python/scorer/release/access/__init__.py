"""Who may do what: projects, members, five roles, tokens, sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, delete, insert, select, update

from scorer.release.access import names, roles
from scorer.release.access.attempts import Attempts
from scorer.release.access.roles import unknown_project
from scorer.release.access.users import Users
from scorer.release.answers import ProjectMember, Session, Token, User
from scorer.release.errors import ConflictError, InvalidError, NotFoundError
from scorer.release.model import Actor, Project, Quotas, Role
from scorer.release.store import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["Access", "Attempts", "ProjectMember", "Session", "Token", "User"]


class Access(Users):
    """Projects and their members; tokens, sessions and users by its bases."""

    def local(self, user: str) -> Actor:
        """Whoever runs the command line beside the database: an admin, since he could write to it anyway."""
        return Actor(user, admin=True, via="local")

    def require(self, actor: Actor, role: Role, project: str) -> None:
        """Raises NotAllowedError (NotFoundError where not even reading is allowed) unless he has it there."""
        roles.require(actor, role, project)
        if actor.admin and project:
            with self._store.read() as connection:
                self._row(connection, project)

    def projects(self, actor: Actor) -> Sequence[Project]:
        """Those that he may see."""
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
            **_quotas(quotas or Quotas()),
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
            values.update(_quotas(quotas))
        if checkpoints is not None:
            values["checkpoints"] = names.check_checkpoints(checkpoints)
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
            return [ProjectMember(row.user, row.project, Role(row.role)) for row in rows]

    def set_member(self, actor: Actor, project: str, user: str, role: Role | None) -> None:
        """Owners; None removes. Admins may name somebody new: he is added as a user with it.

        Owners choose among users that there are: could they make people up, four eyes would be two.
        """
        self.require(actor, Role.OWNER, project)
        if role is Role.ADMIN:
            raise InvalidError("admin is a role of the whole platform; take owner, or make him an admin")
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
        users = tables.users.c
        if (
            connection.scalar(select(users.name).where(users.name == user, users.removed_at.is_(None)))
            is None
        ):
            raise NotFoundError(
                f'there is no user "{user}"; an admin adds him (`scorer platform user add {user}`)'
            )

    def _row(self, connection: Connection, name: str) -> Row[Any]:
        row = connection.execute(select(tables.projects).where(tables.projects.c.name == name)).one_or_none()
        if row is None:
            raise unknown_project(name)
        return row


def _quotas(quotas: Quotas) -> dict[str, int]:
    checked = names.check_quotas(quotas)
    return {
        "open_changes": checked.open_changes,
        "slot_minutes_per_week": checked.slot_minutes_per_week,
        "bundles": checked.bundles,
    }


def _project(row: Row[Any]) -> Project:
    return Project(
        name=row.name,
        title=row.title,
        quotas=Quotas(row.open_changes, row.slot_minutes_per_week, row.bundles),
        checkpoints=tuple(row.checkpoints),
        created_at=row.created_at,
    )
