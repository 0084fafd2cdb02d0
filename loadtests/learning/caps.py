"""Caps on the share of challenges and on cost while the behaviour of issuers changes.

The figures cover a week of simulated payments. The prices of the caps are computed once on its first day. A
controller then adjusts them every 15 minutes; the same prices without a controller are measured for
comparison. On the third day the preferences of three issuers change (the simulator's own drift). On the
fourth and on the sixth day one issuer begins to decline payments without a challenge, and on the fifth day
one issuer declines the cheapest route for 30 hours. The oracle knows the true value of every action
immediately, which is the worst case for a cap, because demand changes within one window.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from examples.simulators.actions import catalogue
from examples.simulators.weeks import Arrivals, Market, Shock, WeeksPlan
from loadtests.figures import Figures
from loadtests.learning.options import Options
from scorer.bundle import Action, PolicySpec
from scorer.bundle.policy import Policy
from scorer.learn.guardrails.audit import floor_of
from scorer.learn.guardrails.caps import Duals, attribute_table, solve_caps
from scorer.learn.guardrails.controller import CapState, ControllerSettings

Floats = npt.NDArray[np.float64]

# EUR per attempt: fees of acquirers and of authentication, invented and fixed.
COST: Final[Mapping[str, Mapping[str, float]]] = {
    "route": {"A": 0.06, "B": 0.08, "C": 0.04, "D": 0.10},
    "three_ds": {"frictionless": 0.03, "challenge": 0.06},
    "retry": {"soft_decline": 0.02},
    "message": {"address": 0.02, "network_token": 0.01},
}
LIMITS: Final = {"challenge": 0.05, "cost": 0.09}
FIRST_DAY, DAYS, PER_HOUR = 5, 7, 1_000
SHOCKS: Final = (
    *(Shock(24 * 8 + 12, "ES-bank-6", "three_ds", value) for value in ("none", "frictionless")),
    Shock(24 * 9 + 18, "DE-bank-2", "route", "C", hours=30),
    *(Shock(24 * 10 + 9, "FR-bank-5", "three_ds", value) for value in ("none", "frictionless")),
)
SEEDS = 5
COMMAND = "make bench-learning ARGS=caps"


@dataclass(frozen=True)
class Run:
    """The results of one seed.

    Attributes:
        worst: For each cap, its largest mean over a trailing day, as a multiple of the limit.
        beyond: Number of trailing days with a mean beyond the band.
        trailing_days: Number of trailing days that were checked.
    """

    worst: Mapping[str, float]
    beyond: int
    trailing_days: int
    value: float
    """Mean expected reward of a decision."""
    decisions: int
    broken: int
    """Number of pmfs that do not sum to 1, are below a floor, or give an ineligible action a probability."""


def run(figures: Figures, options: Options) -> None:
    """Measure all seeds and add the figures."""
    began = time.monotonic()
    days = 3 if options.quick else DAYS
    settings, held, frozen, hindsight = ControllerSettings(), [], [], []
    for seed in options.seeds[: 1 if options.quick else SEEDS]:
        market = Market(_plan(), seed)
        arrivals = market.days(FIRST_DAY, FIRST_DAY + days)
        scores = market.truth(arrivals)
        first = arrivals.time_ms < market.plan.start_ms + (FIRST_DAY + 1) * 86_400_000
        solved = solve_caps(SPEC, ACTIONS, scores[first], arrivals.eligible[first], LIMITS)
        live = arrivals.take(~first)
        held.append(_serve(live, scores[~first], solved, settings, move=True))
        frozen.append(_serve(live, scores[~first], solved, settings, move=False))
        best = solve_caps(SPEC, ACTIONS, scores[~first], live.eligible, LIMITS)
        hindsight.append(best.value)
    looks = sum(one.trailing_days for one in held)
    note = (
        f"{sum(one.decisions for one in held):,} decisions, {len(held)} seeds, {looks:,} trailing days, one"
        f" every 15 minutes; band {settings.band:.0%} of the limit; caps {_caps()}"
    )
    figures.add(
        name="cap violations beyond the band",
        ours=sum(one.beyond for one in held),
        unit="trailing days",
        target=0,
        command=COMMAND,
        note=f"{note}; the prices of the first day alone: {sum(one.beyond for one in frozen):,}",
    )
    for name in LIMITS:
        figures.add(
            name=f"worst trailing day, {name}",
            ours=100 * max(one.worst[name] for one in held),
            unit="% of the limit",
            target=100 * (1 + settings.band),
            command=COMMAND,
            note=f"the prices of the first day alone: {100 * max(one.worst[name] for one in frozen):.0f} %",
        )
    figures.add(
        name="reward under the controller",
        ours=100 * float(np.mean([one.value for one in held])),
        unit="% authorised",
        peer="one price with hindsight",
        theirs=100 * float(np.mean(hindsight)),
        higher_is_better=True,
        command=COMMAND,
        note="what holding the caps costs against the best constant prices of the whole run",
    )
    figures.add(
        name="pmf violations",
        ours=sum(one.broken for one in (*held, *frozen)),
        unit="decisions",
        target=0,
        command=COMMAND,
        note=f"sum, floors, masks of all {sum(one.decisions for one in (*held, *frozen)):,} decisions"
        f" ({time.monotonic() - began:.0f} s)",
    )


def _serve(
    arrivals: Arrivals, scores: Floats, solved: Duals, settings: ControllerSettings, *, move: bool
) -> Run:
    states = [
        CapState(name, limit, price, steep)
        for name, limit, price, steep in zip(
            solved.attributes, solved.limits, solved.prices, solved.sensitivity, strict=True
        )
    ]
    table = attribute_table(ACTIONS, solved.attributes)
    slot = arrivals.time_ms // round(settings.window_minutes * 60_000)
    edges = [0, *(np.flatnonzero(np.diff(slot)) + 1).tolist(), len(arrivals)]
    worst = dict.fromkeys(solved.attributes, 0.0)
    beyond = looks = broken = 0
    value = 0.0
    for start, end in itertools.pairwise(edges):
        eligible = arrivals.eligible[start:end]
        spec = SPEC.model_copy(update={"caps": [_cap(state) for state in states]})
        pmf = Policy(spec, ACTIONS).pmf(scores[start:end], eligible)
        broken += _broken(pmf, eligible)
        value += float((pmf * scores[start:end]).sum())
        used = pmf.mean(axis=0) @ table.T
        for at, state in enumerate(states):
            after = state.step(end - start, float(used[at]), settings)
            states[at] = after if move else CapState(**{**vars(after), "price": state.price})
            if len(after.recent) == settings.period:
                looks += 1
                worst[state.attribute] = max(worst[state.attribute], after.mean() / state.limit)
                beyond += after.violated(settings)
    return Run(worst, beyond, looks, value / len(arrivals), len(arrivals), broken)


def _broken(pmf: Floats, eligible: npt.NDArray[np.bool_]) -> int:
    least = floor_of(SPEC, [action.id for action in ACTIONS], eligible)
    bad = (np.abs(pmf.sum(axis=1) - 1) > 1e-6) | (pmf < least - 1e-12).any(axis=1)
    return int((bad | ((pmf != 0) & ~eligible).any(axis=1) | ~np.isfinite(pmf).all(axis=1)).sum())


def _cap(state: CapState) -> Any:
    from scorer.bundle import Cap

    return Cap(attribute=state.attribute, lambda_=state.price, limit=state.limit)


def _caps() -> str:
    return ", ".join(f"{name} {limit:g}" for name, limit in LIMITS.items())


def _plan() -> WeeksPlan:
    return WeeksPlan(weeks=2, per_hour=PER_HOUR, drift_week=2, shocks=SHOCKS)


def _actions() -> list[Action]:
    return [
        Action(
            id=action.id,
            factors=dict(action.factors),
            attributes={
                "challenge": float(action.factors["three_ds"] == "challenge"),
                "cost": sum(COST[name].get(action.factors[name], 0.0) for name in COST),
            },
        )
        for action in catalogue()
    ]


ACTIONS: Final = _actions()
SPEC: Final = PolicySpec(rule="epsilon_greedy", epsilon=0.02, floor=0.01, salt="0" * 32)
