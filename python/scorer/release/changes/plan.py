"""The steps of the pipeline in order, for showing the steps to come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scorer.release.answers import Step
from scorer.release.changes import backtesting
from scorer.release.changes.overlays import STEPS
from scorer.release.gates.defaults import default_gates
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState

if TYPE_CHECKING:
    from scorer.release.model import GateSpec, Stage
    from scorer.release.settings import PlatformFile

_S = ChangeState

_BACKTEST = "the candidate is compared with the live bundle on logged decisions with a known outcome"

CHECKS = {
    "package": "a copy of the bundle is stored",
    "verify": "every file is compared with its SHA-256, and the signature is checked",
    "golden": "the golden cases are scored again, bit for bit",
    "fit": "kind and features are compared with those of the checkpoint",
    "warm-up": "evaluation time is compared with the checkpoint's SLA",
}
"""Steps of the state `checks`."""
_OVERLAY = "compares how far it moves a score with what its permission allows"


def stages_of(change: ChangeRequest, settings: PlatformFile) -> tuple[Stage, ...]:
    """Return the canary stages of a release."""
    return change.stages or settings.checkpoints[change.checkpoint].stages


def specs_of(change: ChangeRequest, settings: PlatformFile) -> Sequence[GateSpec]:
    """Return the gates that a change request is judged by."""
    own = change.gates or settings.checkpoints[change.checkpoint].gates
    return own or (*default_gates("score"), *default_gates("action"))


def plan(change: ChangeRequest, settings: PlatformFile) -> list[tuple[ChangeState, str, str]]:
    """Return all steps of a change that passes, as state, step and description."""
    if change.kind is ChangeKind.OVERLAY:
        return [
            *((_S.CHECKS, name, CHECKS.get(name, _OVERLAY)) for name in STEPS),
            (_S.APPROVED, "release", "waits for a release that is being completed"),
            (_S.RELEASED, "full", "every server answers with it"),
        ]
    steps = [(_S.CHECKS, name, words) for name, words in CHECKS.items()]
    if backtesting.applies(change):
        steps.append((_S.CHECKS, backtesting.STEP, _BACKTEST))
    steps += [
        (_S.BOOKED, "slot", "the shadow slot begins at its booked time"),
        (_S.DEPLOYING, "deploy", "the servers add the observe lane"),
        (_S.OBSERVING, "sample", "requests are observed"),
        (_S.OBSERVING, "measure", "the gates are evaluated"),
        (_S.REPORT, "report", "the report is stored"),
    ]
    if change.kind is ChangeKind.RELEASE:
        steps += [
            (_S.REPORT, "approval", "an approver decides"),
            (_S.APPROVED, "release", "other releases and freezes end first"),
        ]
        for number, stage in enumerate(stages_of(change, settings), 1):
            steps.append(
                (
                    _S.RELEASED,
                    f"canary {number}",
                    f"{stage.share:.0%} of the requests for {stage.minutes:g} minutes"
                    + (", then an approver promotes it" if stage.pause else ""),
                )
            )
        steps += [
            (_S.RELEASED, "full", "every server answers with the bundle"),
            (_S.RELEASED, "alias", "the registry's alias is moved to the bundle"),
        ]
    return steps


def steps_of(change: ChangeRequest, settings: PlatformFile, begun: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps that have begun, in order, and the steps to come unless the change has ended."""
    known = {(step.state, step.name) for step in begun}
    to_come = [] if change.state.is_final else plan(change, settings)
    return (
        *begun,
        *(
            Step(state, name, words, "skipped" if name in change.skipped else "to come", None, None)
            for state, name, words in to_come
            if (state, name) not in known
        ),
    )
