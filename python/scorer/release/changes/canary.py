"""A release under way: answer lanes, stage by stage, each watched by the gates; then all of the answers.

Order at the end: the table in which it answers everything is recorded, every server has it, then the
registry's alias is moved, then the change is done. A server whose alias moves has those lanes already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select

from scorer.release.calendar import Calendar, moment
from scorer.release.changes import rows
from scorer.release.changes.judging import Judging
from scorer.release.changes.operations import Changes
from scorer.release.changes.plan import stages_of
from scorer.release.lanes import recorded
from scorer.release.model import (
    PLATFORM,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    LaneSpec,
    Outcome,
    RecordedTable,
    Severity,
    Stage,
)
from scorer.release.store import Store
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scorer.release.lanes.reconcile import Reconciler
    from scorer.release.settings import PlatformFile

_TINY = 1e-9


def stage_lanes(before: str, bundle: str, stage: Stage, holdout: float) -> tuple[LaneSpec, ...]:
    """The answer lanes of a stage.

    Requests are dealt out by one number each, along the lanes: the canary's lie first and the holdout's last,
    so that from stage to stage nobody leaves the canary and nobody enters or leaves the holdout.
    """
    rest = 1 - stage.share - holdout
    lanes = [LaneSpec(recorded.CANARY, bundle, share=stage.share)]
    if rest > _TINY:
        lanes.append(LaneSpec(recorded.LIVE, before, share=rest))
    if holdout > 0:
        lanes.append(LaneSpec(recorded.HOLDOUT, before, share=holdout))
    return tuple(lanes)


class Canary:
    """The states `approved` and `released`."""

    def __init__(
        self,
        store: Store,
        settings: PlatformFile,
        changes: Changes,
        calendar: Calendar,
        reconciler: Reconciler,
        judging: Judging,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._settings = settings
        self._changes = changes
        self._ledger = changes.ledger
        self._calendar = calendar
        self._reconciler = reconciler
        self._judging = judging
        self._now = now

    def advance(self, change: ChangeRequest, mark: datetime | None) -> None:
        """Does at most one step."""
        if change.state is ChangeState.APPROVED:
            self._begin(change)
            return
        with self._store.read() as connection:
            decided = recorded.deciding(connection, change.checkpoint)
        if decided is None or decided.change != change.id:
            self._overtaken(change, decided)
        elif change.step.startswith("canary "):
            self._stage(change, mark, decided)
        elif change.step == "full":
            self._full(change, decided)
        else:
            self._alias(change)

    # --- the beginning ---

    def _begin(self, change: ChangeRequest) -> None:
        frozen = self._calendar.frozen(change.checkpoint)
        with self._store.write() as connection:
            if frozen:
                self._wait_for_thaw(connection, change, frozen.freeze.name, frozen.end)
                return
            other = self._under_way(connection, change)
            if other:
                words = f"waits until {other} is released: one at a time"
                self._ledger.step(connection, change, words, status="waiting")
                self._ledger.narrate(connection, change, words, key=f"turn:{other}")
                return
            last = recorded.newest(connection, change.checkpoint)
            if last is None:
                return
            before = recorded.main_lane(last.answer).bundle
            stages = stages_of(change, self._settings)
            if stages:
                answer = stage_lanes(before, change.bundle, stages[0], change.holdout)
                step, cause = "canary 1", recorded.STAGE
                message = f"its release has begun: {stages[0].share:.0%} of the answers"
            else:
                answer, step, cause = _all_of(change), "full", recorded.RELEASE
                message = "its release has begun: all of the answers"
            self._ledger.step(connection, change, "its turn", status="done")
            self._ledger.move(
                connection,
                change,
                "release",
                PLATFORM,
                message,
                step=step,
                details={"before": before, "answer": _shares(answer)},
                answer=answer,
                cause=cause,
                alias=change.bundle if cause == recorded.RELEASE else None,
                before=before,
            )

    # --- a stage ---

    def _stage(self, change: ChangeRequest, mark: datetime | None, decided: RecordedTable) -> None:
        stages = stages_of(change, self._settings)
        number = int(change.step.removeprefix("canary "))
        stage = stages[number - 1]
        patience = timedelta(minutes=self._settings.checkpoints[change.checkpoint].patience_minutes)
        if mark is None or self._now() < mark:
            self._settle(change, decided, patience)
            return
        length = timedelta(minutes=stage.minutes)
        over = self._now() - mark >= length
        results, failed = self._judging.stage(change, mark, length, final=over)
        if failed:
            self._roll_back(change, f"rolled back by its gates at {stage.share:.0%}: {failed}")
            return
        if not over or results is None:
            return
        verdict = rows.verdict(results)
        if verdict is not Outcome.PASS:
            said = rows.in_words(results, verdict)
            if self._now() - mark >= length + patience:
                self._roll_back(
                    change,
                    f"rolled back: still {verdict} {patience / timedelta(minutes=1):g} minutes after its "
                    f"stage at {stage.share:.0%}{said}",
                )
                return
            with self._store.write() as connection:
                self._ledger.narrate(
                    connection,
                    change,
                    f"{change.step} is {verdict} at its end; it waits up to "
                    f"{patience / timedelta(minutes=1):g} minutes more{said}",
                    key=f"patience:{change.step}",
                    severity=Severity.WARNING,
                )
            return
        frozen = self._calendar.frozen(change.checkpoint)
        with self._store.write() as connection:
            if frozen:
                self._wait_for_thaw(connection, change, frozen.freeze.name, frozen.end)
                return
            self._next(connection, change, stages, number)

    def _settle(self, change: ChangeRequest, decided: RecordedTable, patience: timedelta) -> None:
        """A stage's time runs from when every server has its lanes; anew where the clock was set back."""
        behind = self._behind(change)
        with self._store.write() as connection:
            if not behind:
                self._ledger.step(connection, change, "every server has its lanes", status="running", data={})
                self._ledger.save(connection, change, mark=self._now())
                return
            why = self._waits_for(connection, change, behind)
        if self._now() - decided.at >= patience:
            self._roll_back(change, f"rolled back: servers did not follow ({why})")

    def _next(
        self, connection: Connection, change: ChangeRequest, stages: Sequence[Stage], number: int
    ) -> None:
        self._ledger.step(connection, change, "its gates have passed", status="done")
        if number < len(stages):
            stage = stages[number]
            before = self._before(connection, change)
            answer = stage_lanes(before, change.bundle, stage, change.holdout)
            step, cause, alias = f"canary {number + 1}", recorded.STAGE, None
            message = f"{change.step} has passed: {stage.share:.0%} of the answers now"
        else:
            answer, step, cause, alias = _all_of(change), "full", recorded.RELEASE, change.bundle
            message = f"{change.step} has passed: all of the answers now"
        saved = self._ledger.save(connection, change, step=step, mark=None, note=message)
        self._ledger.record(connection, saved, cause, PLATFORM, answer=answer, alias=alias)
        details = {"step": step, "answer": _shares(answer)}
        self._ledger.audit.append(
            connection, PLATFORM, "change.stage", change.id, project=change.project, details=details
        )
        self._ledger.narrate(connection, saved, message, key=f"stage:{step}", details=details)

    def _before(self, connection: Connection, change: ChangeRequest) -> str:
        """What answers beside the canary now: its overlay may have been revised since the release began."""
        newest = recorded.newest(connection, change.checkpoint)
        beside = [lane for lane in newest.answer if lane.name != recorded.CANARY] if newest else []
        return recorded.main_lane(beside).bundle if beside else change.before or ""

    # --- the end ---

    def _full(self, change: ChangeRequest, decided: RecordedTable) -> None:
        behind = self._behind(change)
        with self._store.write() as connection:
            if behind:
                self._waits_for(connection, change, behind)
                return
            self._ledger.step(connection, change, "every server answers with it", status="done")
            self._ledger.save(connection, change, step="alias")

    def _alias(self, change: ChangeRequest) -> None:
        waits = self._reconciler.alias_waits(change.checkpoint)
        alias = self._settings.checkpoints[change.checkpoint].alias
        with self._store.write() as connection:
            if waits is not None:
                self._ledger.step(connection, change, waits, status="waiting")
                return
            self._ledger.step(connection, change, f"{alias} points to it", status="done")
            self._ledger.move(
                connection,
                change,
                "completed",
                PLATFORM,
                f"released: every server answers with it, and {alias} points to it",
            )

    # --- what stands in the way ---

    def _overtaken(self, change: ChangeRequest, decided: RecordedTable | None) -> None:
        """Somebody else decided what answers: that was a decision, too, and stays."""
        who = (
            f"table {decided.revision}, {decided.cause}, by {decided.actor}"
            if decided
            else "nothing recorded"
        )
        with self._store.write() as connection:
            self._ledger.move(
                connection,
                change,
                "changed outside",
                PLATFORM,
                f"lanes were changed while it was released ({who}); they stay as they are",
                severity=Severity.ERROR,
            )

    def _roll_back(self, change: ChangeRequest, message: str) -> None:
        with self._store.write() as connection:
            now = rows.load(connection, change.id)
            if now.version != change.version:
                raise self._ledger.outrun(connection, change.id, change.version)
            self._ledger.step(connection, change, message, status="failed")
            self._changes.roll_back_in(connection, now, "gate failed", PLATFORM, message)
        # Not at the next tick: who answers wrongly answers shoppers.
        self._changes.follow(change.checkpoint)

    def _behind(self, change: ChangeRequest) -> dict[str, str]:
        with self._store.read() as connection:
            last = recorded.newest(connection, change.checkpoint)
        return self._reconciler.behind(change.checkpoint, last.revision if last else 0)

    def _waits_for(self, connection: Connection, change: ChangeRequest, behind: dict[str, str]) -> str:
        why = "; ".join(f"{name}: {words}" for name, words in sorted(behind.items()))
        self._ledger.step(connection, change, f"waits for {why}", status="waiting")
        self._ledger.narrate(
            connection,
            change,
            f"waits for servers to take its lanes: {why}",
            key=f"behind:{change.step}:{','.join(sorted(behind))}",
        )
        return why

    def _wait_for_thaw(
        self, connection: Connection, change: ChangeRequest, name: str, until: datetime
    ) -> None:
        words = f'waits: frozen by "{name}" until {moment(until)}'
        self._ledger.step(connection, change, words, status="waiting")
        self._ledger.narrate(connection, change, words, key=f"frozen:{change.step}:{name}:{moment(until)}")

    def _under_way(self, connection: Connection, change: ChangeRequest) -> str | None:
        c = t.changes.c
        return connection.execute(
            select(c.id)
            .where(
                c.checkpoint == change.checkpoint,
                c.state == ChangeState.RELEASED.value,
                c.kind == ChangeKind.RELEASE.value,
            )
            .order_by(c.number)
            .limit(1)
        ).scalar()


def _all_of(change: ChangeRequest) -> tuple[LaneSpec, ...]:
    return (LaneSpec(recorded.LIVE, change.bundle, share=1.0),)


def _shares(answer: Sequence[LaneSpec]) -> dict[str, float]:
    return {lane.name: lane.share for lane in answer}
