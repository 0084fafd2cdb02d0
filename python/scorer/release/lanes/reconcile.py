"""Brings every server in sync with the newest recorded lane tables.

The reconciler distinguishes three reasons why a server's lanes differ from the newest recorded table:

- *Out of sync*: the server was unreachable or lost its state. The reconciler sends it the newest table.
- *New*: no table is recorded yet. The reconciler records the server's lanes.
- *Drift*: the server's answer lanes were changed outside the platform. The reconciler records them, as drift
  or as a break-glass change, and brings the other servers in sync with them. It recognises drift by a version
  of the server's lane table that is higher than the last known one, with lanes that no table recorded since
  contains.

Every change names the version of the lane table that the decision is based on, and the reconciler reads the
status of a server before it reads the newest recorded table. If a pass stalls in between, the server rejects
its change (`StaleError`) and the pass decides again. Passes in several threads and processes therefore need
no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from scorer.errors import ScorerError
from scorer.release.errors import PlatformError, UnreachableError
from scorer.release.fleet import Parallel, Spread, StaleError, Statuses
from scorer.release.fleet.statuses import not_in_time
from scorer.release.lanes import recorded
from scorer.release.lanes.alerts import Alerts, drift_of
from scorer.release.lanes.snapshot import Known, Snapshot, known_of, newest_tables
from scorer.release.lanes.turns import Turns
from scorer.release.model import PLATFORM, LaneSpec, RecordedTable
from scorer.release.store import Store
from scorer.release.store import tables as t
from scorer.release.store.rows import upsert

if TYPE_CHECKING:
    from scorer.registry import RegistryBackend
    from scorer.release.audit import Audit
    from scorer.release.fleet import CheckpointStatus, Fleet, Member, MemberStatus
    from scorer.release.settings import PlatformFile

_LONGEST_PAUSE = timedelta(minutes=5)
_NOT_ASKED = "has not been asked yet"
_PASS_SECONDS = 2.0
"""Longest time in seconds that a pass waits for a server, so that the next table does not wait for long."""
_TRIES = 3
"""Attempts per server and pass when its lane table is changed concurrently."""


class Reconciler:
    """Compares the servers with the recorded tables, pass by pass.

    All state that decisions depend on is in the database.

    Args:
        store: The database with the recorded tables.
        settings: The checkpoints, their aliases and the time that a pass waits for a server.
        fleet: The servers.
        registry: The registry whose aliases a release moves.
        audit: The audit log.
        now: Returns the current time.
        statuses: The servers' latest statuses, shared with the pages and the metrics.
        alerts: Reports changes made outside the platform.
        spread: Calls all servers concurrently.
    """

    def __init__(
        self,
        store: Store,
        settings: PlatformFile,
        fleet: Fleet,
        registry: RegistryBackend,
        audit: Audit,
        *,
        now: Callable[[], datetime],
        statuses: Statuses | None = None,
        alerts: Alerts | None = None,
        spread: Spread | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._fleet = fleet
        self._registry = registry
        self._audit = audit
        self._now = now
        self._alerts = alerts or Alerts(audit, now=now)
        self._spread = spread or Parallel()
        self.statuses = statuses or Statuses(fleet, spread=self._spread)
        self._seen: dict[tuple[str, str], tuple[int, str]] = {}
        self._turns = Turns(settings.platform.tick_ms / 1000)
        self._reading: set[str] = set()
        self._alias_errors: dict[str, str] = {}
        self._reachable: dict[str, bool] = {}
        self._pools: dict[str, bool] = {}

    def round(self, checkpoints: Sequence[str] | None = None) -> None:
        """Read the status of servers concurrently, and bring those that differ in sync.

        Each server gets its lanes as soon as its own status has been read. A call that takes longer than the
        pass waits continues in the background, and later passes do not wait for that server until it responds
        in time again.

        Args:
            checkpoints: Names of the checkpoints to reconcile at all servers; None: all checkpoints, at the
                servers that are due (`scorer.release.lanes.turns`).
        """
        names = list(self._settings.checkpoints) if checkpoints is None else list(checkpoints)
        seconds = self._settings.platform.reach_seconds
        members = self._fleet.members
        tables = newest_tables(self._store, names)
        if checkpoints is None:
            seconds = min(seconds, _PASS_SECONDS)
            asked = self.statuses.asked()
            behind = [member for member in members if self._is_behind(member, asked, tables)]
            members = self._turns.due(members, behind, tuple(map(tables.revision, names)))
        known = tables.with_states(self._store, members)
        begun = time.monotonic()
        done = self._spread(lambda member: self._call(member, names, known), members, seconds=seconds)
        if time.monotonic() - begun >= seconds:
            for member in members:
                if member.name not in done:
                    late = f'server "{member.name}" has not taken its lanes within {seconds:g} s; retried'
                    self._seen.update({(member.name, name): (0, late) for name in names})
                    if member.name in self._reading:
                        self.statuses.put(member, not_in_time(member))
        if checkpoints is None:
            self.statuses.touch()
            self._watch(self.statuses.asked())
        for name in names:
            self._move_alias(name)

    def behind(self, checkpoint: str, revision: int, *, pool: bool = False) -> dict[str, str]:
        """Return the servers that lack a revision, each with the reason, as of the last pass.

        Args:
            checkpoint: Name of the checkpoint.
            revision: Revision of the recorded table, or a later one.
            pool: Whether to include the servers of the shadow pool.
        """
        found = {}
        for member in self._fleet.members:
            if member.role != "live" and not pool:
                continue
            has, why = self._seen.get((member.name, checkpoint), (0, _NOT_ASKED))
            if has < revision:
                found[member.name] = why or f"has table {has}"
        return found

    def trouble(self, member: Member, checkpoint: str) -> str:
        """Return why a server lacks the newest table, as of the last call of this process; empty: unknown."""
        has, why = self._seen.get((member.name, checkpoint), (0, ""))
        return "" if has else why

    def members(self, *, pool: bool) -> list[Member]:
        """Return the live servers and, if `pool` is set, those of the shadow pool."""
        return [member for member in self._fleet.members if pool or member.role == "live"]

    def alias_waits(self, checkpoint: str) -> str | None:
        """Return the reason why the registry's alias has not been moved yet; None if it has been moved."""
        with self._store.read() as connection:
            if _alias_row(connection, checkpoint) is None:
                return None
        return self._alias_errors.get(checkpoint, "the registry's alias is moved next")

    def refusals(self, checkpoint: str, revision: int) -> dict[str, tuple[int, str]]:
        """Return the servers that reject this table, with the number of rejections and the last error."""
        m = t.member_lanes.c
        with self._store.read() as connection:
            rows = connection.execute(
                select(t.member_lanes).where(m.checkpoint == checkpoint, m.refused == revision)
            ).all()
        names = {member.name for member in self._fleet.members}
        return {row.member: (row.failures, row.error) for row in rows if row.member in names}

    # --- reachability, shadow pools and aliases ---

    def _watch(self, statuses: Mapping[str, MemberStatus]) -> None:
        """Report servers and pools that became unreachable or reachable, and aliases moved by others."""
        for name, status in statuses.items():
            if self._reachable.get(name, True) != status.reachable:
                self._alerts.reachable(name, is_reachable=status.reachable, error=status.error)
            self._reachable[name] = status.reachable
            if status.reachable and status.pool is not None:
                connected = bool(status.pool.get("connected"))
                if self._pools.get(name, True) != connected:
                    error = str(status.pool.get("error") or "")
                    self._alerts.pool(name, is_connected=connected, error=error)
                self._pools[name] = connected
        for checkpoint in self._settings.checkpoints:
            drifts = {
                name: state.drift
                for name, status in statuses.items()
                if status.reachable
                and (state := (status.checkpoints or {}).get(checkpoint))
                and state.managed_by
            }
            if not drifts:
                continue
            digest = next((digest for digest in drifts.values() if digest), "")
            with self._store.read() as connection:
                known = drift_of(connection, checkpoint)
            if known != digest:
                servers = sorted(name for name, drift in drifts.items() if drift)
                with self._store.write() as connection:
                    self._alerts.drift(connection, checkpoint, digest, servers)

    # --- one server, one checkpoint ---

    def _call(self, member: Member, checkpoints: Sequence[str], known: Snapshot) -> None:
        self._reading.add(member.name)
        try:
            status = self.statuses.read(member)
        finally:
            self._reading.discard(member.name)
        self._bring_all(member, checkpoints, status, known)

    def _is_behind(self, member: Member, asked: Mapping[str, MemberStatus], tables: Snapshot) -> bool:
        """Whether a server that responds lacks a newest table, as of its last call."""
        status = asked.get(member.name)
        return bool(status and status.reachable) and any(
            self._seen.get((member.name, name), (0, ""))[0] < tables.revision(name) for name in tables.newest
        )

    def _bring_all(
        self, member: Member, checkpoints: Sequence[str], status: MemberStatus, known: Snapshot
    ) -> None:
        for number, checkpoint in enumerate(checkpoints):
            if known.is_in_sync(member, checkpoint, status, self._fleet.platform):
                # The usual case needs no look at the database.
                self._seen[member.name, checkpoint] = known.revision(checkpoint), ""
                continue
            # A change of one checkpoint creates a new lane table, so the next decision needs a new status.
            lane_table = status.lane_table
            self._seen[member.name, checkpoint], status = self._bring(member, checkpoint, status)
            if status.lane_table != lane_table and number + 1 < len(checkpoints):
                status = self._fleet.status(member)

    def _bring(
        self, member: Member, checkpoint: str, status: MemberStatus
    ) -> tuple[tuple[int, str], MemberStatus]:
        """Return the server's revision with the reason why it is not the newest, and its latest status."""
        for _ in range(_TRIES):
            if not status.reachable:
                return (0, status.error), status
            try:
                return self._step(member, checkpoint, status)
            except StaleError as error:
                found = (0, str(error))
                status = self._fleet.status(member)
            except UnreachableError as error:
                return (0, str(error)), status
        return found, status

    def _step(
        self, member: Member, checkpoint: str, status: MemberStatus
    ) -> tuple[tuple[int, str], MemberStatus]:
        """Decide on one server once, from a status that was read before the recorded tables."""
        mine = (status.checkpoints or {}).get(checkpoint)
        is_live = member.role == "live"
        with self._store.read() as connection:
            newest = recorded.newest(connection, checkpoint)
            known = known_of(connection, member.name, checkpoint)
        if is_live and mine and mine.answer and self._has_drifted(checkpoint, mine, status, newest, known):
            newest = self._record_drift(member, checkpoint, mine, newest, known)
        if newest is None:
            return (0, "nothing answers there yet"), status
        if mine is None and is_live:
            return (0, f'it has no checkpoint "{checkpoint}"; add it to its settings'), status
        refusal = self._manage(member, checkpoint, mine) if is_live and mine else ""
        wanted = newest.observe if is_live else tuple(lane for lane in newest.observe if lane.pool)
        answers = not is_live or recorded.same_answer(mine.answer if mine else (), newest.answer)
        observes = recorded.same_observe(mine.observe if mine else (), wanted)
        if not (answers and observes):
            if known and self._is_resting(known, newest.revision):
                return (0, known.error), status
            try:
                self._send(member, checkpoint, newest, wanted, status, answers=answers, observes=observes)
            except UnreachableError:
                raise
            except PlatformError as error:
                self._refused(member, checkpoint, newest.revision, known, str(error))
                return (0, str(error)), status
            # A change is complete only when the server reports it.
            status = self._fleet.status(member)
            return self._confirm(member, checkpoint, newest, wanted, status), status
        self._note(member, checkpoint, known, Known(newest.revision, status.lane_table, refusal))
        return (newest.revision, ""), status

    def _manage(self, member: Member, checkpoint: str, mine: CheckpointStatus) -> str:
        """Mark the checkpoint as managed by this platform. Returns the server's error, or ""."""
        if mine.managed_by == self._fleet.platform:
            return ""
        try:
            self._fleet.manage(member, checkpoint)
        except UnreachableError:
            raise
        except PlatformError as error:
            return str(error)
        return ""

    def _is_resting(self, known: Known, revision: int) -> bool:
        """Whether the pause after a rejected table has not ended yet."""
        if known.refused != revision or known.retry_at is None:
            return False
        # A time beyond the longest pause was written before the clock was set back.
        return self._now() < known.retry_at <= self._now() + _LONGEST_PAUSE

    def _has_drifted(
        self,
        checkpoint: str,
        mine: CheckpointStatus,
        status: MemberStatus,
        newest: RecordedTable | None,
        known: Known | None,
    ) -> bool:
        """Whether the server's answer lanes were set outside the platform, or no table is recorded yet."""
        if newest is None:
            return True
        if known is None or status.lane_table <= known.lane_table:
            return False
        if recorded.same_answer(mine.answer, newest.answer):
            return False
        if _glass_since(mine, known):
            return True
        with self._store.read() as connection:
            since = recorded.history(connection, checkpoint, since=known.revision)
        return not any(recorded.same_answer(mine.answer, each.answer) for each in since)

    def _record_drift(
        self,
        member: Member,
        checkpoint: str,
        mine: CheckpointStatus,
        newest: RecordedTable | None,
        known: Known | None,
    ) -> RecordedTable | None:
        """Record the server's answer lanes and return the newest table, which another pass may have added."""
        glass = mine.break_glass if _glass_since(mine, known) else None
        with self._store.write() as connection:
            last = recorded.newest(connection, checkpoint)
            if (last and last.revision) != (newest and newest.revision):
                return last
            decision = recorded.LaneDecision(
                recorded.BREAK_GLASS if glass else recorded.FOUND,
                [LaneSpec(lane.name, lane.bundle, share=lane.share) for lane in mine.answer],
            )
            actor = glass.by or PLATFORM.user if glass else PLATFORM.user
            made = recorded.record(
                connection, self._settings, checkpoint, decision, at=self._now(), actor=actor
            )
            answer = {lane.name: f"{lane.share:g} {lane.bundle}" for lane in mine.answer}
            self._alerts.changed_outside(connection, checkpoint, member.name, made, answer, glass)
            return made

    def _send(
        self,
        member: Member,
        checkpoint: str,
        newest: RecordedTable,
        observe: Sequence[LaneSpec],
        status: MemberStatus,
        *,
        answers: bool,
        observes: bool,
    ) -> None:
        """Send the lanes that differ. The server rejects them if its lane table is not that of the status."""
        reason = f"{newest.change or newest.cause} table {newest.revision}"
        expected = status.lane_table
        if not answers:
            expected = self._fleet.set_answer(
                member, checkpoint, newest.answer, reason=reason, expected=expected
            )
        if not observes:
            self._fleet.set_observers(member, checkpoint, observe, reason=reason, expected=expected)

    def _confirm(
        self,
        member: Member,
        checkpoint: str,
        newest: RecordedTable,
        observe: Sequence[LaneSpec],
        status: MemberStatus,
    ) -> tuple[int, str]:
        if not status.reachable:
            return 0, status.error
        mine = (status.checkpoints or {}).get(checkpoint)
        if mine is None:
            # A server of the pool reports a checkpoint only while it has lanes of it.
            return (newest.revision, "") if not observe and member.role != "live" else (0, "has no lanes yet")
        if member.role == "live" and not recorded.same_answer(mine.answer, newest.answer):
            return 0, "was sent the newest table, and has other answer lanes"
        if not recorded.same_observe(mine.observe, observe):
            return 0, "was sent the newest table, and has other observe lanes"
        with self._store.read() as connection:
            known = known_of(connection, member.name, checkpoint)
        self._note(member, checkpoint, known, Known(newest.revision, status.lane_table))
        return newest.revision, ""

    # --- recorded state of the servers ---

    def _refused(
        self, member: Member, checkpoint: str, revision: int, known: Known | None, error: str
    ) -> None:
        failures = known.failures + 1 if known and known.refused == revision else 1
        pause = min(timedelta(seconds=2.0 ** min(failures, 10)), _LONGEST_PAUSE)
        has = (known.revision, known.lane_table) if known else (0, 0)
        self._note(member, checkpoint, known, Known(*has, error, revision, failures, self._now() + pause))

    def _note(self, member: Member, checkpoint: str, before: Known | None, now: Known) -> None:
        if before == now:
            return
        key = {"member": member.name, "checkpoint": checkpoint}
        with self._store.write() as connection:
            upsert(connection, t.member_lanes, key, **asdict(now))

    # --- the alias ---

    def _move_alias(self, checkpoint: str) -> None:
        """Move the alias once to the digest that the newest table names.

        A later move by another user is a decision of its own and is not reverted. The servers have the lanes
        already, so they change nothing when the alias moves. If the process ends between the move and its
        record, the next pass finds the alias at its target.
        """
        with self._store.read() as connection:
            row = _alias_row(connection, checkpoint)
            newest = recorded.newest(connection, checkpoint)
        if row is None or newest is None:
            return
        if all(lane.bundle != row.alias for lane in newest.answer):
            self._alias_done(row, {"superseded_by": newest.revision})
            return
        if row.alias_from is None and self.behind(checkpoint, row.revision):
            return
        name, _, alias = self._settings.checkpoints[checkpoint].alias.partition("@")
        try:
            points_to = self._registry.resolve(f"{name}@{alias}").digest if row.alias_from else None
            moves = points_to == row.alias_from
            if moves:
                reason = f"{row.change or row.cause} table {row.revision}"
                self._registry.alias(name, alias, row.alias, by=row.actor, reason=reason)
        except ScorerError as error:
            self._alias_errors[checkpoint] = str(error)
            return
        self._alias_errors.pop(checkpoint, None)
        self._alias_done(row, {"to": row.alias} if moves else {"left": points_to})

    def _alias_done(self, row: Any, details: dict[str, Any]) -> None:
        r = t.recorded_tables.c
        with self._store.write() as connection:
            done = connection.execute(
                update(t.recorded_tables)
                .where(r.checkpoint == row.checkpoint, r.revision == row.revision, r.alias_done.is_(False))
                .values(alias_done=True)
            )
            if done.rowcount:
                alias = self._settings.checkpoints[row.checkpoint].alias
                about = {"change": row.change, "revision": row.revision, **details}
                self._audit.append(connection, PLATFORM, "alias.move", alias, details=about)


def _glass_since(mine: CheckpointStatus, known: Known | None) -> bool:
    """Whether a break-glass change was made at a server since its last known lane table."""
    return bool(mine.break_glass and known and mine.break_glass.lane_table > known.lane_table)


def _alias_row(connection: Any, checkpoint: str) -> Any:
    """Return the newest table that moves the alias; None if there is none or the alias has been moved."""
    r = t.recorded_tables.c
    row = connection.execute(
        select(t.recorded_tables)
        .where(r.checkpoint == checkpoint, r.alias.is_not(None))
        .order_by(r.revision.desc())
        .limit(1)
    ).first()
    return None if row is None or row.alias_done else row
