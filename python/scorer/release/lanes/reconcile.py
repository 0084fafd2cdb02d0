"""Brings every server to the newest recorded tables.

A server whose lanes differ from the newest recorded table is one of three. *Out of sync*: it was away, or
lost its state, and is sent the newest table. *New*: nothing is recorded yet, and its lanes are recorded as
found. *Changed outside*: its answer lanes were changed by others; they are recorded (as found, or as a broken
glass), and the other servers follow. The last differs from the first in that the server's own number of the
table is higher than when the platform last knew it, and the lanes are none that were recorded since.

Every change names the lane table that it was decided on, and a status is read before the newest recorded
table is: a pass that stalls in between is refused by the server (`StaleError`) and decides anew. So passes
of several threads and processes need no lock between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from scorer.errors import ScorerError
from scorer.release.errors import PlatformError, UnreachableError
from scorer.release.fleet import Parallel, Spread, StaleError, Statuses
from scorer.release.lanes import recorded
from scorer.release.lanes.alerts import Alerts, drift_of
from scorer.release.model import PLATFORM, LaneSpec, RecordedTable
from scorer.release.store import Store
from scorer.release.store import tables as t
from scorer.release.store.rows import read, row_of, upsert

if TYPE_CHECKING:
    from scorer.registry import RegistryBackend
    from scorer.release.audit import Audit
    from scorer.release.fleet import CheckpointStatus, Fleet, Member, MemberStatus
    from scorer.release.settings import PlatformFile

_LONGEST_PAUSE = timedelta(minutes=5)
_NOT_ASKED = "has not been asked yet"
_TRIES = 3
"""Decisions on one server in a pass, where others change its lane table meanwhile."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a server was last known to have, and its answer to the latest refused table."""

    revision: int
    lane_table: int
    error: str = ""
    refused: int | None = None
    failures: int = 0
    retry_at: datetime | None = None


class Reconciler:
    """One pass after another over the fleet. Everything that decides is in the database.

    Args:
        store: The recorded tables.
        settings: The checkpoints and their aliases, and how long a pass waits for a server.
        fleet: The servers.
        registry: Whose aliases a release moves.
        audit: For what was found.
        now: The time.
        statuses: The servers' latest statuses; shared with whoever shows or counts them.
        alerts: Reports changes that others made.
        spread: Works on all servers at once.
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
        self._alias_errors: dict[str, str] = {}
        self._reachable: dict[str, bool] = {}
        self._pools: dict[str, bool] = {}

    def round(self, checkpoints: Sequence[str] | None = None) -> None:
        """Read every server's status once, all at the same time, and bring those that differ in sync.

        A server that takes longer than `reach_seconds` is not waited for: the call goes on, and the next
        pass looks at it again.
        """
        names = list(self._settings.checkpoints) if checkpoints is None else list(checkpoints)
        seconds = self._settings.platform.reach_seconds
        if checkpoints is None:
            found = self.statuses.look()
            self._watch(found)
            done = self._spread(
                lambda member: self._bring_all(member, names, found[member.name]),
                self._fleet.members,
                seconds=seconds,
            )
        else:
            # A rollback: each server is sent its lanes as soon as its own status is there.
            done = self._spread(
                lambda member: self._bring_all(member, names, self._fleet.status(member)),
                self._fleet.members,
                seconds=seconds,
            )
        for member in self._fleet.members:
            if member.name not in done:
                late = f'server "{member.name}" has not taken its lanes within {seconds:g} s; retried'
                self._seen.update({(member.name, name): (0, late) for name in names})
        for name in names:
            self._move_alias(name)

    def behind(self, checkpoint: str, revision: int, *, pool: bool = False) -> dict[str, str]:
        """By server: why it does not have at least this revision, as of the last pass.

        Args:
            checkpoint: Where.
            revision: Of the recorded table.
            pool: Servers of the shadow pool too: of interest to a change that is observed there.
        """
        found = {}
        for member in self._fleet.members:
            if member.role != "live" and not pool:
                continue
            has, why = self._seen.get((member.name, checkpoint), (0, _NOT_ASKED))
            if has < revision:
                found[member.name] = why or f"has table {has}"
        return found

    def members(self, *, pool: bool) -> list[Member]:
        """The live servers, and those of the shadow pool where asked for."""
        return [member for member in self._fleet.members if pool or member.role == "live"]

    def alias_waits(self, checkpoint: str) -> str | None:
        """Why the registry's alias has yet to be moved; None: it has been."""
        with self._store.read() as connection:
            if _alias_row(connection, checkpoint) is None:
                return None
        return self._alias_errors.get(checkpoint, "the registry's alias is moved next")

    def refusals(self, checkpoint: str, revision: int) -> dict[str, tuple[int, str]]:
        """By server that refuses this very table: how often it has, and its words."""
        m = t.member_lanes.c
        with self._store.read() as connection:
            rows = connection.execute(
                select(t.member_lanes).where(m.checkpoint == checkpoint, m.refused == revision)
            ).all()
        names = {member.name for member in self._fleet.members}
        return {row.member: (row.failures, row.error) for row in rows if row.member in names}

    # --- what the statuses tell beside lanes ---

    def _watch(self, statuses: Mapping[str, MemberStatus]) -> None:
        """Report servers and pools that were lost or are back, and aliases that others moved."""
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
                name: own.drift
                for name, status in statuses.items()
                if status.reachable and (own := (status.checkpoints or {}).get(checkpoint)) and own.managed_by
            }
            if not drifts:
                continue
            digest = next((digest for digest in drifts.values() if digest), "")
            with self._store.read() as connection:
                known = drift_of(connection, checkpoint)
            if known != digest:
                servers = sorted(name for name, own in drifts.items() if own)
                with self._store.write() as connection:
                    self._alerts.drift(connection, checkpoint, digest, servers)

    # --- one server, one checkpoint ---

    def _bring_all(self, member: Member, checkpoints: Sequence[str], status: MemberStatus) -> None:
        for number, checkpoint in enumerate(checkpoints):
            # Telling one checkpoint makes a new table: the next decision takes a status of its own.
            lane_table = status.lane_table
            self._seen[member.name, checkpoint], status = self._bring(member, checkpoint, status)
            if status.lane_table != lane_table and number + 1 < len(checkpoints):
                status = self._fleet.status(member)

    def _bring(
        self, member: Member, checkpoint: str, status: MemberStatus
    ) -> tuple[tuple[int, str], MemberStatus]:
        """The revision that a server has now and why not the newest, and its latest status."""
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
        """One decision about a server, on a status that was read before the recorded tables are."""
        mine = (status.checkpoints or {}).get(checkpoint)
        is_live = member.role == "live"
        with self._store.read() as connection:
            newest = recorded.newest(connection, checkpoint)
            known = _known(connection, member.name, checkpoint)
        if is_live and mine and mine.answer and self._is_its_own(checkpoint, mine, status, newest, known):
            newest = self._found(member, checkpoint, mine, newest, known)
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
            # Only what the server reports itself counts as done.
            status = self._fleet.status(member)
            return self._confirm(member, checkpoint, newest, wanted, status), status
        self._note(member, checkpoint, known, Known(newest.revision, status.lane_table, refusal))
        return (newest.revision, ""), status

    def _manage(self, member: Member, checkpoint: str, mine: CheckpointStatus) -> str:
        """Mark the checkpoint as managed by this platform; why the server refuses that, or nothing."""
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
        """Whether a server that refused this table is not to be told again yet."""
        if known.refused != revision or known.retry_at is None:
            return False
        # A time further ahead than any pause is from before the clock was set back.
        return self._now() < known.retry_at <= self._now() + _LONGEST_PAUSE

    def _is_its_own(
        self,
        checkpoint: str,
        mine: CheckpointStatus,
        status: MemberStatus,
        newest: RecordedTable | None,
        known: Known | None,
    ) -> bool:
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

    def _found(
        self,
        member: Member,
        checkpoint: str,
        mine: CheckpointStatus,
        newest: RecordedTable | None,
        known: Known | None,
    ) -> RecordedTable | None:
        """Record what a server has; the newest table where another pass recorded one meanwhile."""
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
        """Send the lanes that differ, on condition that the server still has the table of its status."""
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
            # A pool's server names a checkpoint once it has lanes of it.
            return (newest.revision, "") if not observe and member.role != "live" else (0, "has no lanes yet")
        if member.role == "live" and not recorded.same_answer(mine.answer, newest.answer):
            return 0, "was sent the newest table, and has other answer lanes"
        if not recorded.same_observe(mine.observe, observe):
            return 0, "was sent the newest table, and has other observe lanes"
        with self._store.read() as connection:
            known = _known(connection, member.name, checkpoint)
        self._note(member, checkpoint, known, Known(newest.revision, status.lane_table))
        return newest.revision, ""

    # --- what is remembered of servers ---

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
        """Moves the alias as the newest table asks, once: a later move by somebody else is a decision, too.

        Servers have the lanes already, so they take note of where the alias points and change nothing. Killed
        between the move and its note, the next pass finds the alias where it is to be.
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
    """Whether the glass was broken at a server since the platform last knew its table."""
    return bool(mine.break_glass and known and mine.break_glass.lane_table > known.lane_table)


def _known(connection: Any, member: str, checkpoint: str) -> Known | None:
    row = row_of(connection, t.member_lanes, member=member, checkpoint=checkpoint)
    return None if row is None else read(Known, row)


def _alias_row(connection: Any, checkpoint: str) -> Any:
    """The newest table that has something to say of the alias, unless it has been done."""
    r = t.recorded_tables.c
    row = connection.execute(
        select(t.recorded_tables)
        .where(r.checkpoint == checkpoint, r.alias.is_not(None))
        .order_by(r.revision.desc())
        .limit(1)
    ).first()
    return None if row is None or row.alias_done else row
