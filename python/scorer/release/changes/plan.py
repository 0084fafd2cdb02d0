"""The steps of the pipeline, in order: what is still to come is shown from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scorer.release.answers import Step
from scorer.release.changes.overlays import STEPS
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState

if TYPE_CHECKING:
    from scorer.release.model import Stage
    from scorer.release.settings import Settings

_S = ChangeState

CHECKS = {
    "package": "takes the bundle in: a copy of its own",
    "verify": "compares every file with its SHA-256",
    "golden": "scores the golden cases again, bit for bit",
    "fit": "compares kind and features with what the checkpoint feeds",
    "warm-up": "measures it against the checkpoint's promise",
}
"""Steps of the state `checks`."""
_OVERLAY = "compares how far it moves a score with what its permission allows"


def stages_of(change: ChangeRequest, settings: Settings) -> tuple[Stage, ...]:
    """The canary of a release."""
    return change.stages or settings.checkpoints[change.checkpoint].stages


def plan(change: ChangeRequest, settings: Settings) -> list[tuple[ChangeState, str, str]]:
    """Every step that a change goes through when nothing stands in its way."""
    if change.kind is ChangeKind.OVERLAY:
        return [
            *((_S.CHECKS, name, CHECKS.get(name, _OVERLAY)) for name in STEPS),
            (_S.APPROVED, "release", "waits for a release that is being completed"),
            (_S.RELEASED, "full", "every server answers with it"),
        ]
    steps = [(_S.CHECKS, name, words) for name, words in CHECKS.items()]
    steps += [
        (_S.BOOKED, "slot", "waits for its slot"),
        (_S.DEPLOYING, "deploy", "servers take it into the shadow"),
        (_S.AUDITING, "sample", "rows come in"),
        (_S.AUDITING, "measure", "measures, and judges by the gates"),
        (_S.READ_OUT, "report", "keeps the read-out"),
    ]
    if change.kind is ChangeKind.RELEASE:
        steps += [
            (_S.READ_OUT, "approval", "waits for an approver"),
            (_S.APPROVED, "release", "waits for its turn, and for freezes to end"),
        ]
        for number, stage in enumerate(stages_of(change, settings), 1):
            steps.append(
                (
                    _S.RELEASED,
                    f"canary {number}",
                    f"{stage.share:.0%} of the answers for {stage.minutes:g} minutes",
                )
            )
        steps += [
            (_S.RELEASED, "full", "every server answers with it"),
            (_S.RELEASED, "alias", "the registry's alias is moved to it"),
        ]
    return steps


def steps_of(change: ChangeRequest, settings: Settings, begun: Sequence[Step]) -> tuple[Step, ...]:
    """What was done, in the order in which it was, then what is to come (nothing, once it has ended)."""
    known = {(step.state, step.name) for step in begun}
    to_come = [] if change.state.is_final else plan(change, settings)
    return (
        *begun,
        *(
            Step(state, name, words, "to come", None, None)
            for state, name, words in to_come
            if (state, name) not in known
        ),
    )
