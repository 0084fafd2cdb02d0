"""The step `backtest` of a TEST, which is started once and checked at every tick until it has ended."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select

from scorer.errors import ScorerError
from scorer.release.backtest import job
from scorer.release.backtest.job import Job, Result
from scorer.release.backtest.ruling import METRICS as RULE_METRICS
from scorer.release.changes import rows
from scorer.release.changes.checks import Checked
from scorer.release.changes.writer import writing
from scorer.release.gates.defaults import BACKTEST
from scorer.release.lanes import recorded
from scorer.release.model import ChangeKind, ChangeRequest, Outcome, Severity
from scorer.release.store import micros
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scorer.release.backtest_settings import BacktestSettings
    from scorer.release.changes.parts import Parts

STEP = rows.BACKTEST
_TABLES = 50
"""Number of recorded tables that are searched for bundles whose decisions the logs may contain."""


class Backtesting:
    """Starts, checks and evaluates the backtests of change requests.

    Args:
        parts: Dependencies that operations on change requests share.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def check(self, change: ChangeRequest) -> Checked | None:
        """Return the result of a change's backtest; None while it runs. The step shows its progress."""
        settings = self._parts.settings.checkpoints[change.checkpoint].backtest
        backtests = self._parts.backtests
        if backtests is None or not settings.enabled:
            return Checked(True, "no backtest is configured")
        found = backtests.look(change.id)
        if found is None:
            why = self._start(change, settings)
            return None if why is None else self._without_labels(change, settings, why)
        if found.error:
            return self._without_labels(change, settings, f"the backtest has failed: {found.error}")
        if found.result is not None:
            return self._judged(change, settings, found.result)
        progress = found.progress or job.BacktestProgress()
        with writing(self._parts, change) as work:
            words = f"{100 * progress.share:.0f} % of the logs are read, {progress.rows:,} decisions so far"
            work.step(words, status="running")
        return None

    def keep(self) -> None:
        """End the backtests of changes that have been withdrawn or rejected, or have expired."""
        if self._parts.backtests is None:
            return
        with self._parts.store.read() as connection:
            waiting = connection.execute(select(t.changes.c.id).filter_by(step=STEP)).scalars()
            self._parts.backtests.keep(set(waiting))

    # --- inside ---

    def _start(self, change: ChangeRequest, settings: BacktestSettings) -> str | None:
        """Start a backtest, or wait for another one to end. Return the reason if it cannot be run."""
        backtests = self._parts.backtests
        assert backtests is not None  # noqa: S101 - the caller looked
        logs = self._parts.readouts.logs()
        if not logs:
            return "no decision log is within the platform's reach"
        if not self._parts.readouts.has_outcomes(change.checkpoint):
            return "no outcome of this checkpoint has been reported"
        if backtests.is_full:
            with writing(self._parts, change) as work:
                work.step("waits for another backtest to end", status="waiting")
            return None
        wanted = self._job(change, settings, logs)
        if wanted is None:
            return "no bundle answers at the checkpoint"
        backtests.start(change.id, wanted)
        with writing(self._parts, change) as work:
            work.step("reads the logs", status="running")
        return None

    def _job(self, change: ChangeRequest, settings: BacktestSettings, logs: Mapping[str, str]) -> Job | None:
        with self._parts.store.read() as connection:
            c = t.recorded_tables.c
            query = select(c.answer).filter_by(checkpoint=change.checkpoint).order_by(c.revision.desc())
            tables = connection.execute(query.limit(_TABLES)).scalars().all()
        if not tables or not tables[0]:
            return None
        live = recorded.main_lane(tables[0]).bundle
        digests = dict.fromkeys(lane.bundle for table in tables for lane in table)
        blank = self._parts.readouts.blank(change)
        end = self._parts.now() - self._parts.readouts.matures(change.checkpoint, blank.kind)
        return Job(
            checkpoint=change.checkpoint,
            candidate=str(self._parts.bundles.local(change.bundle)),
            live=str(self._parts.bundles.local(live)),
            others=tuple(str(path) for digest in digests if digest != live and (path := self._local(digest))),
            logs=logs,
            begin=micros(end - timedelta(weeks=settings.weeks)),
            end=micros(end),
            outcome=blank.outcome,
            unproven=self._parts.settings.checkpoints[change.checkpoint].unproven,
            approve=blank.approve,
            amount=settings.amount,
            most=settings.rows,
            positives=settings.positives,
            gates=settings.gates or BACKTEST,
            seconds=settings.minutes * 60,
            segments=self._parts.settings.checkpoints[change.checkpoint].segments.plan(),
        )

    def _local(self, digest: str) -> Path | None:
        try:
            return self._parts.bundles.local(digest)
        except ScorerError:
            # A bundle that the registry no longer has cannot be read. Rows of another schema are skipped.
            return None

    def _judged(self, change: ChangeRequest, settings: BacktestSettings, result: Result) -> Checked:
        with writing(self._parts, change) as work:
            gates = rows.waived(work.connection, change.id, result.gates)
            rows.keep_gates(work.connection, change.id, STEP, gates, self._parts.now())
            work.step(result.words, status="running", data=job.as_document(result))
        failed = [gate for gate in gates if gate.blocks and gate.outcome is Outcome.FAIL]
        if failed:
            said = " ".join(dict.fromkeys(gate.words for gate in failed))
            if all(gate.metric in RULE_METRICS for gate in failed):
                return Checked(False, f"it decides logged decisions otherwise than the gates permit. {said}")
            missed = ", ".join(str(one["decision_id"]) for one in result.missed[:3])
            examples = f" It would miss, for instance, {missed}." if missed else ""
            return Checked(
                False,
                f"over {result.rows:,} decisions with a known outcome it does worse than live. {said}"
                f"{examples}",
            )
        decides = [gate for gate in gates if not gate.dry_run]
        of_outcomes = [gate for gate in decides if gate.metric not in RULE_METRICS]
        if not decides or (of_outcomes and all(gate.value is None for gate in of_outcomes)):
            return self._without_labels(change, settings, result.words)
        return Checked(True, result.words)

    def _without_labels(self, change: ChangeRequest, settings: BacktestSettings, why: str) -> Checked:
        """Return the result without enough labels: a failure only if the checkpoint requires labels."""
        if settings.labels == "required":
            return Checked(
                False,
                f"{why}; this checkpoint requires a backtest with known outcomes. Report outcomes, or set "
                'backtest.labels = "used"',
            )
        with writing(self._parts, change) as work:
            message = f"not judged by known outcomes: {why}; the shadow alone decides"
            work.event(message, key="backtest:unknown", severity=Severity.WARNING)
        return Checked(True, f"not judged: {why}")


def applies(change: ChangeRequest) -> bool:
    """Return whether a change is backtested. A RELEASE follows a TEST of the same digest, so it is not."""
    return change.kind is ChangeKind.TEST
