"""Servers and checkpoints that admins add while the platform runs, beside those of platform.toml.

One rule merges the two: platform.toml is the base, the database adds to it, and where both have a name, or
two servers have one address, platform.toml has precedence. Every process of the platform reads the additions
at each tick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Table, delete, insert, select

from scorer.release.access.roles import require
from scorer.release.answers import CheckpointAdded, ServerInfo
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    PlatformError,
    UnreachableError,
)
from scorer.release.fields import violations
from scorer.release.fleet import Fleet, Member, Parallel, Statuses
from scorer.release.fleet.discovery import FoundServer
from scorer.release.fleet.statuses import not_in_time
from scorer.release.model import Actor, Role
from scorer.release.requests import NewCheckpoint, NewServer, ServeCheckpoint
from scorer.release.settings import FleetMember, ManagedCheckpoint, PlatformFile
from scorer.release.store import Store, utcnow
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.events import EventLog
    from scorer.release.audit import Audit

_MOST = 200
"""Servers, and checkpoints, that can be added."""

S = TypeVar("S", bound=BaseModel)


class Additions:
    """Adds servers and checkpoints, and merges them with the declared ones.

    Args:
        settings: The settings, whose servers and checkpoints are replaced by the merged ones.
        store: The database.
        fleet: The servers, which are replaced as well.
        audit: The audit log, which receives an entry per change.
        statuses: Latest statuses of the servers.
        discovered: Returns the servers that were found by a name or in Kubernetes.
        now: Returns the current time, aware and in UTC.
        events: The platform's event log; None: no events are written.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        fleet: Fleet,
        audit: Audit,
        *,
        statuses: Statuses,
        discovered: Callable[[], Sequence[FoundServer]] = tuple,
        now: Callable[[], datetime] = utcnow,
        events: EventLog | None = None,
    ) -> None:
        self._settings, self._store, self._fleet, self._audit = settings, store, fleet, audit
        self._statuses, self._now, self._events = statuses, now, events
        self._discovered = discovered
        self._fleet_declared = tuple(settings.fleet)
        self._checkpoints_declared = dict(settings.checkpoints)
        self._seen: tuple[Any, ...] | None = None

    def refresh(self) -> None:
        """Read the additions, and use them from now on if they have changed."""
        with self._store.read() as connection:
            servers = connection.execute(select(t.added_servers).order_by(t.added_servers.c.name)).all()
            query = select(t.added_checkpoints).order_by(t.added_checkpoints.c.name)
            checkpoints = connection.execute(query).all()
        found = tuple(self._discovered())
        seen = (
            tuple((row.name, row.added_at) for row in servers),
            tuple((row.name, row.added_at) for row in checkpoints),
            found,
        )
        if seen == self._seen or (self._seen is None and seen == ((), (), ())):
            return
        fleet = list(self._fleet_declared)
        for row in servers:
            one = self._valid(FleetMember, row.settings, row.name)
            if one and all(one.name != other.name and one.control != other.control for other in fleet):
                fleet.append(one)
        for server in found:
            values = {"name": server.name, "control": server.control, "role": server.role}
            one = self._valid(FleetMember, values, server.name)
            if one and all(one.name != other.name and one.control != other.control for other in fleet):
                fleet.append(one)
        merged = dict(self._checkpoints_declared)
        for row in checkpoints:
            added = self._valid(ManagedCheckpoint, row.settings, row.name)
            if added:
                merged.setdefault(row.name, added)
        self._settings.replace(fleet=fleet, checkpoints=merged)
        self._fleet.replace([Member(one.name, one.control, one.role, one.log) for one in fleet])
        self._seen = seen

    # --- servers ---

    def servers(self, actor: Actor) -> Sequence[ServerInfo]:
        """Return the servers, declared ones first; for admins."""
        require(actor, Role.ADMIN, "")
        self.refresh()
        statuses = self._statuses.recent()
        with self._store.read() as connection:
            by = {row.name: row.added_by for row in connection.execute(select(t.added_servers))}
        by |= {one.name: one.source for one in self._discovered()}
        declared = {one.name for one in self._fleet_declared}
        found = {one.name for one in self._discovered()} - declared
        return [
            ServerInfo(
                name=one.name,
                control=one.control,
                role=one.role,
                log=str(one.log or ""),
                declared=one.name in declared,
                reachable=one.name in statuses and statuses[one.name].reachable,
                error=statuses[one.name].error if one.name in statuses else "not asked yet",
                added_by="" if one.name in declared else by.get(one.name, ""),
                found=one.name in found,
            )
            for one in self._settings.fleet
        ]

    def add_server(self, actor: Actor, new: NewServer) -> ServerInfo:
        """Add a server that answers; for admins.

        Raises:
            InvalidError: The address or the log is not valid, or the server has another role.
            ConflictError: The name or the address is in use.
            UnreachableError: The server does not answer.
        """
        require(actor, Role.ADMIN, "")
        self.refresh()
        values = {key: value for key, value in new.model_dump().items() if value}
        one = _checked(FleetMember, values)
        self._check_free(one)
        if one.log is not None and not one.log.is_dir():
            raise InvalidError(f'log: "{new.log}" is no directory on this machine; correct the path')
        # A call before anything is kept: an address with a typing error never becomes a server.
        status = self._fleet.status(Member(one.name, one.control, one.role, one.log))
        if not status.reachable:
            raise UnreachableError(f"{status.error}; nothing was changed")
        if status.role and status.role != one.role:
            raise InvalidError(
                f'role: the server at {one.control} says that its role is "{status.role}"; choose that'
            )
        with self._store.write() as connection:
            self._insert(connection, t.added_servers, new.name, values, actor)
            self._audit.append(connection, actor, "server.add", new.name, details=values)
        self.refresh()
        self._statuses.look()
        return next(found for found in self.servers(actor) if found.name == new.name)

    def remove_server(self, actor: Actor, name: str) -> None:
        """Remove a server that was added; for admins. The server itself goes on with its lanes.

        Raises:
            ConflictError: platform.toml declares the server, or it was found by a name or in Kubernetes.
            NotFoundError: There is no such server.
        """
        require(actor, Role.ADMIN, "")
        if any(one.name == name for one in self._fleet_declared):
            raise ConflictError(
                f'server "{name}" is declared in platform.toml; remove it there, and restart the platform'
            )
        with self._store.write() as connection:
            done = connection.execute(delete(t.added_servers).where(t.added_servers.c.name == name))
            if not done.rowcount and (source := self._source_of(name)):
                raise ConflictError(
                    f'server "{name[:100]}" was found by {source}; remove it there, and it leaves by itself'
                )
            if not done.rowcount:
                raise NotFoundError(f'there is no server "{name[:100]}"; list them')
            self._audit.append(connection, actor, "server.remove", name)
        self.refresh()

    # --- checkpoints ---

    def add_checkpoint(self, actor: Actor, new: NewCheckpoint) -> ManagedCheckpoint:
        """Add a checkpoint that the platform manages; for admins.

        Raises:
            InvalidError: A field is not valid.
            ConflictError: There is a checkpoint of that name.
        """
        require(actor, Role.ADMIN, "")
        self.refresh()
        values: dict[str, Any] = {
            **new.model_dump(exclude={"name", "gates"}),
            "gates": [
                {key: value for key, value in asdict(gate).items() if value not in ("", 0, False)}
                for gate in new.gates
            ],
            "max_minutes": max(20_160.0, new.minutes),
        }
        if not values["gates"]:
            del values["gates"]
        made = _checked(ManagedCheckpoint, values)
        if new.name in self._settings.checkpoints:
            raise ConflictError(f'checkpoint "{new.name}" exists already; choose another name')
        if new.pool and not any(one.role == "shadow" for one in self._settings.fleet):
            raise InvalidError('pool is true, but no server has role = "shadow"; add one')
        with self._store.write() as connection:
            self._insert(connection, t.added_checkpoints, new.name, values, actor)
            self._audit.append(connection, actor, "checkpoint.add", new.name, details=values)
        self.refresh()
        return made

    def lacking(self, checkpoint: str) -> Sequence[str]:
        """Return the reachable servers without a checkpoint: live ones, and a pool that observes it."""
        statuses = self._statuses.recent()
        return [
            one.name
            for one in self._settings.fleet
            if (one.role == "live" or self._uses_pool(checkpoint))
            and one.name in statuses
            and statuses[one.name].reachable
            and checkpoint not in (statuses[one.name].checkpoints or {})
        ]

    def serve_checkpoint(
        self, actor: Actor, checkpoint: str, wanted: ServeCheckpoint
    ) -> Sequence[CheckpointAdded]:
        """Add a checkpoint to the reachable servers that do not have it; for admins.

        The servers keep it across restarts. Each of them follows the checkpoint's alias until the platform
        manages it there.

        Returns:
            What became of it at each of those servers.

        Raises:
            NotFoundError: The platform manages no such checkpoint.
            ConflictError: Every reachable server has it.
        """
        require(actor, Role.ADMIN, "")
        self.refresh()
        managed = self._settings.checkpoints.get(checkpoint)
        if managed is None:
            raise NotFoundError(f'there is no checkpoint "{checkpoint[:100]}"; list them')
        self._statuses.look()
        lacking = set(self.lacking(checkpoint))
        if not lacking:
            raise ConflictError(f'every reachable server has checkpoint "{checkpoint}"; nothing was changed')
        settings = {"kind": wanted.kind, "alias": managed.alias, "p99_ms": managed.p99_ms}

        def add(member: Member) -> CheckpointAdded:
            try:
                self._fleet.add_checkpoint(
                    member, checkpoint, settings, by=actor.user, reason="added by the platform"
                )
            except PlatformError as error:
                return CheckpointAdded(member.name, str(error))
            return CheckpointAdded(member.name)

        members = [member for member in self._fleet.members if member.name in lacking]
        added = Parallel()(add, members, seconds=self._fleet.status_seconds + 1)
        found = [
            added.get(member.name) or CheckpointAdded(member.name, not_in_time(member).error)
            for member in members
        ]
        with self._store.write() as connection:
            details = {**settings, "servers": {one.server: one.error or "added" for one in found}}
            self._audit.append(connection, actor, "checkpoint.serve", checkpoint, details=details)
        self._statuses.look()
        return found

    def is_declared(self, checkpoint: str) -> bool:
        """Whether platform.toml declares a checkpoint."""
        return checkpoint in self._checkpoints_declared

    # --- helpers ---

    def _source_of(self, name: str) -> str:
        """Return what a server was found by; empty: it was not found."""
        return next((one.source for one in self._discovered() if one.name == name), "")

    def _uses_pool(self, checkpoint: str) -> bool:
        managed = self._settings.checkpoints.get(checkpoint)
        return managed is not None and managed.pool

    def _check_free(self, one: FleetMember) -> None:
        for other in self._settings.fleet:
            for what, same in (
                ("name", one.name == other.name),
                ("address", one.control == other.control),
                ("log", one.log is not None and one.log == other.log),
            ):
                if same:
                    raise ConflictError(f'server "{other.name}" has this {what} already; choose another one')

    def _insert(
        self, connection: Connection, table: Table, name: str, values: dict[str, Any], actor: Actor
    ) -> None:
        names = set(connection.scalars(select(table.c.name)))
        if name in names:
            raise ConflictError(f'"{name}" was added already; read the list again')
        if len(names) >= _MOST:
            raise InvalidError(f"{_MOST} were added already, the limit; declare more in platform.toml")
        connection.execute(
            insert(table).values(name=name, settings=values, added_by=actor.user, added_at=self._now())
        )

    def _valid(self, kind: type[S], values: Any, name: str) -> S | None:
        """Return stored settings; None, with an event, if this version of the platform rejects them."""
        try:
            return _checked(kind, values)
        except InvalidError as error:
            if self._events is not None:
                self._events.warning("addition_rejected", name=name, error=str(error))
            return None


def _checked(kind: type[S], values: Any) -> S:
    try:
        # Paths are absolute, so the directory of a settings file has no part in them.
        return kind.model_validate(values, context={"base": Path("/")})
    except ValidationError as error:
        raise InvalidError(violations([dict(one) for one in error.errors(include_url=False)])) from None
