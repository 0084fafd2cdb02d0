"""The schedule of gate evaluations. The gates themselves are evaluated by `scorer.release.readout`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from scorer.release.changes import rows
from scorer.release.changes.writer import step_data, writing
from scorer.release.model import ChangeRequest, GateResult, GateSpec, Outcome
from scorer.release.store import instant, micros

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts

_TIMES = 20
"""Number of evaluations during an observation or a stage for gates without an interval."""
_SHORTEST = timedelta(seconds=1)
_LONGEST_OF_STAGE = timedelta(minutes=1)
"""Longest time between two evaluations of a stage, whose failed gates roll the release back."""


class Judging:
    """Evaluates the gates of observations and of canary stages when they are due.

    Args:
        parts: Dependencies that operations on change requests share.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def now(self, change: ChangeRequest) -> tuple[GateResult, ...]:
        """Evaluate the gates of a change on all present data, with waivers."""
        results = self._parts.readouts.judge(change)
        with self._parts.store.read() as connection:
            return rows.waived(connection, change.id, results)

    def at_interval(self, change: ChangeRequest, *, since: datetime, until: datetime) -> str:
        """Evaluate the gates of an observation if they are due.

        Only a gate with intervals can end an observation early, when more of its intervals have failed than
        its limit. The other gates are evaluated for the verdict once, at the end, because repeated
        evaluations would increase the false-alarm rate.

        Args:
            change: The change request.
            since: Start of the observation.
            until: End of the observation.

        Returns:
            The reason to end the observation early; empty: it continues.
        """
        data, due = self._due(change, self._interval(change) or (until - since) / _TIMES)
        if not due:
            return ""
        results = self.now(change)
        count = self._parts.readouts.measure(change)
        with writing(self._parts, change) as work:
            rows.keep_gates(work.connection, change.id, "report", results, self._parts.now())
            verdict = rows.verdict(results)
            words = f"{count:,} observations: {verdict} so far"
            work.step(words, status="running", data=data)
            part = int(4 * (self._parts.now() - since) / (until - since))
            if part > 0:
                work.event(f"{25 * part} % of its time, {words}", key=f"quarter:{part}")
        by_interval = {spec.metric for spec in self._specs(change) if spec.interval_seconds}
        return _failed([result for result in results if result.metric in by_interval])

    def stage(
        self,
        change: ChangeRequest,
        since: datetime,
        length: timedelta,
        *,
        ended: datetime | None,
        paused: str = "",
    ) -> tuple[tuple[GateResult, ...] | None, str]:
        """Evaluate the gates of a stage if they are due.

        They are due at the end of the stage, and in regular intervals before and after it. An evaluation
        reads every decision of the stage, which is too much for every tick of a stage that stays
        inconclusive.

        Args:
            change: The change request.
            since: Start of the stage.
            length: Length of the stage.
            ended: End of the stage's time; None: it has not ended, or the stage is paused.
            paused: User who has paused the stage; empty: it is not paused.

        Returns:
            The results, or None if the gates are not due; and the failed gates as text.
        """
        every = min(self._interval(change) or length / _TIMES, _LONGEST_OF_STAGE)
        data, due = self._due(change, every, after=ended)
        if not due:
            return None, ""
        with self._parts.store.read() as connection:
            paired = rows.gates(connection, change.id, "report")
        settled = {each.metric for each in paired if each.outcome is Outcome.PASS}
        results = self._parts.readouts.judge_canary(change, since, settled=settled)
        with writing(self._parts, change) as work:
            results = rows.waived(work.connection, change.id, results)
            rows.keep_gates(work.connection, change.id, change.step, results, self._parts.now())
            verdict = rows.verdict(results)
            judged = [each for each in results if not each.dry_run]
            passed = sum(not each.blocks for each in judged)
            words = f"{verdict} so far: {passed} of {len(judged)} gates have passed"
            if paused:
                words = f"{paused}; {words}"
            work.step(words, status="waiting" if paused else "running", data=data)
        return results, _failed(results)

    # --- inside ---

    def _interval(self, change: ChangeRequest) -> timedelta | None:
        """Return the shortest interval of the gates; None if no gate has one."""
        intervals = [spec.interval_seconds for spec in self._specs(change) if spec.interval_seconds]
        return timedelta(seconds=min(intervals)) if intervals else None

    def _due(
        self, change: ChangeRequest, every: timedelta, *, after: datetime | None = None
    ) -> tuple[dict[str, Any], bool]:
        """Return the data of the step, and whether the gates are due.

        Args:
            change: The change request.
            every: Time between two evaluations.
            after: Time after which one evaluation is due at once; None: there is no such time.
        """
        with self._parts.store.read() as connection:
            data = step_data(connection, change)
        at = self._parts.now()
        last = instant(data["judged"]) if "judged" in data else None
        is_recent = last is not None and timedelta() <= at - last < max(every, _SHORTEST)
        if is_recent and (after is None or (last is not None and last >= after)):
            return data, False
        return {**data, "judged": micros(at)}, True

    def _specs(self, change: ChangeRequest) -> Sequence[GateSpec]:
        return change.gates or self._parts.settings.checkpoints[change.checkpoint].gates


def _failed(results: Sequence[GateResult]) -> str:
    """Return the failed gates that block the change, as text."""
    failed = [each for each in results if each.blocks and each.outcome is Outcome.FAIL]
    return "; ".join(f"{each.metric}: {each.words}" for each in failed)
