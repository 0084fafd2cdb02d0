"""Stages of a canary release: their lanes, and the step from one to the next."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from scorer.release.changes.writer import NEW_STAGE, ChangeWriter
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import LaneDecision
from scorer.release.model import ChangeRequest, LaneSpec, Stage

_TINY = 1e-9
_STEP = "canary "


def step_of(number: int) -> str:
    """Return the name of the step of a stage, from 1."""
    return f"{_STEP}{number}"


def number_of(step: str) -> int | None:
    """Return the number of the stage of a step; None if the step is not a stage."""
    return int(step.removeprefix(_STEP)) if step.startswith(_STEP) else None


def to_come(change: ChangeRequest, stages: Sequence[Stage]) -> list[int]:
    """Return the numbers of the stages after the present one, without those that the release leaves out."""
    present = number_of(change.step) or 0
    return [number for number in range(present + 1, len(stages) + 1) if step_of(number) not in change.skipped]


def stage_lanes(before: str, bundle: str, stage: Stage, holdout: float) -> tuple[LaneSpec, ...]:
    """Return the answer lanes of a stage.

    A request is assigned to a lane by one number, along the shares of the lanes. The canary is the first lane
    and the holdout the last one, so no shopper leaves the canary, and none enters or leaves the holdout, from
    one stage to the next.

    Args:
        before: Digest of the bundle that answered before the release.
        bundle: Digest of the new bundle.
        stage: The stage.
        holdout: Share of the holdout.
    """
    rest = 1 - stage.share - holdout
    lanes = [LaneSpec(recorded.CANARY, bundle, share=stage.share)]
    if rest > _TINY:
        lanes.append(LaneSpec(recorded.LIVE, before, share=rest))
    if holdout > 0:
        lanes.append(LaneSpec(recorded.HOLDOUT, before, share=holdout))
    return tuple(lanes)


def go_on(work: ChangeWriter, stages: Sequence[Stage], why: str) -> None:
    """End the present stage: record the lanes of the next one, or all requests after the last.

    Args:
        work: The change request, in its transaction.
        stages: All stages of the release.
        why: Why the stage ends, as the beginning of a sentence.
    """
    change = work.change
    ahead = to_come(change, stages)
    if ahead:
        stage = stages[ahead[0] - 1]
        answer = stage_lanes(_beside(work.connection, change), change.bundle, stage, change.holdout)
        step, decision = step_of(ahead[0]), LaneDecision(recorded.STAGE, answer)
        message = f"{why}: {stage.share:.0%} of the answers now"
    else:
        step, decision = "full", all_of(change)
        message = f"{why}: all of the answers now"
    work.save(**{**NEW_STAGE, "step": step, "note": message})
    work.record(decision)
    details = {"step": step, "answer": shares(decision)}
    work.audit("stage", details)
    work.event(message, key=f"stage:{step}", details=details)


def all_of(change: ChangeRequest) -> LaneDecision:
    """Return the decision that the bundle of a change answers all requests."""
    lanes = (LaneSpec(recorded.LIVE, change.bundle, share=1.0),)
    return LaneDecision(recorded.RELEASE, lanes, alias=change.bundle)


def shares(decision: LaneDecision) -> dict[str, float]:
    """Return the shares of the answers by lane."""
    return {lane.name: lane.share for lane in decision.answer or ()}


def _beside(connection: Connection, change: ChangeRequest) -> str:
    """Return the bundle of the other lanes, whose overlay may have been revised during the release."""
    newest = recorded.newest(connection, change.checkpoint)
    beside = [lane for lane in newest.answer if lane.name != recorded.CANARY] if newest else []
    return recorded.main_lane(beside).bundle if beside else change.before or ""
