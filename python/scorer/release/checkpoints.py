"""Checkpoints: what answers and observes there, as recorded and as every server says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from scorer.release.answers import CheckpointView, MemberView
from scorer.release.errors import ConflictError, InvalidError, NotAllowedError, PlatformError
from scorer.release.lanes import recorded
from scorer.release.model import Actor, RecordedTable, Role
from scorer.release.settings import check_filter
from scorer.release.store import Store, utcnow
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.release.calendar import Calendar
    from scorer.release.changes.operations import Changes
    from scorer.release.fleet import Fleet, MemberStatus
    from scorer.release.lanes.reconcile import Reconciler
    from scorer.release.settings import PlatformFile


class Checkpoints:
    """What is where.

    Args:
        store: recorded tables.
        settings: the checkpoints'.
        access: who may.
        changes: for rolling back what is being released.
        calendar: knows the checkpoints.
        reconciler: tells servers.
        fleet: asked for what servers have now.
        now: the time.
    """

    def __init__(
        self,
        store: Store,
        settings: PlatformFile,
        access: Access,
        changes: Changes,
        calendar: Calendar,
        reconciler: Reconciler,
        fleet: Fleet,
        *,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._store = store
        self._settings = settings
        self._access = access
        self._changes = changes
        self._calendar = calendar
        self._reconciler = reconciler
        self._fleet = fleet
        self._now = now

    def list(self, actor: Actor) -> Sequence[CheckpointView]:
        """Return every checkpoint that the caller can see."""
        statuses = self._statuses()
        return [self._view(name, statuses) for name in sorted(self._settings.checkpoints)]

    def view(self, actor: Actor, checkpoint: str) -> CheckpointView:
        """Return one checkpoint with its lanes and servers."""
        self._calendar.checkpoint(checkpoint)
        return self._view(checkpoint, self._statuses())

    def servers(self) -> Sequence[str]:
        """The names of the fleet's servers; asks nobody."""
        return [member.name for member in self._fleet.members]

    def reachable(self) -> Mapping[str, bool]:
        """Whether each server answered when it was asked last."""
        return {name: status.reachable for name, status in self._statuses().items()}

    def kind(self, checkpoint: str) -> str:
        """`score` or `action`, as the servers' latest statuses have it; empty: none has reported it yet."""
        self._calendar.checkpoint(checkpoint)
        for status in self._statuses().values():
            if own := (status.checkpoints or {}).get(checkpoint):
                return own.kind
        return ""

    def history(self, actor: Actor, checkpoint: str, *, limit: int = 100) -> Sequence[RecordedTable]:
        """Return the recorded lane tables, newest first."""
        self._calendar.checkpoint(checkpoint)
        with self._store.read() as connection:
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
        """Owners: what the shadow is fed with from now on, running lanes included."""
        self._calendar.checkpoint(checkpoint)
        self._require_owner(actor, checkpoint, "set the sampling of")
        if not 0 < sample <= 1:
            raise InvalidError(
                f"sample is {sample:g}; it is a share of the requests, above 0 and at most 1; to end a "
                "shadow, withdraw or finish its change request"
            )
        try:
            check_filter(filter)
        except ValueError as error:
            raise InvalidError(str(error)) from None
        if pool and not any(member.role == "shadow" for member in self._settings.fleet):
            raise InvalidError("pool is true and there is no shadow pool; add a server of one to the fleet")
        values = {"checkpoint": checkpoint, "sample": sample, "filter": filter, "pool": pool}
        ledger = self._changes.ledger
        with self._store.write() as connection:
            connection.execute(delete(t.sampling).where(t.sampling.c.checkpoint == checkpoint))
            connection.execute(insert(t.sampling).values(**values, user=actor.user, at=self._now()))
            recorded.record(
                connection,
                self._settings,
                checkpoint,
                at=self._now(),
                actor=actor.user,
                cause=recorded.SAMPLING,
            )
            ledger.audit.append(connection, actor, "checkpoint.sampling", checkpoint, details=values)
        self._changes.follow(checkpoint)
        return self.view(actor, checkpoint)

    def rollback(self, actor: Actor, checkpoint: str, *, reason: str) -> RecordedTable:
        """One call, always: the answer lanes before these; a release under way ends rolled back.

        What a release changed is taken back by its own rollback. A second call goes one further back, and
        never returns to what the first one left.
        """
        self._calendar.checkpoint(checkpoint)
        with self._store.read() as connection:
            decided = recorded.deciding(connection, checkpoint)
        if decided and decided.change and decided.cause in (recorded.STAGE, recorded.RELEASE):
            self._changes.rollback(actor, decided.change, reason=reason)
            return self.history(actor, checkpoint, limit=1)[0]
        self._require_owner(actor, checkpoint, "roll back")
        if not reason.strip():
            raise InvalidError("a reason is kept with a rollback; say why")
        ledger = self._changes.ledger
        with self._store.write() as connection:
            now = recorded.newest(connection, checkpoint)
            target = recorded.earlier(connection, checkpoint)
            again = recorded.deciding(connection, checkpoint)
            if (again and again.revision) != (decided and decided.revision):
                raise ConflictError(f'checkpoint "{checkpoint}" has just been changed; look at it again')
            if now is None or target is None:
                raise ConflictError(
                    f'checkpoint "{checkpoint}" has no earlier lanes to go back to; release another bundle'
                )
            answer = recorded.with_latest_overlays(connection, checkpoint, target.answer)
            restored = recorded.main_lane(answer).bundle
            made = recorded.record(
                connection,
                self._settings,
                checkpoint,
                at=self._now(),
                actor=actor.user,
                cause=recorded.ROLLBACK,
                answer=answer,
                restores=target.revision,
                alias=restored,
                alias_from=recorded.main_lane(now.answer).bundle,
            )
            ledger.audit.append(
                connection,
                actor,
                "checkpoint.rollback",
                checkpoint,
                details={"reason": reason.strip(), "back_to": restored, "table": target.revision},
            )
        self._changes.follow(checkpoint)
        return made or now

    def rolled_back_at(self, checkpoint: str) -> datetime | None:
        """When that was done last."""
        r = t.recorded_tables.c
        with self._store.read() as connection:
            return connection.execute(
                select(r.at)
                .where(r.checkpoint == checkpoint, r.cause == recorded.ROLLBACK)
                .order_by(r.revision.desc())
                .limit(1)
            ).scalar()

    # --- inside ---

    def _statuses(self) -> Mapping[str, MemberStatus]:
        return self._reconciler.statuses.recent()

    def _view(self, name: str, statuses: Mapping[str, MemberStatus]) -> CheckpointView:
        settings = self._settings.checkpoints[name]
        m = t.member_lanes.c
        with self._store.read() as connection:
            newest = recorded.newest(connection, name)
            sample, conditions, pool = recorded.sampling(connection, self._settings, name)
            rows = connection.execute(select(t.member_lanes).where(m.checkpoint == name)).all()
        refusals = {row.member: row.error for row in rows if newest and row.refused == newest.revision}
        members, kind = [], ""
        for member in self._fleet.members:
            status = statuses[member.name]
            mine = (status.checkpoints or {}).get(name)
            kind = kind or (mine.kind if mine else "")
            members.append(
                MemberView(
                    name=member.name,
                    role=member.role,
                    reachable=status.reachable,
                    error=status.error or refusals.get(member.name, ""),
                    in_step=recorded.has(newest, mine, member.role),
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
        """An owner of a project that brings models there, or an admin."""
        if actor.admin:
            return
        for project in self._access.projects(actor):
            if project.checkpoints and checkpoint not in project.checkpoints:
                continue
            try:
                self._access.require(actor, Role.OWNER, project.name)
            except PlatformError:
                continue
            return
        raise NotAllowedError(
            f'{actor.user} cannot {what} checkpoint "{checkpoint}": that is for owners of a project that '
            "brings models there, and admins; ask one"
        )
