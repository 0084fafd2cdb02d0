"""Tests of A/B tests: false alarms over two hundred analyses, harm, faulty assignment, skipped rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scorer.learn.ab.readout import AbPlan, Arm, read
from scorer.learn.ab.scores import differences
from scorer.learn.ab.settings import AbSettings
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State
from scorer.stats.sequences import clustered_mean, tuned_rho2

CONTROL, VARIANT = "sha256:" + "a" * 64, "sha256:" + "b" * 64
START = 1_790_000_000_000


def plan(share: float = 0.5, **settings: Any) -> AbPlan:
    return AbPlan(
        checkpoint="action.authorise",
        arms=(
            Arm(lane="control", bundle=CONTROL, share=1 - share),
            Arm(lane="new", bundle=VARIANT, share=share),
        ),
        started_ms=START,
        settings=AbSettings(**{"tuned_decisions": 5000, **settings}),
    )


def experience(arm: np.ndarray, reward: np.ndarray, entity: np.ndarray | None = None) -> Experience:
    """Return decisions of two lanes, one per second, over a catalogue of one action."""
    n = len(arm)
    time_ms = START + 1000 * np.arange(n, dtype=np.int64)
    return Experience(
        decision_id=np.array([f"d{at}" for at in range(n)]),
        entity=np.array([f"s{at}" for at in range(n)] if entity is None else [f"s{at}" for at in entity]),
        time_ms=time_ms,
        settled_ms=time_ms + 60_000,
        context=np.zeros((n, 1), np.float32),
        eligible=np.ones((n, 1), np.bool_),
        pmf=np.ones((n, 1), np.float32),
        action=np.zeros(n, np.int64),
        propensity=np.ones(n),
        reward=reward.astype(np.float64),
        state=np.full(n, State.SETTLED, np.int8),
        bundle=arm.astype(np.int64),
        lane=arm.astype(np.int64),
        bundles=(CONTROL, VARIANT),
        lanes=("control", "new"),
        actions=("only",),
    )


def simulated(
    random: np.random.Generator, n: int, rates: tuple[float, float], *, share: float, regulars: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lane, reward and shopper of `n` decisions.

    Shoppers return, and their authorisation rates differ.
    """
    shoppers = max(int(n / regulars), 1)
    shopper = random.integers(0, shoppers, n)
    lane_of = (random.random(shoppers) < share).astype(np.int64)
    habit = random.beta(9, 1, shoppers)  # the mean is 0.9
    arm = lane_of[shopper]
    shift = np.array(rates) - 0.9
    reward = random.random(n) < np.clip(habit[shopper] + shift[arm], 0, 1)
    return arm, reward.astype(np.float64), shopper


def alarms(seed: int, *, share: float, regulars: float, runs: int = 200, n: int = 6000) -> tuple[int, int]:
    """Return the number of A/A runs in which 0 was excluded in one of 200 analyses.

    The first number is that of the sequence, and the second one that of a z-test per decision.
    """
    random = np.random.default_rng(seed)
    shares = [1 - share, share]
    rho2 = tuned_rho2(0.05, 0.09 * (1 / shares[0] + 1 / shares[1]) * 5000)
    ours = naive = 0
    for _ in range(runs):
        arm, reward, shopper = simulated(random, n, (0.9, 0.9), share=share, regulars=regulars)
        scores = differences(arm, reward, np.zeros((n, 2)), shares, 1)
        hit = tested = False
        for look in np.linspace(600, n, 200).astype(int):
            if not hit and min(np.bincount(arm[:look], minlength=2)) >= 100:
                interval = clustered_mean(scores[:look], shopper[:look], 0.05, rho2)
                hit = interval.low > 0 or interval.high < 0
            if not tested:
                a, b = reward[:look][arm[:look] == 0], reward[:look][arm[:look] == 1]
                z = (b.mean() - a.mean()) / math.sqrt(a.var() / len(a) + b.var() / len(b) + 1e-12)
                tested = abs(z) > 1.96
        ours, naive = ours + hit, naive + tested
    return ours, naive


@pytest.mark.parametrize(
    ("share", "regulars"), [(0.5, 1.001), (0.1, 1.001), (0.3, 6.0)], ids=["even", "a tenth", "regulars"]
)
def test_false_alarms_over_two_hundred_readings(share: float, regulars: float) -> None:
    ours, naive = alarms(11, share=share, regulars=regulars)
    assert ours <= 10, "at most 5 % of 200 runs"
    assert naive >= 30, (
        "a test that is valid for one analysis would have raised false alarms on the same data"
    )


def test_harm_is_detected_and_estimated_correctly() -> None:
    result = covered = 0
    for seed in range(20):
        arm, reward, shopper = simulated(
            np.random.default_rng(seed), 20_000, (0.9, 0.86), share=0.5, regulars=2.0
        )
        whole = experience(arm, reward, shopper)
        readings = [read(plan(), whole.take(slice(0, n))) for n in range(2000, 20_001, 2000)]
        (last,) = readings[-1].differences
        covered += last.low <= -0.04 <= last.high
        result += any(one.harm for one in readings)
    assert result == 20
    assert covered >= 19


def test_scores_are_unbiased_with_any_oracle_and_narrower_with_a_good_one() -> None:
    random = np.random.default_rng(3)
    n, shares = 200_000, [0.8, 0.2]
    q = np.where(random.random(n) < 0.5, 0.97, 0.05)
    arm = (random.random(n) < shares[1]).astype(np.int64)
    reward = (random.random(n) < q + 0.02 * arm).astype(np.float64)
    exact = np.stack([q, q + 0.02], axis=1)
    wrong = np.stack([1 - q, 0.3 * q], axis=1)
    result = {
        name: differences(arm, reward, e, shares, 1) for name, e in (("exact", exact), ("wrong", wrong))
    }
    for scores in result.values():
        assert abs(scores.mean() - 0.02) < 4 * scores.std() / math.sqrt(n)
    assert result["exact"].std() < 0.4 * result["wrong"].std()


def test_a_score_depends_on_its_own_reward_only_by_its_weight_and_on_no_later_reward() -> None:
    """The control variate must be predictable, or else the sum of scores is not a martingale."""
    random = np.random.default_rng(8)
    shares, arm = [0.8, 0.2], (random.random(50) < 0.2).astype(np.int64)
    reward, expected = random.random(50), random.random((50, 2))
    base = differences(arm, reward, expected, shares, 1)
    for at in range(50):
        other = reward.copy()
        other[at] += 0.25
        moved = differences(arm, other, expected, shares, 1) - base
        assert np.abs(moved[:at]).max(initial=0.0) == 0.0
        assert moved[at] == pytest.approx(0.25 / shares[1] if arm[at] else -0.25 / shares[0], rel=1e-9)


@pytest.fixture(scope="module")
def sample() -> Experience:
    arm, reward, shopper = simulated(np.random.default_rng(1), 4000, (0.9, 0.9), share=0.5, regulars=1.5)
    return experience(arm, reward, shopper)


def test_only_decisions_of_the_comparison_count(sample: Experience) -> None:
    bundle, lane, time_ms = sample.bundle.copy(), sample.lane.copy(), sample.time_ms.copy()
    time_ms[:10] = START - 1
    bundle[20:25] = 1 - bundle[20:25]
    lane[30:37] = 2
    result = read(
        plan(), replace(sample, bundle=bundle, lane=lane, time_ms=time_ms, lanes=(*sample.lanes, "holdout"))
    )
    assert result.left_out == {
        "before the start": 10,
        "of the lane, by another bundle": 5,
        "of another lane": 7,
    }
    assert sum(one.decisions for one in result.lanes) == 4000 - 22
    assert not result.ratio.mismatch


def test_a_decision_in_flight_is_not_a_decline_and_ends_the_analysed_part(sample: Experience) -> None:
    state, reward = sample.state.copy(), sample.reward.copy()
    state[3000], reward[3000] = State.IN_FLIGHT, math.nan
    cut = read(plan(), replace(sample, state=state, reward=reward))
    assert cut.until_ms == sample.time_ms[3000]
    assert sum(one.decisions for one in cut.lanes) == 3000
    assert cut.left_out == {"in flight, or decided after one that is": 1000}
    whole = read(plan(), sample.take(slice(0, 3000)))
    for one, other in zip(cut.differences, whole.differences, strict=True):
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-9)
    assert sum(cut.ratio.counts) > sum(whole.ratio.counts), "the assignment is checked on all decisions"


def test_outcomes_that_are_missing_in_one_lane_are_reported(sample: Experience) -> None:
    state, reward = sample.state.copy(), sample.reward.copy()
    gone = (sample.lane == 1) & (np.arange(len(sample)) % 5 == 0)
    state[gone], reward[gone] = State.MISSING, math.nan
    (difference,) = read(plan(), replace(sample, state=state, reward=reward)).differences
    assert difference.missing.low > 0
    assert difference.missing.value == pytest.approx(0.2, abs=0.05)
    (sound,) = read(plan(), sample).differences
    assert sound.missing.low <= 0 <= sound.missing.high


def test_a_horizon_uses_the_outcomes_known_after_that_time(sample: Experience) -> None:
    """Some outcomes are slow, and one is in flight. With a horizon they are missing.

    Without a horizon, the analysis ends before the first decision in flight.
    """
    settled_ms, state, reward = sample.settled_ms.copy(), sample.state.copy(), sample.reward.copy()
    slow = np.arange(len(sample)) % 10 == 3
    settled_ms[slow] = sample.time_ms[slow] + 40 * 60_000
    state[5], reward[5], settled_ms[5] = State.IN_FLIGHT, math.nan, -1
    own = replace(sample, settled_ms=settled_ms, state=state, reward=reward)
    last = int(settled_ms.max())
    assert sum(one.decisions for one in read(plan(), own).lanes) == 5
    result = read(plan(hours=0.5), own)
    old = sample.time_ms <= last - 1_800_000
    assert sum(one.decisions for one in result.lanes) == int(old.sum())
    assert sum(one.missing for one in result.lanes) == int((slow & old).sum()) + 1
    assert sum(one.rewarded for one in result.lanes) == int((old & ~slow).sum()) - 1
    kept = old & ~slow & (np.arange(len(sample)) != 5)
    for at, lane in enumerate(result.lanes):
        assert lane.rate == pytest.approx(sample.reward[kept & (sample.lane == at)].mean())


def test_too_few_shoppers_give_no_verdict(sample: Experience) -> None:
    (difference,) = read(plan(shoppers=2000), sample).differences
    assert difference.verdict == "too early"
    text = read(plan(), sample).as_dict()
    assert text["differences"][0]["verdict"] in ("undecided", "not worse")


def test_a_log_without_decisions_of_the_comparison_is_refused(sample: Experience) -> None:
    with pytest.raises(DataError, match="is the comparison running"):
        read(replace_start(plan(), START + 10**9), sample)
    empty = read(plan(), sample.take(slice(0, 1)))
    assert empty.differences[0].verdict == "too early"


def replace_start(plan_: AbPlan, started_ms: int) -> AbPlan:
    return replace(plan_, started_ms=started_ms)


@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        ((("a", 0.5), ("a", 0.5)), "a lane of its own"),
        ((("a", 1.0),), "a control and a variant"),
        ((("a", 0.5), ("b", 0.4)), "add up to 0.9"),
        ((("a", 1.0), ("b", 0.0)), "each must be above 0"),
    ],
)
def test_invalid_comparisons_are_refused(lanes: tuple[tuple[str, float], ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        AbPlan(
            "action.authorise", tuple(Arm(name, CONTROL, share) for name, share in lanes), START, AbSettings()
        )


def test_bundles_are_named_by_the_first_digits_of_their_digest(sample: Experience) -> None:
    arms = (Arm("control", "sha256:aa", 0.5), Arm("new", "bb", 0.5))
    assert read(replace(plan(), arms=arms), sample) == read(plan(), sample)
    with pytest.raises(DataError, match='"sha256:" fits 2 bundles'):
        read(replace(plan(), arms=(Arm("control", "sha256:", 0.5), arms[1])), sample)
