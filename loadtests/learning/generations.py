"""Value from one generation to the next over 26 weeks, compared with weekly retraining by inverse propensity.

Generation g is compared with g - 1 at the moment when it takes over: both on the payments of the week that
begins, in that week's world, by the truth (expected values, without the chance of outcomes). Other payments
or an issuer's drift can therefore not make a generation look worse. A drop is the amount by which g is worth
less there than g - 1 with its overlay at that time, which would otherwise have continued to serve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.loop.learner import QUICK, Learner, LoopPlan
from examples.simulators.outcomes import decide
from examples.simulators.payments import baseline_pmf
from examples.simulators.task import authorise_task
from examples.simulators.weeks import Market, WeeksPlan
from loadtests.figures import Figures
from loadtests.learning.options import Options

COMMAND = "make bench-learning ARGS=generations"
WEEKS, PER_HOUR, SEEDS = 26, 60.0, 2
OURS, PLAIN = "scorer", "weekly inverse propensity"

# The method of the article: every decision has weight 1/p, without an overlay, clipping or calibration.
INVERSE_PROPENSITY = LoopPlan(
    train=QUICK.model_copy(update={"tau": (1.0,), "clip": 1e9, "calibration": "none"}), overlay=None
)


@dataclass(frozen=True)
class Year:
    """The results of one run.

    Attributes:
        value: `[weeks]` mean P(authorised) under the served policy.
        best: `[weeks]` mean P(authorised) of the best eligible actions.
        drop: `[weeks - 1]` the amount by which each new generation was worth less than the one that it
            replaced. The first generation replaces none.
    """

    value: list[float]
    best: list[float]
    drop: list[float]


def live(seed: int, plan: LoopPlan, weeks: int, per_hour: float) -> Year:
    """Simulate a week of the baseline, then `weeks` weeks of learning. Issuers drift in the sixth."""
    market, task = Market(WeeksPlan(weeks=weeks + 1, per_hour=per_hour, drift_week=7), seed), authorise_task()
    first = market.week(1)
    learner = Learner(market, task, plan, decide(market, first, baseline_pmf(first.contexts), "baseline"))
    value, best, drop = [], [], []
    for week in range(2, weeks + 2):
        arrivals = market.week(week)
        truth = market.truth(arrivals)

        def worth() -> float:
            return float((learner.pmf(arrivals) * truth).sum(axis=1).mean())  # noqa: B023 (used at once)

        before = worth() if week > 2 else None
        learner.retrain(market.plan.week_ms(week))
        if before is not None:
            drop.append(before - worth())
        value.append(float(learner.serve(arrivals, truth).value.mean()))
        best.append(float(market.best(arrivals, truth).mean()))
    return Year(value, best, drop)


def run(figures: Figures, options: Options) -> None:
    """Measure both solutions on the same payments."""
    weeks, per_hour = (3, 10.0) if options.quick else (WEEKS, PER_HOUR)
    seeds = options.seeds[: 1 if options.quick else SEEDS]
    ours = [live(seed, LoopPlan(), weeks, per_hour) for seed in seeds]
    plain = [live(seed, INVERSE_PROPENSITY, weeks, per_hour) for seed in seeds]
    worst, median = zip(*(_drops(years) for years in (ours, plain)), strict=True)
    sizes = f"{weeks} weeks of {per_hour * 168:,.0f} payments, seeds {', '.join(map(str, seeds))}"
    figures.add(
        name="worst drop from one generation to the next, points",
        ours=worst[0],
        unit="points of authorisation rate",
        target=0.5,
        command=COMMAND,
        note=f"{sizes}; worst of a seed, median {median[0]:.2f}; {PLAIN}: worst {worst[1]:.2f},"
        f" median {median[1]:.2f}; both generations on the same week's payments and world, by truth",
    )
    regrets = [
        float(np.mean([np.subtract(y.best, y.value).mean() for y in years])) for years in (ours, plain)
    ]
    figures.add(
        name="mean regret over the weeks, points",
        ours=100 * regrets[0],
        unit="points of authorisation rate",
        peer=PLAIN,
        theirs=100 * regrets[1],
        command=COMMAND,
        note=sizes,
    )
    for week in range(weeks):
        figures.add(
            name="value per generation",
            ours=100 * float(np.mean([year.value[week] for year in ours])),
            unit="authorised, %, by truth",
            peer=PLAIN,
            theirs=100 * float(np.mean([year.value[week] for year in plain])),
            command=COMMAND,
            higher_is_better=True,
            plot="generations",
            x=week + 1,
        )


def _drops(years: list[Year]) -> tuple[float, float]:
    """Return the worst drop of all seeds, and the median of the seeds' worst drops, in points.

    A drop below 0 counts as 0.
    """
    worst = [100 * max(0.0, *year.drop) for year in years]
    return max(worst), float(np.median(worst))
