"""The steps of a change request, from its checks to its end; `Runner` has them done one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from scorer.errors import ScorerError
from scorer.release.calendar import Calendar, moment
from scorer.release.changes import checks, overlays, rows
from scorer.release.changes.canary import Canary
from scorer.release.changes.judging import Judging
from scorer.release.changes.operations import Changes
from scorer.release.changes.overlays import Overlays
from scorer.release.changes.plan import CHECKS
from scorer.release.errors import UnreachableError
from scorer.release.lanes import recorded
from scorer.release.model import (
    PLATFORM,
    Booking,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    Outcome,
    Severity,
)
from scorer.release.store import Store, utcnow

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scorer.release.bundles import Bundles
    from scorer.release.lanes.reconcile import Reconciler
    from scorer.release.permissions import Permissions
    from scorer.release.readout import Readouts
    from scorer.release.settings import PlatformFile

_S = ChangeState
_MISSING = 0.2
"""Share of the taken requests that may be missing from a report that passes."""
_REFUSALS = 5
"""So often a server may refuse a bundle before its change is."""


class Pipeline:
    """What is done next, by the state that a change is in."""

    def __init__(
        self,
        store: Store,
        settings: PlatformFile,
        changes: Changes,
        bundles: Bundles,
        calendar: Calendar,
        readouts: Readouts,
        reconciler: Reconciler,
        permissions: Permissions,
        *,
        run_checks: Mapping[str, Callable[[checks.CheckedChange], checks.Checked]] = checks.RUN,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._checks = run_checks
        self._store = store
        self._settings = settings
        self._ledger = changes.ledger
        self._bundles = bundles
        self._calendar = calendar
        self._readouts = readouts
        self._reconciler = reconciler
        self._permissions = permissions
        self._now = now
        self._judging = Judging(store, settings, changes.ledger, readouts, now)
        self._canary = Canary(store, settings, changes, calendar, reconciler, self._judging, now)
        self._overlays = Overlays(store, changes.ledger, bundles, calendar, permissions, reconciler, now)

    def advance(self, change: ChangeRequest, row: Any) -> None:
        """Does at most one step.

        Raises:
            ConflictError: somebody wrote since the change was read.
            UnreachableError: something is away that the step needs.
        """
        match change.state:
            case _S.CHECKS:
                self._check(change)
            case _S.BOOKED:
                self._booked(change)
            case _S.DEPLOYING:
                self._deploying(change)
            case _S.OBSERVING:
                self._auditing(change, asked_to_finish=row.finish)
            case _S.REPORT:
                self._read_out(change)
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
        with self._store.write() as connection:
            self._ledger.step(connection, change, "is done now", status="running")
            last = recorded.newest(connection, change.checkpoint)
        settings = self._settings.checkpoints[change.checkpoint]
        about = checks.CheckedChange(
            change,
            recorded.main_lane(last.answer).bundle if last and last.answer else None,
            settings.alias,
            settings.p99_ms,
            self._bundles,
            self._permissions.of(change.permission).max_shift if change.permission else None,
        )
        try:
            found = self._checks[change.step](about)
        except UnreachableError:
            raise
        except (ScorerError, OSError) as error:
            found = checks.Checked(False, str(error))
        names = overlays.STEPS if is_overlay else tuple(CHECKS)
        with self._store.write() as connection:
            self._ledger.step(connection, change, found.words, status="done" if found.passed else "failed")
            if not found.passed:
                message = f"{change.step} refuses it: {found.words}"
                self._ledger.move(connection, change, "refused", PLATFORM, message, severity=Severity.ERROR)
            elif change.step == names[-1] and is_overlay:
                message = f"every check has passed ({found.words}); permitted by {change.permission}"
                self._ledger.move(
                    connection,
                    change,
                    "permitted",
                    PLATFORM,
                    message,
                    step="release",
                    approved_at=self._now(),
                )
            elif change.step == names[-1]:
                booking = self._calendar.of(connection, change.id)
                until = f"waits for its slot, from {moment(booking.start)}" if booking else ""
                self._ledger.narrate(connection, change, f"{change.step}: {found.words}")
                self._ledger.move(
                    connection, change, "checked", PLATFORM, f"every check has passed; {until}", step="slot"
                )
            else:
                self._ledger.narrate(connection, change, f"{change.step}: {found.words}")
                following = names[names.index(change.step) + 1]
                self._ledger.save(connection, change, step=following)

    def _booked(self, change: ChangeRequest) -> None:
        if self._expired(change):
            return
        with self._store.write() as connection:
            booking = self._booking(connection, change)
            if self._now() < booking.start:
                self._ledger.step(
                    connection, change, f"from {moment(booking.start)}, slot {booking.slot}", status="waiting"
                )
                return
            self._ledger.step(connection, change, f"slot {booking.slot}", status="done")
            self._ledger.move(
                connection,
                change,
                "deploy",
                PLATFORM,
                f"its slot has begun: servers take it into the shadow until {moment(booking.end)}",
                step="deploy",
            )

    def _deploying(self, change: ChangeRequest) -> None:
        if self._expired(change):
            return
        with self._store.read() as connection:
            last = recorded.newest(connection, change.checkpoint)
        if last is None:
            return
        uses_pool = any(lane.pool for lane in last.observe if lane.name == change.id)
        behind = self._reconciler.behind(change.checkpoint, last.revision, pool=uses_pool)
        with self._store.write() as connection:
            if not behind:
                names = f"{change.id} and {recorded.CONTROL} observe"
                self._ledger.step(connection, change, f"{names} (table {last.revision})", status="done")
                self._ledger.move(
                    connection,
                    change,
                    "deployed",
                    PLATFORM,
                    f"every server has it in the shadow ({names}); rows come in",
                    step="sample",
                )
                return
            why = "; ".join(f"{name}: {words}" for name, words in sorted(behind.items()))
            self._ledger.step(connection, change, f"waits for {why}", status="waiting")
            refusal = self._refusal(connection, change, last.revision)
            if refusal:
                self._ledger.move(connection, change, "refused", PLATFORM, refusal, severity=Severity.ERROR)
                return
            minutes = max(0, (self._now() - last.at) // timedelta(minutes=5))
            self._ledger.narrate(
                connection,
                change,
                f"waits for servers to take it in: {why}",
                key=f"deploying:{last.revision}:{','.join(sorted(behind))}:{minutes}",
                severity=Severity.WARNING if minutes else Severity.INFO,
            )

    def _refusal(self, connection: Connection, change: ChangeRequest, revision: int) -> str:
        """Why servers will not have this change, and not another one that comes with the same table."""
        refused = self._reconciler.refusals(change.checkpoint, revision)
        worst = max(refused.items(), key=lambda item: item[1][0], default=None)
        if worst is None or worst[1][0] < _REFUSALS:
            return ""
        server, (_, error) = worst
        coming = rows.in_state(connection, change.checkpoint, _S.DEPLOYING)
        named = [each.id for each in coming if each.id in error or each.bundle[7:19] in error]
        guilty = named or [coming[-1].id]
        return f"{server} refuses it: {error}" if change.id in guilty else ""

    # --- in the shadow ---

    def _auditing(self, change: ChangeRequest, *, asked_to_finish: bool) -> None:
        with self._store.read() as connection:
            booking = self._booking(connection, change)
        over = asked_to_finish or self._now() >= booking.end
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
        counts = self._readouts.counts(change)
        count = counts["observed"]
        end = (
            f"ended early: {failed}"
            if failed
            else "ended as asked"
            if asked_to_finish
            else "its time is over"
        )
        said = rows.in_words(results, verdict)
        if verdict is Outcome.PASS and counts["missing"] > _MISSING * counts["taken"]:
            verdict = Outcome.INCONCLUSIVE
            said = (
                f" (of {counts['taken']:,} requests that its lane took, {counts['missing']:,} were neither "
                "observed nor dropped: a server or the shadow pool was away)"
            )
        with self._store.write() as connection:
            rows.keep_gates(connection, change.id, "report", results, self._now())
            self._ledger.step(connection, change, f"{count:,} observations: {verdict}", status="done")
            self._ledger.move(
                connection,
                change,
                "measured",
                PLATFORM,
                f"{end} with {count:,} observations: {verdict}{said}",
                step="report",
                severity=Severity.INFO if verdict is Outcome.PASS else Severity.WARNING,
                details={"observations": count, "verdict": verdict.value, "counts": dict(counts)},
                verdict=verdict.value,
            )

    def _watch(self, change: ChangeRequest) -> None:
        """Events for servers that a change's observations come from: lost, restarted and back."""
        with self._store.read() as connection:
            last = recorded.newest(connection, change.checkpoint)
            known = self._ledger.watched(connection, change)
        uses_pool = bool(last and any(lane.pool for lane in last.observe if lane.name == change.id))
        now: dict[str, int] = {}
        for member in self._reconciler.members(pool=uses_pool):
            status = self._reconciler.statuses.recent()[member.name]
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
        with self._store.write() as connection:
            self._ledger.watch(connection, change, now)
            for message in sorted(told):
                self._ledger.narrate(connection, change, message, severity=Severity.WARNING)

    def _sample(self, change: ChangeRequest, booking: Booking) -> None:
        count = self._readouts.measure(change)
        with self._store.write() as connection:
            if not count:
                self._ledger.step(connection, change, "waits for the first rows", status="waiting")
                part = int(4 * (self._now() - booking.start) / (booking.end - booking.start))
                if part > 0:
                    self._ledger.narrate(
                        connection,
                        change,
                        f"no rows have come in after {25 * part} % of its time; is there traffic, and does "
                        "the platform read every server's log?",
                        key=f"no-rows:{part}",
                        severity=Severity.WARNING,
                    )
                return
            self._ledger.step(connection, change, f"the first {count:,} rows came in", status="done")
            self._ledger.narrate(connection, change, f"the first rows came in ({count:,})", key="first-rows")
            self._ledger.save(connection, change, step="measure")

    # --- after it ---

    def _read_out(self, change: ChangeRequest) -> None:
        if change.step == "approval":
            self._approval(change)
            return
        verdict = change.verdict or Outcome.INCONCLUSIVE
        with self._store.read() as connection:
            results = rows.gates(connection, change.id, "report")
        self._readouts.finish(change, results, verdict)
        with self._store.write() as connection:
            self._ledger.step(connection, change, f"kept: {verdict}", status="done")
            if change.kind is ChangeKind.RELEASE:
                saved = self._ledger.save(connection, change, step="approval")
                days = self._settings.platform.approval_days
                asks = (
                    "waits for an approver"
                    if verdict is Outcome.PASS
                    else (f"{verdict}: waits for an approver to reject it, or to waive what may be waived")
                )
                self._ledger.narrate(
                    connection,
                    saved,
                    f"the report is there; {asks} ({days:g} days)",
                    key="approval",
                    severity=Severity.INFO if verdict is Outcome.PASS else Severity.WARNING,
                )
                return
            said = rows.in_words(results, verdict)
            if verdict is Outcome.FAIL:
                self._ledger.move(
                    connection,
                    change,
                    "failed",
                    PLATFORM,
                    f"its TEST has failed{said}",
                    severity=Severity.ERROR,
                )
            else:
                follows = "a RELEASE may follow" if verdict is Outcome.PASS else "no RELEASE may follow it"
                self._ledger.move(
                    connection, change, "tested", PLATFORM, f"its TEST is done: {verdict}{said}; {follows}"
                )

    def _approval(self, change: ChangeRequest) -> None:
        days = self._settings.platform.approval_days
        over = change.since is not None and self._now() - change.since >= timedelta(days=days)
        with self._store.write() as connection:
            if over:
                self._ledger.move(
                    connection,
                    change,
                    "expire",
                    PLATFORM,
                    f"nobody approved it within {days:g} days; draft another one to try again",
                    severity=Severity.WARNING,
                )
            else:
                self._ledger.step(
                    connection, change, f"waits for an approver, {days:g} days", status="waiting"
                )

    # --- inside ---

    def _expired(self, change: ChangeRequest) -> bool:
        with self._store.read() as connection:
            booking = self._booking(connection, change)
        if self._now() < booking.end:
            return False
        with self._store.write() as connection:
            self._ledger.move(
                connection,
                change,
                "expire",
                PLATFORM,
                f"its booking was over at {moment(booking.end)} before it was deployed; draft another one",
                severity=Severity.WARNING,
            )
        return True

    def _booking(self, connection: Connection, change: ChangeRequest) -> Booking:
        booking = self._calendar.of(connection, change.id)
        if booking is None:
            message = f"{change.id} has no booking"
            raise RuntimeError(message)
        return booking
