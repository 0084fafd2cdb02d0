"""Simulated payments, decided by one rule: a generation per week, and optionally an overlay in between.

Week 1 is uniform over the eligible actions and the same for all. From week 2 on every solution has the same
kind of oracle, trained at the start of the week on what is known by then of its own last eight weeks.
Outcomes are late, and some are never known. The market drifts at the start of week 6. Regret is computed from
the hidden truth, which is used for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from examples.simulators.outcomes import as_of, decide
from examples.simulators.task import authorise_task
from examples.simulators.weeks import WEEK_MS, Arrivals, Market, WeeksPlan
from loadtests.learning.exploration.oracle import Recipe, Trained
from loadtests.learning.exploration.play import beyond_noise
from loadtests.learning.exploration.view import Floats, Rule, View
from scorer.learn.experience import Experience, State, concatenate
from scorer.learn.logistic import sigmoid
from scorer.learn.oracle import OracleTask, xgboost_types
from scorer.learn.overlay.delays import Delays
from scorer.learn.overlay.design import Design, logit
from scorer.learn.overlay.learner import OverlayLearner
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.overlay.stream import OutcomeStream, catch_up

WINDOW_WEEKS = 8
# At 30 payments an hour, more frequent fits would have no new outcomes.
OVERLAY = OverlaySettings(every_minutes=360)
# Weeks of outcomes from which the overlay of a new generation starts.
CARRIED_WEEKS = WINDOW_WEEKS


@dataclass(frozen=True)
class Solution:
    """A rule, with or without our overlay."""

    name: str
    rule: Rule
    overlay: bool = False


@dataclass(frozen=True)
class World:
    """Traffic and truth of one seed, the same for every solution."""

    market: Market
    task: OracleTask
    seed: int
    weeks: list[tuple[Arrivals, Floats, Floats]]
    """For each week: payments, `[n, K]` truth, and `[n]` the highest value of an eligible action."""

    @cached_property
    def recipe(self) -> Recipe:
        """The oracle's settings, smaller than those of the prototype in docs/exploration.md."""
        return Recipe(
            context=xgboost_types(self.task.context),
            action=xgboost_types(self.task.action),
            actions=self.task.action_rows(),
            trees=60,
            depth=4,
            learning_rate=0.15,
            min_child_weight=10.0,
            sampled=0.7,
        )


def prepared(seed: int, weeks: int, a_week: int) -> World:
    """Simulate the traffic of a seed."""
    market = Market(WeeksPlan(weeks=weeks, per_hour=a_week / 168), seed)
    made = []
    for week in range(1, weeks + 1):
        arrivals = market.week(week)
        truth = market.truth(arrivals)
        arrivals.eligible, arrivals.rows, arrivals.entity  # noqa: B018 (made here, once for all)
        made.append((arrivals, truth, market.best(arrivals, truth)))
    return World(market, authorise_task(), seed, made)


def solve(world: World, solution: Solution) -> Floats:
    """Return `[weeks]` mean expected regret per payment."""
    log, regret, state = [], [], {}
    for week, (arrivals, truth, best) in enumerate(world.weeks, start=1):
        if week == 1:
            pmf = arrivals.eligible / arrivals.eligible.sum(axis=1, keepdims=True)
            made = decide(world.market, arrivals, pmf, "first", truth=truth)
        else:
            made, pmf = _week(world, solution, week, concatenate(log), state)
        log.append(made)
        regret.append(float((best - (pmf * truth).sum(axis=1)).mean()))
    return np.array(regret)


def _week(
    world: World, solution: Solution, week: int, log: Experience, state: dict[str, Any]
) -> tuple[Experience, Floats]:
    start = world.market.plan.week_ms(week)
    arrivals, truth, _ = world.weeks[week - 1]
    since = start - WINDOW_WEEKS * WEEK_MS
    known = as_of(log.take(log.time_ms >= since), start)
    taught = known.settled()
    oracle = world.recipe.train(taught.context, taught.action, taught.reward, seed=world.seed)
    scores = _every(world, oracle, arrivals)
    halves = Halves(world, taught)
    whole = _view(world, solution, arrivals, scores, oracle, taught, halves, state)
    if not solution.overlay:
        pmf = solution.rule.pmf(whole)
        return decide(world.market, arrivals, pmf, f"week-{week}", truth=truth), pmf
    design = Design(world.task, OVERLAY.segment)
    delays = Delays.measured(known, world.task, start, factor=OVERLAY.family, quantile=OVERLAY.quantile)
    stream, learner = OutcomeStream(design, delays), OverlayLearner(design, OVERLAY)
    _carry(stream, learner, log, known, halves, oracle, start)
    base, table = logit(scores), design.codes(arrivals.rows)
    pmf, parts, every = np.empty_like(truth), [], round(OVERLAY.every_minutes * 60_000)
    for now in range(start, start + WEEK_MS, every):
        learner.learn(*stream.due(now), now)
        low, high = (int(at) for at in np.searchsorted(arrivals.time_ms, [now, now + every]))
        if high == low:
            continue
        part = slice(low, high)
        adjusted = sigmoid(base[part] + learner.table[table[part]])
        pmf[part] = solution.rule.pmf(replace(whole, scores=adjusted, eligible=arrivals.eligible[part]))
        made = decide(world.market, arrivals.take(part), pmf[part], f"week-{week}", truth=truth[part])
        stream.push(made, scores[part][np.arange(high - low), made.action])
        parts.append(made)
    return concatenate(parts), pmf


def _carry(
    stream: OutcomeStream,
    learner: OverlayLearner,
    log: Experience,
    known: Experience,
    halves: Halves,
    oracle: Trained,
    start: int,
) -> None:
    """Start the overlay of a new generation from earlier outcomes, with out-of-fold predictions."""
    recent = known.time_ms >= start - CARRIED_WEEKS * WEEK_MS
    settled = known.state == State.SETTLED
    scores = np.full(len(known), np.nan)
    scores[settled] = halves.probability
    waiting = recent & ~settled
    scores[waiting] = oracle.chosen(known.context[waiting], known.action[waiting])
    future = log.take(log.time_ms >= int(known.time_ms[0]))
    stream.push(future.take(recent), scores[recent])
    catch_up(stream, learner, start)


@dataclass(frozen=True)
class Halves:
    """The predictions of two oracles, each trained on one half of the log, for the other half."""

    world: World
    taught: Experience

    @cached_property
    def probability(self) -> Floats:
        """`[n]` out-of-fold probabilities."""
        taught, recipe = self.taught, self.world.recipe
        half = np.random.default_rng([self.world.seed, len(taught), 6]).random(len(taught)) < 0.5
        out = np.zeros(len(taught))
        for own in (half, ~half):
            rest = ~own
            other = recipe.train(
                taught.context[rest], taught.action[rest], taught.reward[rest], seed=self.world.seed
            )
            out[own] = other.chosen(taught.context[own], taught.action[own])
        return out


def _every(world: World, oracle: Trained, arrivals: Arrivals) -> Floats:
    """Return `[n, K]` P(reward) from the engine, whose results equal XGBoost's."""
    from scorer.bundle import PolicySpec
    from scorer.learn.training.preview import preview

    bundle = preview(world.task, oracle.booster, PolicySpec(rule="uniform", salt="00" * 16))
    rewards = bundle.evaluate(arrivals.rows)[1]
    return np.asarray(rewards, dtype=np.float64)


def _view(
    world: World,
    solution: Solution,
    arrivals: Arrivals,
    scores: Floats,
    oracle: Trained,
    taught: Experience,
    halves: Halves,
    state: dict[str, Any],
) -> View:
    def members(count: int) -> Floats:
        rng = np.random.default_rng([world.seed, len(taught), 5])
        out = []
        for number in range(count):
            weights = rng.poisson(1, len(taught)).astype(np.float64)
            one = world.recipe.train(
                taught.context, taught.action, taught.reward, seed=world.seed + number, weights=weights
            )
            out.append(_every(world, one, arrivals))
        return np.stack(out)

    return View(
        scores=scores,
        eligible=arrivals.eligible,
        learned=len(taught),
        counts=np.bincount(taught.action, minlength=scores.shape[1]),
        members=members,
        sensitivity=lambda: oracle.sensitivity(arrivals.rows, arrivals.eligible),
        excess=lambda: beyond_noise(halves.probability, taught.reward),
        state=state,
    )
