"""Operations of users on the stages of a release: pause, resume, promote, skip.

The runner evaluates the gates meanwhile. A gate that fails rolls back a paused release too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer.release.calendar import moment
from scorer.release.changes import rows
from scorer.release.changes.guard import ChangeGuard
from scorer.release.changes.plan import stages_of
from scorer.release.changes.stages import go_on, number_of, step_of, to_come
from scorer.release.errors import ConflictError, FrozenError, InvalidError, PlatformError
from scorer.release.fields import reason_of
from scorer.release.lanes import recorded
from scorer.release.model import PLATFORM, Actor, ChangeRequest, Outcome, Severity

if TYPE_CHECKING:
    from scorer.release.changes.operations import Changes
    from scorer.release.changes.parts import Parts
    from scorer.release.changes.writer import ChangeWriter
    from scorer.release.settings import PlatformFile


class Control:
    """Operations on the present stage of a release, each one transaction.

    Args:
        parts: Dependencies that operations on change requests share.
        changes: Sends recorded lanes to the servers.
    """

    def __init__(self, parts: Parts, changes: Changes) -> None:
        self._parts = parts
        self._changes = changes
        self._guard = ChangeGuard(parts)

    def pause(self, actor: Actor, change: str, *, reason: str, version: int | None = None) -> ChangeRequest:
        """Hold the shares of the present stage until `resume` or `promote`.

        The gates are evaluated as before, and a gate that fails still rolls the release back.
        """
        reason = reason_of(reason)
        with self._guard.open(actor, self._guard.allowed(actor, change, "pause"), "pause", version) as work:
            self._check(work, "pause")
            work.step(f"paused by {actor.user}: {reason}", status="waiting")
            work.save(paused_by=actor.user, paused_at=self._parts.now())
            return work.done(
                "pause",
                f"{work.change.step} paused by {actor.user}: {reason}",
                severity=Severity.WARNING,
                details={"step": work.change.step, "reason": reason},
            )

    def resume(self, actor: Actor, change: str, *, reason: str, version: int | None = None) -> ChangeRequest:
        """End the pause of a user. The stage then ends by its time and its gates, as planned."""
        reason = reason_of(reason)
        with self._guard.open(actor, self._guard.allowed(actor, change, "resume"), "resume", version) as work:
            self._check(work, "resume")
            work.step(f"resumed by {actor.user}", status="running")
            work.save(paused_by=None, paused_at=None, resumed_at=self._parts.now())
            return work.done(
                "resume",
                f"{work.change.step} resumed by {actor.user}: {reason}",
                details={"step": work.change.step, "reason": reason},
            )

    def promote(self, actor: Actor, change: str, *, reason: str, version: int | None = None) -> ChangeRequest:
        """End the present stage now: the next one begins, or the bundle answers all requests.

        The remaining time of the stage and its inconclusive gates are ignored, and a pause ends. Only
        approvers other than the submitter may do this, because it shortens the approved plan.

        Raises:
            FrozenError: A freeze forbids it now.
            ConflictError: A gate of the stage has failed, or a server does not have its lanes yet.
        """
        reason = reason_of(reason)
        before = self._guard.allowed(actor, change, "promote")
        frozen = self._parts.calendar.frozen(before.checkpoint)
        if frozen:
            raise FrozenError(
                f'checkpoint "{before.checkpoint}" is frozen by "{frozen.freeze.name}" until '
                f"{moment(frozen.end)}; promote {change} after that"
            )
        with self._guard.open(actor, before, "promote", version) as work:
            self._check(work, "promote")
            self._check_ready(work)
            step = work.change.step
            work.step(f"promoted by {actor.user}: {reason}", status="done")
            work.audit("promote", {"step": step, "reason": reason})
            go_on(
                work,
                stages_of(work.change, self._parts.settings),
                f"{step} promoted by {actor.user} ({reason})",
            )
        self._changes.follow(before.checkpoint)
        return self._guard.see(actor, change)

    def skip(
        self, actor: Actor, change: str, *, stage: int, reason: str, version: int | None = None
    ) -> ChangeRequest:
        """Leave out a stage to come. For approvers other than the submitter.

        Args:
            actor: The calling user.
            change: Id of the change request.
            stage: Number of the stage, from 1.
            reason: Recorded in the audit log.
            version: Version of the change that was read; None: any.

        Raises:
            InvalidError: The release has no such stage to come.
        """
        reason = reason_of(reason)
        with self._guard.open(actor, self._guard.allowed(actor, change, "skip"), "skip", version) as work:
            self._check(work, "skip")
            ahead = to_come(work.change, stages_of(work.change, self._parts.settings))
            if stage not in ahead:
                raise InvalidError(
                    f"{change} has no stage {stage} to come; the stages to come are "
                    f"{', '.join(map(str, ahead))}"
                )
            work.save(skipped=[*work.change.skipped, step_of(stage)])
            return work.done(
                "skip",
                f"{step_of(stage)} left out by {actor.user}: {reason}",
                severity=Severity.WARNING,
                details={"step": step_of(stage), "reason": reason},
            )

    def _check(self, work: ChangeWriter, name: str) -> None:
        refused = refusal(work.change, name, self._parts.settings)
        if refused is not None:
            raise refused
        decided = recorded.deciding(work.connection, work.change.checkpoint)
        if decided is None or decided.change != work.change.id:
            raise ConflictError(
                f"the lanes of {work.change.checkpoint} were changed while {work.change.id} was released; "
                "it ends within a moment"
            )

    def _check_ready(self, work: ChangeWriter) -> None:
        change = work.change
        mark = rows.row_of(work.connection, change.id).mark
        if mark is None:
            raise ConflictError(
                f"{change.id}: a server does not have the lanes of {change.step} yet; "
                "wait for it, or roll back"
            )
        failed = [
            result.metric
            for result in rows.gates(work.connection, change.id, change.step)
            if result.blocks and result.outcome is Outcome.FAIL
        ]
        if failed:
            raise ConflictError(
                f"{change.id}: {', '.join(failed)} failed in {change.step}; it is rolled back"
            )


def refusal(change: ChangeRequest, name: str, settings: PlatformFile) -> PlatformError | None:
    """Return the error if the present step of a release does not allow an operation; otherwise None."""
    if number_of(change.step) is None:
        return ConflictError(
            f"{change.id} has passed its stages and is brought to all requests; roll it back "
            "if it must not be"
        )
    if name == "pause" and change.paused_at is not None:
        return ConflictError(
            f"{change.id} is paused already, since {moment(change.paused_at)}; resume or promote it"
        )
    if name == "resume" and change.paused_at is None:
        return ConflictError(f"{change.id} is not paused, so it cannot be resumed; pause or promote it")
    if name == "resume" and change.paused_by == PLATFORM.user:
        return ConflictError(f"{change.step} of {change.id} waits for an approver by its plan; promote it")
    if name == "skip" and not to_come(change, stages_of(change, settings)):
        return ConflictError(f"{change.id} has no stage to come; promote it, or wait")
    return None
