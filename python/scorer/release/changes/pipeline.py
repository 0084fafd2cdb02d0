"""The steps of a change request, from its checks to its end. `Runner` performs them one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from scorer.errors import ScorerError
from scorer.release.calendar import moment
from scorer.release.changes import backtesting, checks, overlays, rows
from scorer.release.changes.canary import Canary
from scorer.release.changes.judging import Judging
from scorer.release.changes.operations import Changes
from scorer.release.changes.overlays import Overlays
from scorer.release.changes.plan import CHECKS
from scorer.release.changes.writer import watched, writing
from scorer.release.errors import UnreachableError
from scorer.release.lanes import recorded
from scorer.release.model import (
    Booking,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    Outcome,
    Severity,
)
from scorer.release.rule_revisions import saved_cases

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scorer.release.changes.parts import Parts

_S = ChangeState
_FAILED = 0.2
"""Share of the taken requests that may have failed to be observed in a report that passes."""
_REFUSALS = 5
"""Number of rejections of a bundle by a server after which its change request is rejected."""


class Pipeline:
    """Performs the next step of a change request, depending on its state.

    Args:
        parts: Dependencies that operations on change requests share.
        changes: Operations on change requests.
        run_checks: The checks by the name of their step; replaced in tests.
    """

    def __init__(
        self,
        parts: Parts,
        changes: Changes,
        *,
        run_checks: Mapping[str, Callable[[checks.CheckedChange], checks.Checked]] = checks.RUN,
    ) -> None:
        self._checks = run_checks
        self._parts = parts
        self._judging = Judging(parts)
        self._backtesting = backtesting.Backtesting(parts)
        self._canary = Canary(parts, changes, self._judging)
        self._overlays = Overlays(parts)

    def advance(self, change: ChangeRequest, row: Any) -> None:
        """Perform at most one step.

        Args:
            change: The change request.
            row: Its database row, with the columns of the pipeline.

        Raises:
            ConflictError: The change request was changed concurrently.
            UnreachableError: A server or the registry that the step needs cannot be reached.
        """
        match change.state:
            case _S.CHECKS:
                self._check(change)
            case _S.BOOKED:
                self._booked(change)
            case _S.DEPLOYING:
                self._deploying(change)
            case _S.OBSERVING:
                self._observing(change, asked_to_finish=row.finish)
            case _S.REPORT:
                self._report(change)
            case _S.APPROVED | _S.RELEASED if change.kind is ChangeKind.OVERLAY:
                self._overlays.advance(change)
            case _S.APPROVED | _S.RELEASED:
                self._canary.advance(change, row.mark)
            case _:
                return

    # --- before the shadow ---

    def _check(self, change: ChangeRequest) -> None:
        is_overlay = change.kind is ChangeKind.OVERLAY
        if not is_overlay and self._expired(change):
            return
        if change.step == backtesting.STEP:
            if (found := self._backtesting.check(change)) is not None:
                self._checked(change, found)
            return
        with writing(self._parts, change) as work:
            work.step("is done now", status="running")
            last = recorded.newest(work.connection, change.checkpoint)
            cases = saved_cases(work.connection, change.project, change.bundle)
        settings = self._parts.settings.checkpoints[change.checkpoint]
        about = checks.CheckedChange(
            change,
            recorded.main_lane(last.answer).bundle if last and last.answer else None,
            settings.alias,
            settings.p99_ms,
            self._parts.bundles,
            self._parts.permissions.of(change.permission).max_shift if change.permission else None,
            cases,
        )
        try:
            found = self._checks[change.step](about)
        except UnreachableError:
            raise
        except (ScorerError, OSError) as error:
            found = checks.Checked(False, str(error))
        self._checked(change, found)

    def _checked(self, change: ChangeRequest, found: checks.Checked) -> None:
        """Write the result of a check, and continue with the next one."""
        is_overlay = change.kind is ChangeKind.OVERLAY
        names = overlays.STEPS if is_overlay else tuple(CHECKS)
        if backtesting.applies(change):
            names = (*names, backtesting.STEP)
        with writing(self._parts, change) as work:
            work.step(found.words, status="done" if found.passed else "failed")
            if not found.passed:
                message = f"{change.step} refuses it: {found.words}"
                work.move("refused", message, severity=Severity.ERROR)
            elif change.step == names[-1] and is_overlay:
                message = f"every check has passed ({found.words}); permitted by {change.permission}"
                work.move("permitted", message, step="release", approved_at=self._parts.now())
            elif change.step == names[-1]:
                booking = self._parts.calendar.of(work.connection, change.id)
                until = f"waits for its slot, from {moment(booking.start)}" if booking else ""
                work.event(f"{change.step}: {found.words}")
                work.move("checked", f"every check has passed; {until}", step="slot")
            else:
                work.event(f"{change.step}: {found.words}")
                following = names[names.index(change.step) + 1]
                work.save(step=following)

    def _booked(self, change: ChangeRequest) -> None:
        if self._expired(change):
            return
        with writing(self._parts, change) as work:
            booking = self._booking(work.connection, change)
            if self._parts.now() < booking.start:
                work.step(f"from {moment(booking.start)}, slot {booking.slot}", status="waiting")
                return
            work.step(f"slot {booking.slot}", status="done")
            work.move(
                "deploy",
                f"its slot has begun: servers take it into the shadow until {moment(booking.end)}",
                step="deploy",
            )

    def _deploying(self, change: ChangeRequest) -> None:
        if self._expired(change):
            return
        with self._parts.store.read() as connection:
            last = recorded.newest(connection, change.checkpoint)
        if last is None:
            return
        uses_pool = any(lane.pool for lane in last.observe if lane.name == change.id)
        behind = self._parts.reconciler.behind(change.checkpoint, last.revision, pool=uses_pool)
        with writing(self._parts, change) as work:
            if not behind:
                names = f"{change.id} and {recorded.CONTROL} observe"
                work.step(f"{names} (table {last.revision})", status="done")
                work.move(
                    "deployed", f"every server has it in the shadow ({names}); rows come in", step="sample"
                )
                return
            why = "; ".join(f"{name}: {words}" for name, words in sorted(behind.items()))
            work.step(f"waits for {why}", status="waiting")
            refusal = self._refusal(work.connection, change, last.revision)
            if refusal:
                work.move("refused", refusal, severity=Severity.ERROR)
                return
            minutes = max(0, (self._parts.now() - last.at) // timedelta(minutes=5))
            work.event(
                f"waits for servers to take it in: {why}",
                key=f"deploying:{last.revision}:{','.join(sorted(behind))}:{minutes}",
                severity=Severity.WARNING if minutes else Severity.INFO,
            )

    def _refusal(self, connection: Connection, change: ChangeRequest, revision: int) -> str:
        """Return why servers reject this change, and not another change in the same lane table."""
        refused = self._parts.reconciler.refusals(change.checkpoint, revision)
        worst = max(refused.items(), key=lambda item: item[1][0], default=None)
        if worst is None or worst[1][0] < _REFUSALS:
            return ""
        server, (_, error) = worst
        coming = rows.in_state(connection, change.checkpoint, _S.DEPLOYING)
        named = [each.id for each in coming if each.id in error or each.bundle[7:19] in error]
        guilty = named or [coming[-1].id]
        return f"{server} refuses it: {error}" if change.id in guilty else ""

    # --- in the shadow ---

    def _observing(self, change: ChangeRequest, *, asked_to_finish: bool) -> None:
        with self._parts.store.read() as connection:
            booking = self._booking(connection, change)
        over = asked_to_finish or self._parts.now() >= booking.end
        self._watch(change)
        if change.step == "sample" and not over:
            self._sample(change, booking)
            return
        failed = ""
        if not over:
            failed = self._judging.at_interval(change, since=booking.start, until=booking.end)
            if not failed:
                return
        results = self._judging.now(change)
        verdict = rows.verdict(results)
        counts = self._parts.readouts.counts(change)
        count = counts.observed
        end = (
            f"ended early: {failed}"
            if failed
            else "ended as asked"
            if asked_to_finish
            else "its time is over"
        )
        said = rows.in_words(results, verdict)
        if verdict is Outcome.PASS and counts.failed > _FAILED * counts.taken:
            verdict = Outcome.INCONCLUSIVE
            said = (
                f" (of {counts.taken:,} requests that its lane took, {counts.failed:,} were neither observed "
                "nor dropped: a server or the shadow pool was away)"
            )
        with writing(self._parts, change) as work:
            rows.keep_gates(work.connection, change.id, "report", results, self._parts.now())
            work.step(f"{count:,} observations: {verdict}", status="done")
            work.move(
                "measured",
                f"{end} with {count:,} observations: {verdict}{said}",
                step="report",
                severity=Severity.INFO if verdict is Outcome.PASS else Severity.WARNING,
                details={"observations": count, "verdict": verdict.value, "counts": counts.as_dict()},
                verdict=verdict.value,
            )

    def _watch(self, change: ChangeRequest) -> None:
        """Write events for servers of a change's observations that are lost, restarted or back."""
        with self._parts.store.read() as connection:
            last = recorded.newest(connection, change.checkpoint)
            known = watched(connection, change)
        uses_pool = bool(last and any(lane.pool for lane in last.observe if lane.name == change.id))
        now: dict[str, int] = {}
        for member in self._parts.reconciler.members(pool=uses_pool):
            status = self._parts.reconciler.statuses.recent()[member.name]
            started = int((status.raw or {}).get("started_at_ms") or 1) if status.reachable else 0
            if (
                uses_pool
                and status.reachable
                and status.pool is not None
                and not status.pool.get("connected")
            ):
                now[f"{member.name} to the shadow pool"] = 0
            now[member.name] = started
        told = []
        for name in known.keys() | now.keys():
            before, after = known.get(name, 1), now.get(name, 1)
            if before and not after:
                told.append(f"lost {name}: what it would observe is missing from the report until it is back")
            elif after and not before:
                told.append(f"{name} is back")
            elif name in known and after != before:
                told.append(f"{name} was restarted: what it had not logged is missing from the report")
        if not told and known == now:
            return
        with writing(self._parts, change) as work:
            work.watch(now)
            for message in sorted(told):
                work.event(message, severity=Severity.WARNING)

    def _sample(self, change: ChangeRequest, booking: Booking) -> None:
        count = self._parts.readouts.measure(change)
        with writing(self._parts, change) as work:
            if not count:
                work.step("waits for the first rows", status="waiting")
                part = int(4 * (self._parts.now() - booking.start) / (booking.end - booking.start))
                if part > 0:
                    work.event(
                        f"no rows have come in after {25 * part} % of its time; is there traffic, and does "
                        "the platform read every server's log?",
                        key=f"no-rows:{part}",
                        severity=Severity.WARNING,
                    )
                return
            work.step(f"the first {count:,} rows came in", status="done")
            work.event(f"the first rows came in ({count:,})", key="first-rows")
            work.save(step="measure")

    # --- after it ---

    def _report(self, change: ChangeRequest) -> None:
        if change.step == "approval":
            self._approval(change)
            return
        verdict = change.verdict or Outcome.INCONCLUSIVE
        with self._parts.store.read() as connection:
            results = rows.gates(connection, change.id, "report")
        self._parts.readouts.finish(change, results, verdict)
        with writing(self._parts, change) as work:
            work.step(f"kept: {verdict}", status="done")
            if change.kind is ChangeKind.RELEASE:
                work.save(step="approval")
                days = self._parts.settings.platform.approval_days
                asks = (
                    "waits for an approver"
                    if verdict is Outcome.PASS
                    else (f"{verdict}: waits for an approver to reject it, or to waive what may be waived")
                )
                work.event(
                    f"the report is there; {asks} ({days:g} days)",
                    key="approval",
                    severity=Severity.INFO if verdict is Outcome.PASS else Severity.WARNING,
                )
                return
            said = rows.in_words(results, verdict)
            if verdict is Outcome.FAIL:
                work.move("failed", f"its TEST has failed{said}", severity=Severity.ERROR)
            else:
                follows = "a RELEASE may follow" if verdict is Outcome.PASS else "no RELEASE may follow it"
                work.move("tested", f"its TEST is done: {verdict}{said}; {follows}")

    def _approval(self, change: ChangeRequest) -> None:
        days = self._parts.settings.platform.approval_days
        over = change.since is not None and self._parts.now() - change.since >= timedelta(days=days)
        with writing(self._parts, change) as work:
            if over:
                work.move(
                    "expire",
                    f"nobody approved it within {days:g} days; draft another one to try again",
                    severity=Severity.WARNING,
                )
            else:
                work.step(f"waits for an approver, {days:g} days", status="waiting")

    # --- inside ---

    def _expired(self, change: ChangeRequest) -> bool:
        with self._parts.store.read() as connection:
            booking = self._booking(connection, change)
        if self._parts.now() < booking.end:
            return False
        with writing(self._parts, change) as work:
            work.move(
                "expire",
                f"its booking was over at {moment(booking.end)} before it was deployed; draft another one",
                severity=Severity.WARNING,
            )
        return True

    def _booking(self, connection: Connection, change: ChangeRequest) -> Booking:
        booking = self._parts.calendar.of(connection, change.id)
        if booking is None:
            message = f"{change.id} has no booking"
            raise RuntimeError(message)
        return booking
