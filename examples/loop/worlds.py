"""Regret of learning solutions in many worlds, with paired ratios and intervals over worlds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.training.settings import TrainSettings

OURS, FRESH, PLAIN, LINEAR, RULES, LINUCB, VW = (
    "scorer",
    "scorer, overlay from zero",
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
class Play:
    """How a world is played.

    Attributes:
        weeks: Number of weeks, at least 2.
        payments: Payments per week.
        seed: Seed of the traffic.
    """

    weeks: int = 9
    payments: int = 5_000
    seed: int = 1


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

    def learner(plan: LoopPlan) -> Callable[[Market, Experience], Solution]:
        return lambda market, log: Learner(market, authorise_task(), plan, log)

    made: dict[str, Callable[[Market, Experience], Solution]] = {
        OURS: learner(PLAN),
        FRESH: learner(replace(PLAN, carries=False)),
        PLAIN: learner(replace(PLAN, overlay=None)),
        LINEAR: solutions.linear,
        RULES: solutions.rules,
        LINUCB: LinUcb,
    }
    return made | ({VW: vowpal.VowpalWabbit} if with_vw else {})


def measure(spec: WorldSpec, play: Play, names: Sequence[str]) -> list[Measured]:
    """Play solutions in one world.

    Week 1 is drawn uniformly over the eligible actions and is the same for all. From week 2 on each solution
    uses its own decisions, and their outcomes as they become known.

    Args:
        spec: The world.
        play: Its weeks, payments and traffic.
        names: Names of the solutions.
    """
    market = Market(WeeksPlan(weeks=play.weeks, per_hour=play.payments / 168), play.seed, spec)
    first = market.week(1)
    even = first.eligible / first.eligible.sum(axis=1, keepdims=True)
    log = decide(market, first, even, "uniform")
    known = makers(with_vw=VW in names)
    playing = {name: known[name](market, log) for name in names}
    regret: dict[str, list[float]] = {name: [] for name in playing}
    for week in range(2, play.weeks + 1):
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
    play: Play,
    jobs: int,
    names: Sequence[str] = (),
    lines: Path | None = None,
    advance: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Play solutions in every world, or read what an earlier run has measured.

    Args:
        specs: The worlds.
        play: Weeks, payments and traffic.
        jobs: Number of worlds that are played in parallel.
        names: Names of the solutions; none: all, with Vowpal Wabbit only if it is installed.
        lines: File that gets a line of JSON for each solution and world as soon as it is measured. What it
            has already for the same world and play is not played again. None: there is no such file.
        advance: Called with the name of each finished world.

    Raises:
        DataError: A name is unknown, a line is not one of this command, or the file cannot be used.
    """
    wanted = _wanted(names)
    done = {} if lines is None else read_lines(lines, play)
    with ProcessPoolExecutor(jobs) as pool:
        running = {}
        for spec in specs:
            missing = [name for name in wanted if (spec, name) not in done]
            if missing:
                running[pool.submit(measure, spec, play, missing)] = spec
            else:
                advance(spec.name)
        for future in as_completed(running):
            spec, found = running[future], future.result()
            done |= {(spec, one.solution): one for one in found}
            if lines is not None:
                _append_lines(lines, spec, play, found)
            advance(spec.name)
    return [done[spec, name] for spec in specs for name in wanted]


def _wanted(names: Sequence[str]) -> list[str]:
    known = list(makers(with_vw=vowpal.is_installed()))
    # Names contain commas.
    quoted = [f'"{name}"' for name in known]
    for name in names:
        if name == VW and VW not in known:
            raise DataError(f'solution "{VW}": the package vowpalwabbit is not installed; install it')
        if name not in known:
            raise DataError(f'solution "{name}" is unknown; one of {", ".join(quoted)}')
    return [name for name in known if name in names] if names else known


def read_lines(path: Path, play: Play) -> dict[tuple[WorldSpec, str], Measured]:
    """Return what the lines of earlier runs say about worlds that were played like `play`.

    A last line that was not written completely is ignored; later lines replace earlier ones.

    Raises:
        DataError: A line is not one of this command, or the file cannot be read.
    """
    found: dict[tuple[WorldSpec, str], Measured] = {}
    try:
        # A file that cannot be written is found before hours of work.
        path.touch()
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: it cannot be used ({error}); give another file") from None
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            content = json.loads(line)
            spec, of_play = WorldSpec(**content["world"]), Play(**content["play"])
            one = Measured(spec.name, content["solution"], tuple(map(float, content["regret"])))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{path}: line {number} is not a result of this command; remove the line or give another file"
            ) from None
        if of_play == play:
            found[spec, one.solution] = one
    return found


def _append_lines(path: Path, spec: WorldSpec, play: Play, found: Sequence[Measured]) -> None:
    text = path.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        # An interrupted run left a part of a line.
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        for one in found:
            content = {"world": asdict(spec), "play": asdict(play), "solution": one.solution}
            file.write(json.dumps(content | {"regret": one.regret}) + "\n")


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
    """Return the content of the result file: settings, worlds, regrets, ratios and omitted solutions.

    Ratios have the first solution in the numerator.
    """
    return {
        "settings": dict(settings),
        "worlds": [asdict(spec) for spec in specs],
        "regret": [asdict(one) | {"mean": one.mean} for one in measured],
        "ratios": [asdict(one) for one in ratios(measured, measured[0].solution)],
        "skipped": [] if vowpal.is_installed() else [f"{VW}: the package vowpalwabbit is not installed"],
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write the result file as JSON."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
