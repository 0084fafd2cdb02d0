"""An issuer starts to decline one action family at noon: the time until most of the lost value is won back.

There are 10,000 payments an hour, evenly over the day. The family is the one that the policy uses most at
that issuer, among those that almost every payment there can avoid. Lost is the amount by which the policy of
noon, if it did not change, would be worth less after noon than before, as far as any choice could win it
back. Won back is the amount by which the served policy is worth more than the policy of noon. All values are
true expected values on that issuer's payments.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from examples.loop.learner import QUICK, Learner, LoopPlan
from examples.simulators.actions import FACTORS
from examples.simulators.outcomes import decide
from examples.simulators.payments import ISSUER_NAMES, baseline_pmf
from examples.simulators.task import authorise_task
from examples.simulators.weeks import HOUR_MS, Arrivals, Market, Shock, WeeksPlan
from loadtests.figures import Figures
from loadtests.learning.options import Options
from scorer.learn.overlay.settings import OverlaySettings

Floats = npt.NDArray[np.float64]
COMMAND = "make bench-learning ARGS=shock"
PER_HOUR, TAUGHT_PER_HOUR, SEEDS, ALONE_SEEDS = 10_000.0, 300.0, 5, 3
NOON, HOURS_BEFORE, HOURS_AFTER = 7 * 24 + 12, 3, 5
WINDOW_MINUTES, LASTING_MINUTES, ENOUGH = 15, 60, 0.8
LIVE = LoopPlan(train=QUICK, overlay=OverlaySettings(every_minutes=5))


def run(figures: Figures, options: Options) -> None:
    """Measure the time with the overlay, and the time with weekly retraining only."""
    quick = options.quick
    seeds = options.seeds[: 1 if quick else SEEDS]
    per_hour, taught, after = (600.0, 20.0, 1) if quick else (PER_HOUR, TAUGHT_PER_HOUR, HOURS_AFTER)
    with_overlay = [(seed, *hours_until_won(seed, per_hour, taught, after)) for seed in seeds]
    alone = [hours_alone(seed, taught) for seed in seeds[: 1 if quick else ALONE_SEEDS]]
    hours = [took for _, took, _ in with_overlay]
    told = "; ".join(f"seed {seed}: {what}, {took:.2f} h" for seed, took, what in with_overlay)
    figures.add(
        name="hours until 80 % of the lost value is won back, worst seed",
        ours=max(hours),
        unit="simulated hours",
        target=2.0,
        command=COMMAND,
        note=f"median {np.median(hours):.2f}; overlay fitted every 5 minutes; {after:.2f}: later; {told}",
    )
    figures.add(
        name="hours until 80 % of the lost value is won back, median seed",
        ours=float(np.median(hours)),
        unit="simulated hours",
        peer="weekly retraining alone",
        theirs=float(np.median(alone)),
        command=COMMAND,
        note=f"alone: {', '.join(f'{took:.0f}' for took in alone)} h, at {taught:,.0f} payments an hour,"
        " shock on a Wednesday, a generation every Monday",
    )


def hours_until_won(seed: int, per_hour: float, taught: float, after: int) -> tuple[float, str]:
    """Return the hours until the value is won back for good, and the declined family.

    The hours are `after` if it is not won back.
    """
    learner, market = taught_learner(seed, per_hour, taught, LIVE)
    for hour in range(NOON - HOURS_BEFORE, NOON):
        arrivals = _hour(market, hour)
        learner.serve(arrivals, market.truth(arrivals))
    before = learner.snapshot()
    shock = worst_shock(before(arrivals), arrivals, seed, NOON)
    learner.market = shocked = _with(market, shock)
    minute, lost, won = [], [], []
    for hour in range(NOON, NOON + after):
        arrivals = _hour(shocked, hour)
        truth, hit = shocked.truth(arrivals), shock.concerns(arrivals, shocked.plan.start_ms)
        served = learner.serve(arrivals, truth).value[hit]
        some = arrivals.take(hit)
        told = lost_and_won(before(some), market.truth(some), truth[hit], some.eligible, served)
        minute.append((some.time_ms - shocked.plan.start_ms) / 60_000 - NOON * 60)
        lost.append(told[0])
        won.append(told[1])
    when = first_lasting(np.concatenate(minute), np.concatenate(lost), np.concatenate(won), after * 60)
    return when / 60, f"{shock.issuer} declines {shock.factor}={shock.value}"


def hours_alone(seed: int, per_hour: float, weeks: int = 4) -> float:
    """Return the hours from the shock to the first Monday whose generation has won it back.

    There is no overlay.
    """
    learner, market = taught_learner(seed, per_hour, per_hour, LoopPlan(train=QUICK, overlay=None))
    noon, before, arrivals = NOON + 2 * 24, learner.snapshot(), market.week(2)
    shock = worst_shock(before(arrivals), arrivals, seed, noon)
    learner.market = shocked = _with(market, shock)
    for week in range(2, 3 + weeks):
        arrivals = market.week(week)
        truth = shocked.truth(arrivals)
        if week > 2:
            learner.retrain(shocked.plan.week_ms(week))
            hit = shock.concerns(arrivals, shocked.plan.start_ms)
            some = arrivals.take(hit)
            served = (learner.pmf(some) * truth[hit]).sum(axis=1)
            lost, won = lost_and_won(before(some), market.truth(some), truth[hit], some.eligible, served)
            if won.sum() >= ENOUGH * lost.sum():
                break
        learner.serve(arrivals, truth)
    return float((week - 1) * 168 - noon)


def taught_learner(seed: int, per_hour: float, taught: float, plan: LoopPlan) -> tuple[Learner, Market]:
    """Return a learner that was trained on a week of the baseline, and a market without drift."""
    school = Market(WeeksPlan(per_hour=taught, swing=0, drift_week=None), seed)
    first = school.week(1)
    log = decide(school, first, baseline_pmf(first.contexts), "baseline")
    market = Market(WeeksPlan(per_hour=per_hour, swing=0, drift_week=None), seed)
    learner = Learner(market, authorise_task(), plan, log)
    learner.retrain(market.plan.week_ms(2))
    return learner, market


def worst_shock(pmf: Floats, arrivals: Arrivals, seed: int, hour: float) -> Shock:
    """Return the worst shock at an issuer that depends on the seed.

    It concerns the issuer's most used action family that almost every payment can avoid.
    """
    task, issuer = authorise_task(), seed * 5 % len(ISSUER_NAMES)
    here = arrivals.contexts.issuer == issuer
    used, eligible = pmf[here].mean(axis=0), arrivals.eligible[here]
    shares = {}
    for factor, values in FACTORS.items():
        for value in values:
            family = np.array([action.factors[factor] == value for action in task.actions])
            if eligible[:, ~family].any(axis=1).mean() > 0.95:
                shares[factor, value] = float(used[family].sum())
    factor, value = max(shares, key=lambda name: shares[name])
    return Shock(hour, ISSUER_NAMES[issuer], factor, value)


def lost_and_won(
    before: Floats, calm: Floats, truth: Floats, eligible: npt.NDArray[np.bool_], served: Floats
) -> tuple[Floats, Floats]:
    """Return `[n]` what the old policy loses of the attainable value, and `[n]` what is won back of it.

    Args:
        before: `[n, K]` probabilities of the policy of noon.
        calm: `[n, K]` truth without the shock.
        truth: `[n, K]` truth with the shock.
        eligible: `[n, K]` whether an action is eligible.
        served: `[n]` value of the served policy.
    """
    was, left = (before * calm).sum(axis=1), (before * truth).sum(axis=1)
    best = np.where(eligible, truth, -1.0).max(axis=1)
    return np.minimum(was, best) - left, served - left


def first_lasting(minute: Floats, lost: Floats, won: Floats, end: float) -> float:
    """Return the minutes until enough is won back for good; `end` if it never is.

    Enough must be won back in the last 15 of these minutes, and in the hour from their start.
    """
    for start in np.arange(0.0, end - WINDOW_MINUTES + 1, 5.0):
        spans = [(minute >= start) & (minute < start + size) for size in (WINDOW_MINUTES, LASTING_MINUTES)]
        if all(won[span].sum() >= ENOUGH * lost[span].sum() for span in spans):
            return float(start + WINDOW_MINUTES)
    return float(end)


def _hour(market: Market, hour: int) -> Arrivals:
    start = market.plan.start_ms + hour * HOUR_MS
    return market.day(hour // 24).between(start, start + HOUR_MS)


def _with(market: Market, shock: Shock) -> Market:
    return Market(replace(market.plan, shocks=(shock,)), market.seed)
