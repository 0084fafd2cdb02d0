"""Compares lanes on their outcomes; the intervals hold at all readings together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scorer.learn.ab.scores import differences, expectations
from scorer.learn.ab.settings import AbSettings
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.stats.arrays import Floats, Ints
from scorer.stats.sample_ratio import RatioCheck, check_ratio
from scorer.stats.sequences import AnytimeMean, clustered_mean, tuned_rho2

if TYPE_CHECKING:
    from scorer.learn.ab.scores import Shelf

Verdict = Literal["too early", "undecided", "harm", "not worse", "better"]
_PLANNED_VARIANCE = 0.09
"""Of a reward, for tuning alone: an authorisation rate of 0.9. Validity does not depend on it."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One lane of the comparison.

    Attributes:
        lane: Name of the lane.
        bundle: Digest of its bundle, or a prefix that one bundle of the experience has.
        share: Share of the shoppers, above 0 and below 1.
    """

    lane: str
    bundle: str
    share: float


@dataclass(frozen=True, slots=True)
class AbPlan:
    """What is compared; the same in all readings of a comparison.

    Attributes:
        checkpoint: Where the lanes are.
        arms: The control first.
        started_ms: Unix time from which on these lanes have been active.
        settings: `[ab]`.

    Raises:
        DataError: There is no variant, two arms have one lane, or the shares do not add up to 1.
    """

    checkpoint: str
    arms: tuple[Arm, ...]
    started_ms: int
    settings: AbSettings

    def __post_init__(self) -> None:
        if len({arm.lane for arm in self.arms}) < max(len(self.arms), 2):
            raise DataError("a comparison needs a control and a variant, each with a lane of its own")
        total = sum(arm.share for arm in self.arms)
        if abs(total - 1) > 1e-6 or min(arm.share for arm in self.arms) <= 0:
            raise DataError(
                f"the shares of the arms add up to {total:g}; each must be above 0, all together 1"
            )

    @property
    def variants(self) -> tuple[Arm, ...]:
        """The arms that are compared with the control."""
        return self.arms[1:]


@dataclass(frozen=True, slots=True)
class LaneResult:
    """What was seen of an arm, up to the first decision that is in flight."""

    lane: str
    bundle: str
    share: float
    shoppers: int
    decisions: int
    rewarded: int
    missing: int
    rate: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A variant against the control."""

    lane: str
    value: float
    low: float
    high: float
    missing: AnytimeMean
    """Of the share of outcomes that never came; where it excludes 0, unlike decisions are compared."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class AbReport:
    """One reading.

    Attributes:
        until_ms: every decision before has its outcome, or will never have one.
        lanes: in the order of the plan.
        differences: one for each variant.
        ratio: over all shoppers since the start.
        left_out: decisions that count nowhere, by reason.
    """

    until_ms: int
    lanes: tuple[LaneResult, ...]
    differences: tuple[Difference, ...]
    ratio: RatioCheck
    left_out: Mapping[str, int]

    @property
    def harm(self) -> bool:
        """Whether a variant does harm."""
        return any(one.verdict == "harm" for one in self.differences)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is not known is None."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def read(plan: AbPlan, experience: Experience, shelf: Shelf | None = None) -> AbReport:
    """Compares the arms on the decisions since the start.

    Args:
        plan: what is compared.
        experience: joined decisions, in order of time.
        shelf: bundles by digest; None: no oracle is evaluated, intervals are wider.

    Raises:
        DataError: nothing of the comparison is in the experience, or a prefix fits several bundles.
    """
    arms = (replace(one, bundle=_digest(one.bundle, experience.bundles)) for one in plan.arms)
    plan = replace(plan, arms=tuple(arms))
    arm, left_out = _arms(plan, experience)
    if not (arm >= 0).any():
        raise DataError(
            f"no decision of lanes {', '.join(a.lane for a in plan.arms)} with their bundles since the "
            f"start; is the comparison running on {plan.checkpoint}?"
        )
    own = experience.take(arm >= 0)
    arm = arm[arm >= 0]
    if plan.settings.hours is not None:
        own = _known_after(own, round(plan.settings.hours * 3_600_000), _last_ms(experience))
    shopper = _shoppers(own)
    ratio, left_out["shopper seen in two lanes"] = _ratio(plan, arm, shopper)
    flying = own.time_ms[own.state == State.IN_FLIGHT]
    until = int(flying.min()) if len(flying) else int(own.time_ms.max()) + 1
    mature = own.time_ms < until
    left_out["in flight, or decided after one that is"] = int((~mature).sum())
    own, arm, shopper = own.take(mature), arm[mature], shopper[mature]
    lanes = tuple(_lane(one, own, shopper, arm == at) for at, one in enumerate(plan.arms))
    ready = all(lane.shoppers >= plan.settings.shoppers for lane in lanes)
    return AbReport(
        until,
        lanes,
        _differences(plan, own, arm, shopper, shelf, ready=ready),
        ratio,
        {reason: count for reason, count in left_out.items() if count},
    )


def _differences(
    plan: AbPlan,
    own: Experience,
    arm: Ints,
    shopper: Ints,
    shelf: Shelf | None,
    *,
    ready: bool,
) -> tuple[Difference, ...]:
    known = own.state == State.SETTLED
    settled = own.take(known)
    shares = [one.share for one in plan.arms]
    blind = np.zeros((len(own), len(plan.arms)))
    expected = None
    if shelf is not None and len(settled):
        expected = expectations(shelf, [one.bundle for one in plan.arms], settled)
    expected = blind[known] if expected is None else expected
    found = []
    for at, variant in enumerate(plan.variants, start=1):
        # Both ends of every variant share alpha; what is missing is told, not judged.
        alpha = plan.settings.alpha / len(plan.variants)
        spread = _PLANNED_VARIANCE * (1 / shares[0] + 1 / shares[at]) * plan.settings.tuned_decisions
        rho2 = tuned_rho2(alpha, spread)
        scores = differences(arm[known], settled.reward, expected, shares, at)
        value = clustered_mean(scores, shopper[known], alpha, rho2)
        gone = differences(arm, (own.state == State.MISSING).astype(np.float64), blind, shares, at)
        verdict = _verdict(value, plan) if ready else "too early"
        missing = clustered_mean(gone, shopper, alpha, rho2)
        found.append(Difference(variant.lane, value.value, value.low, value.high, missing, verdict))
    return tuple(found)


def _verdict(found: AnytimeMean, plan: AbPlan) -> Verdict:
    if found.high < -plan.settings.harm:
        return "harm"
    if found.low > 0:
        return "better"
    return "not worse" if found.low > -plan.settings.margin else "undecided"


def _digest(prefix: str, digests: tuple[str, ...]) -> str:
    found = [one for one in digests if one.startswith((prefix, f"sha256:{prefix}"))]
    if len(found) > 1:
        raise DataError(f'"{prefix}" fits {len(found)} bundles of the experience; write more digits')
    return found[0] if found else prefix


def _arms(plan: AbPlan, experience: Experience) -> tuple[Ints, dict[str, int]]:
    """`[n]` the arm of each decision, -1 where it counts nowhere; and why."""
    arm = np.full(len(experience), -1, dtype=np.int64)
    since = experience.time_ms >= plan.started_ms
    lanes, digests = np.array(experience.lanes), np.array(experience.bundles)
    named = np.zeros(len(experience), dtype=np.bool_)
    for at, one in enumerate(plan.arms):
        of_lane = since & np.isin(experience.lane, np.flatnonzero(lanes == one.lane))
        named |= of_lane
        arm[of_lane & np.isin(experience.bundle, np.flatnonzero(digests == one.bundle))] = at
    return arm, {
        "before the start": int((~since).sum()),
        "of another lane": int((since & ~named).sum()),
        "of the lane, by another bundle": int((named & (arm < 0)).sum()),
    }


def _last_ms(experience: Experience) -> int:
    """The latest moment that the experience knows of."""
    return int(max(experience.time_ms.max(), experience.settled_ms.max()))


def _known_after(own: Experience, window_ms: int, now_ms: int) -> Experience:
    """Every decision as it was known so long after it was made; younger ones are in flight."""
    known = (own.state == State.SETTLED) & (own.settled_ms - own.time_ms <= window_ms)
    state = np.where(known, State.SETTLED, State.MISSING)
    state = np.where(own.time_ms > now_ms - window_ms, State.IN_FLIGHT, state).astype(np.int8)
    return replace(own, state=state, reward=np.where(state == State.SETTLED, own.reward, np.nan))


def _shoppers(experience: Experience) -> Ints:
    """`[n]` codes; a decision without an entity was drawn by its own id and stands for itself."""
    codes = np.unique(experience.entity, return_inverse=True)[1].astype(np.int64)
    anonymous = np.flatnonzero(experience.entity == "")
    codes[anonymous] = codes.max(initial=-1) + 1 + np.arange(len(anonymous))
    return codes


def _ratio(plan: AbPlan, arm: Ints, shopper: Ints) -> tuple[RatioCheck, int]:
    pairs = np.unique(np.stack([shopper, arm]), axis=1)
    counts = np.bincount(pairs[1], minlength=len(plan.arms))
    both = int((np.bincount(pairs[0]) > 1).sum())
    shares = [one.share for one in plan.arms]
    return check_ratio(counts.tolist(), shares, plan.settings.ratio_alpha), both


def _lane(one: Arm, own: Experience, shopper: Ints, here: np.ndarray[Any, np.dtype[np.bool_]]) -> LaneResult:
    known = here & (own.state == State.SETTLED)
    rewards: Floats = own.reward[known]
    return LaneResult(
        one.lane,
        one.bundle,
        one.share,
        len(np.unique(shopper[here])),
        int(here.sum()),
        int(known.sum()),
        int((here & (own.state == State.MISSING)).sum()),
        float(rewards.mean()) if len(rewards) else math.nan,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
