"""Regret of learning solutions in many worlds, with paired ratios and intervals over worlds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from examples.loop import solutions, vowpal
from examples.loop.learner import Learner, LoopPlan
from examples.loop.linucb import LinUcb
from examples.loop.solutions import Solution
from examples.simulators.outcomes import decide
from examples.simulators.payments import Floats
from examples.simulators.task import authorise_task
from examples.simulators.weeks import Market, WeeksPlan
from examples.simulators.worlds import WorldSpec
from scorer.learn.experience import Experience
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.training.settings import TrainSettings

OURS, PLAIN, LINEAR, RULES, LINUCB, VW = (
    "scorer",
    "scorer without overlay",
    "linear model per issuer, weekly",
    "rules per issuer, weekly",
    "LinUCB, online",
    "Vowpal Wabbit, online",
)
# Small forests and two folds, so that a world takes minutes on one core.
PLAN = LoopPlan(
    train=TrainSettings(trees=60, depth=4, learning_rate=0.15, tau=(0.0,), folds=2, compare=False, threads=1),
    overlay=OverlaySettings(every_minutes=360),
)
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Measured:
    """Regret of one solution in one world.

    Attributes:
        world: Name of the world.
        solution: Name of the solution.
        regret: `[weeks - 1]` mean regret per payment in each week from week 2 on: the best eligible action's
            P(authorised) minus the served policy's, by the hidden truth.
    """

    world: str
    solution: str
    regret: tuple[float, ...]

    def at(self, world: str, solution: str) -> bool:
        """Return whether this is the regret of `solution` in `world`."""
        return (self.world, self.solution) == (world, solution)

    @property
    def mean(self) -> float:
        """Mean regret over the weeks."""
        return float(np.mean(self.regret))


@dataclass(frozen=True)
class Ratio:
    """Regret of `solution` divided by that of `peer`, both summed over worlds, with a 95 % interval.

    Attributes:
        solution: Name of the solution in the numerator.
        peer: Name of the solution in the denominator.
        value: Ratio of the means over worlds; below 1 if `solution` has less regret.
        low: Lower end of the bootstrap interval over worlds.
        high: Upper end of the interval.
        less_in: Number of worlds in which `solution` has less regret.
        worlds: Number of worlds.
    """

    solution: str
    peer: str
    value: float
    low: float
    high: float
    less_in: int
    worlds: int


def makers(*, with_vw: bool) -> dict[str, Callable[[Market, Experience], Solution]]:
    """Return functions that create the solutions from a market and the log of week 1, by name.

    Args:
        with_vw: Whether to include Vowpal Wabbit, which must be installed.
    """

    def ours(market: Market, log: Experience) -> Solution:
        return Learner(market, authorise_task(), PLAN, log)

    def plain(market: Market, log: Experience) -> Solution:
        return Learner(market, authorise_task(), replace(PLAN, overlay=None), log)

    made: dict[str, Callable[[Market, Experience], Solution]] = {
        OURS: ours,
        PLAIN: plain,
        LINEAR: solutions.linear,
        RULES: solutions.rules,
        LINUCB: LinUcb,
    }
    return made | ({VW: vowpal.VowpalWabbit} if with_vw else {})


def measure(spec: WorldSpec, weeks: int, per_week: int, seed: int, *, with_vw: bool) -> list[Measured]:
    """Play every solution in one world.

    Week 1 is drawn uniformly over the eligible actions and is the same for all. From week 2 on each solution
    uses its own decisions, and their outcomes as they become known.

    Args:
        spec: The world.
        weeks: Number of weeks, at least 2.
        per_week: Payments per week.
        seed: Seed of the traffic.
        with_vw: Whether to include Vowpal Wabbit.
    """
    market = Market(WeeksPlan(weeks=weeks, per_hour=per_week / 168), seed, spec)
    first = market.week(1)
    even = first.eligible / first.eligible.sum(axis=1, keepdims=True)
    log = decide(market, first, even, "uniform")
    playing = {name: make(market, log) for name, make in makers(with_vw=with_vw).items()}
    regret: dict[str, list[float]] = {name: [] for name in playing}
    for week in range(2, weeks + 1):
        arrivals = market.week(week)
        truth = market.truth(arrivals)
        best = market.best(arrivals, truth)
        for name, solution in playing.items():
            solution.retrain(market.plan.week_ms(week))
            served = solution.serve(arrivals, truth)
            regret[name].append(float((best - served.value).mean()))
    return [Measured(spec.name, name, tuple(values)) for name, values in regret.items()]


def measure_all(
    specs: Sequence[WorldSpec],
    weeks: int,
    per_week: int,
    seed: int,
    jobs: int,
    advance: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Play every solution in every world; Vowpal Wabbit only if it is installed.

    Args:
        specs: The worlds.
        weeks: Number of weeks, at least 2.
        per_week: Payments per week.
        seed: Seed of the traffic.
        jobs: Number of worlds that are played in parallel.
        advance: Called with the name of each finished world.
    """
    with_vw = vowpal.is_installed()
    measured: list[Measured] = []
    with ProcessPoolExecutor(jobs) as pool:
        running = [pool.submit(measure, spec, weeks, per_week, seed, with_vw=with_vw) for spec in specs]
        for spec, future in zip(specs, running, strict=True):
            measured += future.result()
            advance(spec.name)
    return measured


def ratios(measured: Sequence[Measured], solution: str = OURS, seed: int = 0) -> list[Ratio]:
    """Compare `solution` with every other one, world by world.

    Args:
        measured: Every solution in each of several worlds.
        solution: Name of the solution in the numerator.
        seed: Seed of the bootstrap.
    """
    table = _by_solution(measured)
    ours = table.pop(solution)
    drawn = np.random.default_rng(seed).integers(len(ours), size=(_RESAMPLES, len(ours)))
    found = []
    for peer, theirs in table.items():
        low, high = np.quantile(ours[drawn].mean(axis=1) / theirs[drawn].mean(axis=1), [0.025, 0.975])
        found.append(
            Ratio(
                solution,
                peer,
                float(ours.mean() / theirs.mean()),
                float(low),
                float(high),
                int((ours < theirs).sum()),
                len(ours),
            )
        )
    return found


def _by_solution(measured: Sequence[Measured]) -> dict[str, Floats]:
    names = dict.fromkeys(one.solution for one in measured)
    return {name: np.array([one.mean for one in measured if one.solution == name]) for name in names}


def as_dict(
    specs: Sequence[WorldSpec], measured: Sequence[Measured], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of the result file: settings, worlds, regrets, ratios and omitted solutions."""
    return {
        "settings": dict(settings),
        "worlds": [asdict(spec) for spec in specs],
        "regret": [asdict(one) | {"mean": one.mean} for one in measured],
        "ratios": [asdict(one) for one in ratios(measured)],
        "skipped": [] if vowpal.is_installed() else [f"{VW}: the package vowpalwabbit is not installed"],
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write the result file as JSON."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
