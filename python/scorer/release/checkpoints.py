"""Checkpoints with their recorded lanes and the lanes of every server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import select

from scorer.bundle.times import NodeTime, total_times
from scorer.release.answers import CheckpointView, MemberView
from scorer.release.errors import ConflictError, InvalidError, NotAllowedError, PlatformError
from scorer.release.fields import reason_of
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import LaneDecision
from scorer.release.model import Actor, RecordedTable, Role
from scorer.release.settings import check_filter
from scorer.release.store import tables as t
from scorer.release.store.rows import upsert

if TYPE_CHECKING:
    from scorer.release.changes.operations import Changes
    from scorer.release.changes.parts import Parts
    from scorer.release.fleet import MemberStatus


class Checkpoints:
    """Shows and changes the lanes of checkpoints, for pages and commands.

    Args:
        parts: Dependencies that change requests share.
        changes: Rolls back releases in progress.
    """

    def __init__(self, parts: Parts, changes: Changes) -> None:
        self._parts = parts
        self._changes = changes

    def list(self, actor: Actor) -> Sequence[CheckpointView]:
        """Return every checkpoint that the actor may see."""
        statuses = self._statuses()
        return [self._view(name, statuses) for name in sorted(self._parts.settings.checkpoints)]

    def view(self, actor: Actor, checkpoint: str) -> CheckpointView:
        """Return one checkpoint with its lanes and servers."""
        self._parts.calendar.checkpoint(checkpoint)
        return self._view(checkpoint, self._statuses())

    def servers(self) -> Sequence[str]:
        """Return the names of the fleet's servers, in the order of the settings."""
        return [member.name for member in self._parts.reconciler.members(pool=True)]

    def reachable(self) -> Mapping[str, bool]:
        """Return by server whether it responded to the latest status call."""
        return {name: status.reachable for name, status in self._statuses().items()}

    def node_times(self, digest: str) -> Mapping[str, NodeTime]:
        """Return the times of a bundle's nodes on all servers that have it, by the slot that a node writes.

        Args:
            digest: Digest of the bundle, which the caller has resolved and may see.
        """
        statuses = self._statuses().values()
        return total_times(
            one.get("nodes", ()) for status in statuses for one in status.bundles if one["digest"] == digest
        )

    def kind(self, checkpoint: str) -> str:
        """Return `score` or `action`, from the servers' latest statuses; empty if none has reported it."""
        self._parts.calendar.checkpoint(checkpoint)
        for status in self._statuses().values():
            if own := (status.checkpoints or {}).get(checkpoint):
                return own.kind
        return ""

    def history(self, actor: Actor, checkpoint: str, *, limit: int = 100) -> Sequence[RecordedTable]:
        """Return the recorded lane tables, newest first."""
        self._parts.calendar.checkpoint(checkpoint)
        with self._parts.store.read() as connection:
            return recorded.history(connection, checkpoint, limit=max(0, min(limit, 1000)))

    def set_sampling(
        self,
        actor: Actor,
        checkpoint: str,
        *,
        sample: float,
        filter: str = "",  # noqa: A002 - as lanes have it
        pool: bool | None = None,
    ) -> CheckpointView:
        """Set the sampling of the observe lanes, including running ones; for owners.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            sample: Share of the requests to observe, above 0 and at most 1.
            filter: JSON list of conditions on features, all of which must hold; empty: every request.
            pool: Whether the shadow pool evaluates; None: unchanged.
        """
        self._parts.calendar.checkpoint(checkpoint)
        self._require_owner(actor, checkpoint, "set the sampling of")
        if not 0 < sample <= 1:
            raise InvalidError(
                f"sample is {sample:g}, but must be a share of the requests above 0 and at most 1; to end an "
                "observation, withdraw or finish its change request"
            )
        try:
            check_filter(filter)
        except ValueError as error:
            raise InvalidError(str(error)) from None
        if pool and not any(member.role == "shadow" for member in self._parts.settings.fleet):
            raise InvalidError('pool is true, but the fleet has no server with role = "shadow"; add one')
        values = {"sample": sample, "filter": filter, "pool": pool}
        decision = LaneDecision(recorded.SAMPLING)
        about = {"checkpoint": checkpoint}
        with self._parts.store.write() as connection:
            at = self._parts.now()
            upsert(connection, t.sampling, about, **values, user=actor.user, at=at)
            recorded.record(connection, self._parts.settings, checkpoint, decision, at=at, actor=actor.user)
            self._parts.audit.append(
                connection, actor, "checkpoint.sampling", checkpoint, details={**about, **values}
            )
        self._changes.follow(checkpoint)
        return self.view(actor, checkpoint)

    def rollback(self, actor: Actor, checkpoint: str, *, reason: str) -> RecordedTable:
        """Restore the answer lanes before the present release; for owners.

        If a release is in progress, its change request is rolled back. A second call goes one release further
        back and never returns to the one that the first call left.

        Raises:
            ConflictError: There are no earlier lanes, or the checkpoint was changed concurrently.
        """
        self._parts.calendar.checkpoint(checkpoint)
        with self._parts.store.read() as connection:
            decided = recorded.deciding(connection, checkpoint)
        if decided and decided.change and decided.cause in (recorded.STAGE, recorded.RELEASE):
            self._changes.rollback(actor, decided.change, reason=reason)
            return self.history(actor, checkpoint, limit=1)[0]
        self._require_owner(actor, checkpoint, "roll back")
        reason = reason_of(reason)
        with self._parts.store.write() as connection:
            now = recorded.newest(connection, checkpoint)
            target = recorded.earlier(connection, checkpoint)
            again = recorded.deciding(connection, checkpoint)
            if (again and again.revision) != (decided and decided.revision):
                raise ConflictError(f'checkpoint "{checkpoint}" was changed concurrently; read it again')
            if now is None or target is None:
                raise ConflictError(
                    f'checkpoint "{checkpoint}" has no earlier lanes to restore; release another bundle'
                )
            answer = recorded.with_latest_overlays(connection, checkpoint, target.answer)
            restored, present = (recorded.main_lane(lanes).bundle for lanes in (answer, now.answer))
            decision = LaneDecision(recorded.ROLLBACK, answer, restored, present, target.revision)
            made = recorded.record(
                connection,
                self._parts.settings,
                checkpoint,
                decision,
                at=self._parts.now(),
                actor=actor.user,
            )
            about = {"reason": reason, "back_to": restored, "table": target.revision}
            self._parts.audit.append(connection, actor, "checkpoint.rollback", checkpoint, details=about)
        self._changes.follow(checkpoint)
        return made or now

    def rolled_back_at(self, checkpoint: str) -> datetime | None:
        """Return the time of the latest rollback; None if there was none."""
        r = t.recorded_tables.c
        with self._parts.store.read() as connection:
            return connection.execute(
                select(r.at)
                .where(r.checkpoint == checkpoint, r.cause == recorded.ROLLBACK)
                .order_by(r.revision.desc())
                .limit(1)
            ).scalar()

    # --- helpers ---

    def _statuses(self) -> Mapping[str, MemberStatus]:
        return self._parts.reconciler.statuses.recent()

    def _view(self, name: str, statuses: Mapping[str, MemberStatus]) -> CheckpointView:
        settings = self._parts.settings.checkpoints[name]
        m = t.member_lanes.c
        with self._parts.store.read() as connection:
            newest = recorded.newest(connection, name)
            sample, conditions, pool = recorded.sampling(connection, self._parts.settings, name)
            rows = connection.execute(select(t.member_lanes).where(m.checkpoint == name)).all()
        refusals = {row.member: row.error for row in rows if newest and row.refused == newest.revision}
        members, kind = [], ""
        for member in self._parts.reconciler.members(pool=True):
            status = statuses[member.name]
            mine = (status.checkpoints or {}).get(name)
            kind = kind or (mine.kind if mine else "")
            error = status.error or refusals.get(member.name, "")
            in_step = recorded.has(newest, mine, member.role)
            members.append(
                MemberView(
                    name=member.name,
                    role=member.role,
                    reachable=status.reachable,
                    error=error or ("" if in_step else self._parts.reconciler.trouble(member, name)),
                    in_step=in_step,
                    answer=mine.answer if mine else (),
                    observe=mine.observe if mine else (),
                    observers=[each for each in status.observers if each.get("checkpoint") == name],
                )
            )
        return CheckpointView(
            name=name,
            kind=kind,
            alias=settings.alias,
            p99_ms=settings.p99_ms,
            slots=settings.slots,
            sample=sample,
            filter=conditions,
            pool=pool,
            recorded=newest,
            members=tuple(members),
        )

    def _require_owner(self, actor: Actor, checkpoint: str, what: str) -> None:
        """Require an owner of a project that may change the checkpoint, or an admin."""
        if actor.admin:
            return
        for project in self._parts.access.projects(actor):
            if project.checkpoints and checkpoint not in project.checkpoints:
                continue
            try:
                self._parts.access.require(actor, Role.OWNER, project.name)
            except PlatformError:
                continue
            return
        raise NotAllowedError(
            f'{actor.user} cannot {what} checkpoint "{checkpoint}": this requires an owner of one of its '
            "projects, or an admin; ask one"
        )
