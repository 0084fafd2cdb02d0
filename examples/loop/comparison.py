"""The article's two months: an A/B test of the old solution and of the one that learns, on shoppers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from examples.loop import solutions
from examples.loop.learner import Learner, LoopPlan
from examples.loop.solutions import Solution
from examples.simulators.outcomes import as_of, decide
from examples.simulators.payments import baseline_pmf
from examples.simulators.task import authorise_task
from examples.simulators.weeks import Market, WeeksPlan
from scorer.learn.ab.scores import differences
from scorer.learn.experience import Experience, State, concatenate
from scorer.stats.sample_ratio import RatioCheck, check_ratio
from scorer.stats.sequences import clustered_mean, tuned_rho2

Floats = npt.NDArray[np.float64]
DAY_MS = 86_400_000
ARMS = ("old", "new")
ALPHA = 0.05


@dataclass(frozen=True)
class Rate:
    """An arm's authorisation rate in a week, from the known outcomes.

    Attributes:
        payments: Number of outcomes.
        value: Mean of the outcomes.
        low: Lower end of the 95 % Wilson interval.
        high: Upper end of the interval.
        truth: Mean true P(authorised) of all decisions, which only a simulation knows.
    """

    payments: int
    value: float
    low: float
    high: float
    truth: float


@dataclass(frozen=True)
class ComparedWeek:
    """Both arms in one week.

    Attributes:
        week: Number of the week, from 1.
        rates: Rates of the old and of the new arm.
        best: Mean true P(authorised) of the best eligible actions.
    """

    week: int
    rates: tuple[Rate, Rate]
    best: float


@dataclass(frozen=True)
class Day:
    """The result of the A/B test at the end of a day: new minus old, with an interval valid for all days.

    Attributes:
        day: Number of the day, from 1.
        outcomes: Number of outcomes that are known by then.
        value: Difference of authorisation rates.
        low: Lower end of the 95 % confidence sequence.
        high: Upper end of the confidence sequence.
    """

    day: int
    outcomes: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ReferenceRate:
    """A solution that decides the new arm's payments in a separate simulation and learns from its own log.

    Attributes:
        name: Name in tables.
        truth: Its mean true P(authorised) over all weeks.
        difference: Mean of the new arm's true P(authorised) minus its own, payment by payment.
        low: Lower end of the 95 % interval, with shoppers as clusters.
        high: Upper end of the interval.
    """

    name: str
    truth: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """The result of the A/B test.

    Attributes:
        weeks: The weeks in order.
        days: The days in order.
        ratio: Check whether shoppers are split as planned.
        references: Simpler solutions on the new arm's payments.
        seed: Seed of the traffic.
        per_hour: Payments per hour of both arms together.
    """

    weeks: tuple[ComparedWeek, ...]
    days: tuple[Day, ...]
    ratio: RatioCheck
    references: tuple[ReferenceRate, ...]
    seed: int
    per_hour: float


REFERENCES: Mapping[str, Callable[[Market, Experience], Solution]] = {
    "uniform choice": solutions.uniform,
    "one fixed ranking, derived weekly": solutions.ranking,
    "rules per issuer, derived weekly": solutions.rules,
    "linear model per issuer, retrained weekly": solutions.linear,
}


def compare(
    weeks: int,
    per_week: int,
    seed: int,
    plan: LoopPlan | None = None,
    advance: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Run both solutions in an A/B test, and simpler ones on the new arm's payments.

    In a week before the test, a fifth of the payments is drawn uniformly over the eligible actions. The old
    solution's A/B tests are evaluated on it, and the new one's first generation is trained on it. Then
    shoppers are split in halves by a keyed hash. Issuers drift in week 6. Each arm uses only its own
    payments. Both learn every week: the old one continues to test on a fifth of its payments and derives its
    rules anew.

    Args:
        weeks: Length of the test in weeks.
        per_week: Payments per week of both arms together.
        seed: Seed of the traffic.
        plan: Plan of the new solution; None: the default.
        advance: Called with the name of each finished week.
    """
    market = Market(WeeksPlan(weeks=weeks + 1, per_hour=per_week / 168, drift_week=7), seed)
    first = market.week(1)
    before = decide(market, first, baseline_pmf(first.contexts), "baseline", ARMS[0])
    begin = market.plan.week_ms(2)
    arms: tuple[Solution, Solution] = (
        solutions.rules(market, before),
        Learner(market, authorise_task(), plan or LoopPlan(), before, ARMS[1]),
    )
    references = {name: make(market, before) for name, make in REFERENCES.items()}
    compared, logs = [], []
    shoppers: list[npt.NDArray[np.int64]] = []
    values: dict[str, list[Floats]] = {name: [] for name in (ARMS[1], *references)}
    for week in range(1, weeks + 1):
        arrivals = market.week(week + 1)
        truth, best = market.truth(arrivals), []
        new = np.array([arm(name) for name in arrivals.entity], dtype=bool)
        now = market.plan.week_ms(week + 1)
        rates = []
        for solution, name, rows in zip(arms, ARMS, (~new, new), strict=True):
            own, hidden = arrivals.take(rows), truth[rows]
            solution.retrain(now)
            served = solution.serve(own, hidden)
            decided = replace(served.experience, lanes=(name,), lane=np.zeros(len(own), dtype=np.int64))
            best.append(market.best(own, hidden))
            rates.append(_rate(decided.reward[decided.state == State.SETTLED], float(served.value.mean())))
            logs.append(decided)
        values[ARMS[1]].append(served.value)
        shoppers.append(own.shopper)
        for name, reference in references.items():
            reference.retrain(now)
            values[name].append(reference.serve(own, hidden).value)
        compared.append(ComparedWeek(week, (rates[0], rates[1]), float(np.concatenate(best).mean())))
        advance(f"week {week}")
    days, ratio = _days(concatenate(logs), begin, weeks * 7)
    ours, clusters = np.concatenate(values.pop(ARMS[1])), np.concatenate(shoppers)
    beside = [_reference(name, ours, np.concatenate(parts), clusters) for name, parts in values.items()]
    return Comparison(tuple(compared), days, ratio, tuple(beside), seed, market.plan.per_hour)


def _reference(name: str, ours: Floats, theirs: Floats, shopper: npt.NDArray[np.int64]) -> ReferenceRate:
    gap = ours - theirs
    value = float(gap.mean())
    sums = np.bincount(shopper, gap - value)
    half = 1.959964 * float(np.sqrt((sums**2).sum())) / len(gap)
    return ReferenceRate(name, float(theirs.mean()), value, value - half, value + half)


def arm(shopper: str, key: bytes = b"compare") -> int:
    """Return 0 or 1 with equal probability, always the same for a shopper."""
    return hashlib.blake2b(shopper.encode(), key=key, digest_size=8).digest()[0] & 1


def _days(log: Experience, begin_ms: int, days: int) -> tuple[tuple[Day, ...], RatioCheck]:
    """Return the test at every midnight, from the outcomes known by then, and the check of the split."""
    log = log.take(np.argsort(log.time_ms, kind="stable"))
    new = np.array([log.lanes[code] == ARMS[1] for code in log.lane]).astype(np.int64)
    shopper = np.unique(log.entity, return_inverse=True)[1]
    # Fixed before the first look: narrowest at half of the test, for the variance of authorisations near 0.8.
    rho2 = tuned_rho2(ALPHA, 4 * 0.16 * len(log) / 2)
    read = []
    for day in range(1, days + 1):
        settled = as_of(log, begin_ms + day * DAY_MS)
        known = settled.state == State.SETTLED
        rows = np.flatnonzero(known)
        score = differences(new[rows], log.reward[rows], np.zeros((len(rows), 2)), (0.5, 0.5), 1)
        found = clustered_mean(score, shopper[rows], ALPHA, rho2)
        read.append(Day(day, len(rows), found.value, found.low, found.high))
    first = np.unique(shopper, return_index=True)[1]
    counts = np.bincount(new[first], minlength=2)
    return tuple(read), check_ratio([int(n) for n in counts], (0.5, 0.5), ALPHA)


def _rate(reward: Floats, truth: float) -> Rate:
    """Return the rate of the outcomes with Wilson's interval."""
    n, p, z = len(reward), float(reward.mean()), 1.959964
    middle, half = (p + z * z / (2 * n)), z * float(np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)))
    return Rate(n, p, (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n), truth)
