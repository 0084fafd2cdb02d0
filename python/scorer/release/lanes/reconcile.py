"""Makes every server follow the newest recorded tables.

A server that has a table of its own is one of three: *behind* (it was away, or lost its state): it is told;
*new*, where nothing is recorded yet: its lanes are recorded as found; *changed outside* (somebody swapped by
hand, an alias moved): its answer lanes are recorded as found, and the others follow. What tells the last from
the first is what the server was last known to have: its own number of the table is higher than then, and the
lanes are none that were recorded since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update

from scorer.errors import ScorerError
from scorer.release.errors import PlatformError, UnreachableError
from scorer.release.lanes import recorded
from scorer.release.model import PLATFORM, LaneSpec, RecordedTable
from scorer.release.store import Store
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.registry import RegistryBackend
    from scorer.release.audit import Audit
    from scorer.release.fleet import CheckpointStatus, Fleet, Member, MemberStatus
    from scorer.release.settings import Settings

_LONGEST_PAUSE = timedelta(minutes=5)
_NOTHING = "has not been asked yet"


@dataclass(frozen=True, slots=True)
class Known:
    """What a server was last known to have, and what it said when it was told something else."""

    revision: int
    lane_table: int
    error: str = ""
    refused: int | None = None
    failures: int = 0
    retry_at: datetime | None = None


class Reconciler:
    """One pass after another over the fleet. Everything that it needs to know is in the database.

    Args:
        store: the recorded tables.
        settings: checkpoints, and their aliases.
        fleet: the servers.
        registry: whose aliases a release moves.
        audit: for what was found.
        now: the time.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        fleet: Fleet,
        registry: RegistryBackend,
        audit: Audit,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._settings = settings
        self._fleet = fleet
        self._registry = registry
        self._audit = audit
        self._now = now
        # Two passes at once could tell a server an older table after a newer one.
        self._turn = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[int, str]] = {}
        self._alias_errors: dict[str, str] = {}

    def round(self, checkpoints: Sequence[str] | None = None) -> None:
        """Looks at every server once and tells those that are not in step."""
        names = list(self._settings.checkpoints) if checkpoints is None else checkpoints
        with self._turn:
            for member in self._fleet.members:
                status = self._fleet.status(member)
                for name in names:
                    self._bring(member, name, status)
        for name in names:
            self._move_alias(name)

    def behind(self, checkpoint: str, revision: int) -> dict[str, str]:
        """By server: why it does not have at least this revision, as of the last pass."""
        found = {}
        for member in self._fleet.members:
            has, why = self._seen.get((member.name, checkpoint), (0, _NOTHING))
            if has < revision:
                found[member.name] = why or f"has table {has}"
        return found

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

    # --- one server, one checkpoint ---

    def _bring(self, member: Member, checkpoint: str, status: MemberStatus) -> None:
        found = (0, status.error)
        if status.reachable:
            try:
                found = self._step(member, checkpoint, status)
            except UnreachableError as error:
                found = (0, str(error))
        self._seen[member.name, checkpoint] = found

    def _step(self, member: Member, checkpoint: str, status: MemberStatus) -> tuple[int, str]:
        """The revision that the server is known to have now, and otherwise why not."""
        mine = (status.checkpoints or {}).get(checkpoint)
        is_live = member.role == "live"
        with self._store.read() as connection:
            newest = recorded.newest(connection, checkpoint)
            known = _known(connection, member.name, checkpoint)
        if is_live and mine and mine.answer and self._is_its_own(checkpoint, mine, status, newest, known):
            newest = self._found(member, checkpoint, mine, newest)
        if newest is None:
            return 0, "nothing answers there yet"
        if mine is None and is_live:
            return 0, f'it has no checkpoint "{checkpoint}"; add it to its settings'
        wanted = newest.observe if is_live else tuple(lane for lane in newest.observe if lane.pool)
        answers = not is_live or recorded.same_answer(mine.answer if mine else (), newest.answer)
        observes = recorded.same_observe(mine.observe if mine else (), wanted)
        lane_table = status.lane_table
        if not (answers and observes):
            if known and self._is_resting(known, newest.revision):
                return 0, known.error
            try:
                self._tell(member, checkpoint, newest, wanted, answers=answers, observes=observes)
            except UnreachableError:
                raise
            except PlatformError as error:
                self._refused(member, checkpoint, newest.revision, known, str(error))
                return 0, str(error)
            # Only what the server says itself counts as done.
            return self._confirm(member, checkpoint, newest, wanted)
        self._note(member, checkpoint, known, Known(newest.revision, lane_table))
        return newest.revision, ""

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
        with self._store.read() as connection:
            since = recorded.history(connection, checkpoint, since=known.revision)
        return not any(recorded.same_answer(mine.answer, each.answer) for each in since)

    def _found(
        self, member: Member, checkpoint: str, mine: CheckpointStatus, newest: RecordedTable | None
    ) -> RecordedTable | None:
        """Records what a server has; None where another pass, or a person, recorded something meanwhile."""
        with self._store.write() as connection:
            last = recorded.newest(connection, checkpoint)
            if (last and last.revision) != (newest and newest.revision):
                return last
            made = recorded.record(
                connection,
                self._settings,
                checkpoint,
                at=self._now(),
                actor=PLATFORM.user,
                cause=recorded.FOUND,
                answer=[LaneSpec(lane.name, lane.bundle, share=lane.share) for lane in mine.answer],
            )
            self._audit.append(
                connection,
                PLATFORM,
                "lanes.found",
                checkpoint,
                details={
                    "server": member.name,
                    "revision": made.revision if made else None,
                    "answer": {lane.name: f"{lane.share:g} {lane.bundle}" for lane in mine.answer},
                },
            )
            return made

    def _tell(
        self,
        member: Member,
        checkpoint: str,
        newest: RecordedTable,
        observe: Sequence[LaneSpec],
        *,
        answers: bool,
        observes: bool,
    ) -> None:
        reason = f"{newest.change or newest.cause} table {newest.revision}"
        if not answers:
            self._fleet.set_answer(member, checkpoint, newest.answer, reason=reason)
        if not observes:
            self._fleet.set_observers(member, checkpoint, observe, reason=reason)

    def _confirm(
        self, member: Member, checkpoint: str, newest: RecordedTable, observe: Sequence[LaneSpec]
    ) -> tuple[int, str]:
        status = self._fleet.status(member)
        if not status.reachable:
            return 0, status.error
        mine = (status.checkpoints or {}).get(checkpoint)
        if mine is None:
            # A pool's server names a checkpoint once it has lanes of it.
            return (newest.revision, "") if not observe and member.role != "live" else (0, "has no lanes yet")
        if member.role == "live" and not recorded.same_answer(mine.answer, newest.answer):
            return 0, "was told, and has other lanes"
        if not recorded.same_observe(mine.observe, observe):
            return 0, "was told, and has other observe lanes"
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
        m = t.member_lanes.c
        values = {
            "revision": now.revision,
            "lane_table": now.lane_table,
            "error": now.error,
            "refused": now.refused,
            "failures": now.failures,
            "retry_at": now.retry_at,
        }
        with self._store.write() as connection:
            done = connection.execute(
                update(t.member_lanes)
                .where(m.member == member.name, m.checkpoint == checkpoint)
                .values(**values)
            )
            if done.rowcount == 0:
                key = {"member": member.name, "checkpoint": checkpoint}
                connection.execute(insert(t.member_lanes).values(**key, **values))

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
        if not recorded.same_answer(newest.answer, [LaneSpec(**lane) for lane in row.answer]):
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


def _known(connection: Any, member: str, checkpoint: str) -> Known | None:
    m = t.member_lanes.c
    row = connection.execute(
        select(t.member_lanes).where(m.member == member, m.checkpoint == checkpoint)
    ).first()
    if row is None:
        return None
    return Known(row.revision, row.lane_table, row.error, row.refused, row.failures, row.retry_at)


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
