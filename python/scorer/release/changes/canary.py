"""The steps of a release: canary stages with gates, and then all answers.

Order of the last steps: the table in which the bundle answers all requests is recorded, all servers get it,
the registry's alias is moved, and the change is done. When the alias moves, servers therefore have the lanes
already.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from scorer.release.calendar import moment
from scorer.release.changes import rows
from scorer.release.changes.judging import Judging
from scorer.release.changes.operations import Changes
from scorer.release.changes.plan import stages_of
from scorer.release.changes.stages import all_of, go_on, number_of, shares, stage_lanes, step_of
from scorer.release.changes.writer import ChangeWriter, writing
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import LaneDecision
from scorer.release.model import (
    PLATFORM,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    FreezeWindow,
    Outcome,
    RecordedTable,
    Severity,
    Stage,
)
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts


class Canary:
    """The steps of a RELEASE in the states `approved` and `released`."""

    def __init__(self, parts: Parts, changes: Changes, judging: Judging) -> None:
        self._parts = parts
        self._changes = changes
        self._judging = judging

    def advance(self, change: ChangeRequest, mark: datetime | None) -> None:
        """Perform at most one step.

        Args:
            change: The change request.
            mark: Time at which all servers had the lanes of the stage; None: not yet.
        """
        if change.state is ChangeState.APPROVED:
            self._begin(change)
            return
        with self._parts.store.read() as connection:
            decided = recorded.deciding(connection, change.checkpoint)
        if decided is None or decided.change != change.id:
            self._overtaken(change, decided)
        elif number_of(change.step) is not None:
            self._stage(change, mark, decided)
        elif change.step == "full":
            self._full(change, decided)
        else:
            self._alias(change)

    # --- the beginning ---

    def _begin(self, change: ChangeRequest) -> None:
        frozen = self._parts.calendar.frozen(change.checkpoint)
        with writing(self._parts, change) as work:
            if frozen:
                _wait_for_thaw(work, frozen)
                return
            other = _under_way(work.connection, change)
            if other:
                words = f"waits until {other} is released: one at a time"
                work.step(words, status="waiting")
                work.event(words, key=f"turn:{other}")
                return
            last = recorded.newest(work.connection, change.checkpoint)
            if last is None:
                return
            before = recorded.main_lane(last.answer).bundle
            stages = stages_of(change, self._parts.settings)
            if stages:
                answer = stage_lanes(before, change.bundle, stages[0], change.holdout)
                step, decision = step_of(1), LaneDecision(recorded.STAGE, answer)
                message = f"its release has begun: {stages[0].share:.0%} of the answers"
            else:
                step, decision = "full", all_of(change)
                message = "its release has begun: all of the answers"
            work.step("its turn", status="done")
            work.move(
                "release",
                message,
                step=step,
                details={"before": before, "answer": shares(decision)},
                decision=decision,
                before=before,
            )

    # --- a stage ---

    def _stage(self, change: ChangeRequest, mark: datetime | None, decided: RecordedTable) -> None:
        stages = stages_of(change, self._parts.settings)
        stage = stages[(number_of(change.step) or 1) - 1]
        patience = timedelta(minutes=self._parts.settings.checkpoints[change.checkpoint].patience_minutes)
        if mark is None or self._parts.now() < mark:
            self._settle(change, decided, patience)
            return
        length = timedelta(minutes=stage.minutes)
        over = self._parts.now() - mark >= length
        # The time of a pause does not count towards the patience of the stage.
        ended = max(mark + length, change.resumed_at or mark)
        results, failed = self._judging.stage(
            change,
            mark,
            length,
            ended=ended if over and change.paused_at is None else None,
            paused=paused(change),
        )
        if failed:
            self._roll_back(change, f"rolled back by its gates at {stage.share:.0%}: {failed}")
        elif change.paused_at is not None:
            self._remind(change, change.paused_at)
        elif over and results is not None:
            verdict = rows.verdict(results)
            if verdict is Outcome.PASS:
                self._passed(change, stages, stage)
            else:
                waited = self._parts.now() - ended
                said = rows.in_words(results, verdict)
                self._unclear(
                    change, f"{stage.share:.0%}", verdict, said, patience, is_over=waited >= patience
                )

    def _passed(self, change: ChangeRequest, stages: Sequence[Stage], stage: Stage) -> None:
        frozen = self._parts.calendar.frozen(change.checkpoint)
        with writing(self._parts, change) as work:
            if stage.pause:
                message = f"{change.step} has passed and waits by its plan: an approver promotes it"
                work.save(paused_by=PLATFORM.user, paused_at=self._parts.now(), note=message)
                work.step("its gates have passed; an approver promotes it", status="waiting")
                work.audit("pause", {"step": change.step})
                work.event(message, key=f"hold:{change.step}")
            elif frozen:
                _wait_for_thaw(work, frozen)
            else:
                work.step("its gates have passed", status="done")
                go_on(work, stages, f"{change.step} has passed")

    def _unclear(
        self,
        change: ChangeRequest,
        share: str,
        verdict: Outcome,
        said: str,
        patience: timedelta,
        *,
        is_over: bool,
    ) -> None:
        """At the end of a stage with inconclusive gates, wait for them or roll the release back."""
        minutes = f"{patience / timedelta(minutes=1):g} minutes"
        if is_over:
            self._roll_back(
                change, f"rolled back: still {verdict} {minutes} after its stage at {share}{said}"
            )
            return
        with writing(self._parts, change) as work:
            work.event(
                f"{change.step} is {verdict} at its end; it waits up to {minutes} more{said}",
                key=f"patience:{change.step}",
                severity=Severity.WARNING,
            )

    def _remind(self, change: ChangeRequest, since: datetime) -> None:
        """Write an event once a day while a release is paused, because it blocks other releases."""
        days = (self._parts.now() - since) // timedelta(days=1)
        if days > 0:
            with writing(self._parts, change) as work:
                work.event(
                    f"{change.step} has been paused since {moment(since)}; resume, promote or roll it back",
                    key=f"paused:{change.step}:{days}",
                    severity=Severity.WARNING,
                )

    def _settle(self, change: ChangeRequest, decided: RecordedTable, patience: timedelta) -> None:
        """Start the time of a stage when all servers have its lanes. Restart it if the clock was set back."""
        behind = self._behind(change)
        with writing(self._parts, change) as work:
            if not behind:
                work.step("every server has its lanes", status="running", data={})
                work.save(mark=self._parts.now())
                return
            why = _waits_for(work, behind)
        if self._parts.now() - decided.at >= patience:
            self._roll_back(change, f"rolled back: servers did not follow ({why})")

    # --- the end ---

    def _full(self, change: ChangeRequest, decided: RecordedTable) -> None:
        behind = self._behind(change)
        with writing(self._parts, change) as work:
            if behind:
                _waits_for(work, behind)
                return
            work.step("every server answers with it", status="done")
            work.save(step="alias")

    def _alias(self, change: ChangeRequest) -> None:
        waits = self._parts.reconciler.alias_waits(change.checkpoint)
        alias = self._parts.settings.checkpoints[change.checkpoint].alias
        with writing(self._parts, change) as work:
            if waits is not None:
                work.step(waits, status="waiting")
                return
            work.step(f"{alias} points to it", status="done")
            work.move("completed", f"released: every server answers with it, and {alias} points to it")

    # --- what stands in the way ---

    def _overtaken(self, change: ChangeRequest, decided: RecordedTable | None) -> None:
        """End a release whose lanes another change has replaced. The newer lanes stay."""
        who = (
            f"table {decided.revision}, {decided.cause}, by {decided.actor}"
            if decided
            else "nothing recorded"
        )
        with writing(self._parts, change) as work:
            work.move(
                "changed outside",
                f"lanes were changed while it was released ({who}); they stay as they are",
                severity=Severity.ERROR,
            )

    def _roll_back(self, change: ChangeRequest, message: str) -> None:
        with writing(self._parts, change) as work:
            work.step(message, status="failed")
            self._changes.roll_back_in(work, "gate failed", message)
        # Sent now and not at the next tick, because the bundle answers requests until then.
        self._changes.follow(change.checkpoint)

    def _behind(self, change: ChangeRequest) -> dict[str, str]:
        with self._parts.store.read() as connection:
            last = recorded.newest(connection, change.checkpoint)
        return self._parts.reconciler.behind(change.checkpoint, last.revision if last else 0)


def paused(change: ChangeRequest) -> str:
    """Return a text with the user who paused the present stage; empty if it is not paused."""
    if change.paused_at is None:
        return ""
    if change.paused_by == PLATFORM.user:
        return "an approver promotes it"
    return f"paused by {change.paused_by}"


def _waits_for(work: ChangeWriter, behind: dict[str, str]) -> str:
    why = "; ".join(f"{name}: {words}" for name, words in sorted(behind.items()))
    work.step(f"waits for {why}", status="waiting")
    key = f"behind:{work.change.step}:{','.join(sorted(behind))}"
    work.event(f"waits for servers to take its lanes: {why}", key=key)
    return why


def _wait_for_thaw(work: ChangeWriter, frozen: FreezeWindow) -> None:
    name, until = frozen.freeze.name, moment(frozen.end)
    words = f'waits: frozen by "{name}" until {until}'
    work.step(words, status="waiting")
    work.event(words, key=f"frozen:{work.change.step}:{name}:{until}")


def _under_way(connection: Connection, change: ChangeRequest) -> str | None:
    """Return the id of another release at the checkpoint that is in progress, if any."""
    c = t.changes.c
    query = select(c.id).filter_by(
        checkpoint=change.checkpoint, state=ChangeState.RELEASED, kind=ChangeKind.RELEASE
    )
    return connection.scalar(query.order_by(c.number).limit(1))
