"""Solutions that learn from their own payments, week by week, beside `examples.loop.learner.Learner`.

Each has `retrain(now_ms)`, called when a week begins, and `serve(arrivals, truth)`, which decides the week's
payments. A solution sees its own decisions, and outcomes once they are known; the truth only simulates and
judges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from examples.loop.baselines import FixedRanking, IssuerLinear, Uniform
from examples.loop.learner import Served
from examples.loop.rules import IssuerRules
from examples.simulators.outcomes import as_of, decide
from examples.simulators.payments import BASELINE_EXPLORATION, Floats
from examples.simulators.task import authorise_task
from examples.simulators.weeks import WEEK_MS, Arrivals, Market, blocks
from scorer.bundle import Policy
from scorer.learn.experience import Experience, concatenate
from scorer.learn.training.policies import policy_spec
from scorer.learn.training.settings import PolicySettings

PmfFunction = Callable[[Arrivals], Floats]
"""Payments to `[n, K]` probabilities."""


class Solution(Protocol):
    """Anything that decides payments and learns from them."""

    def retrain(self, now_ms: int) -> None:
        """Learn from what is known at `now_ms`, Unix time in milliseconds."""

    def serve(self, arrivals: Arrivals, truth: Floats) -> Served:
        """Decide `n` payments in order of time; `truth` is `[n, K]`."""


class Weekly:
    """A policy that is derived anew each week from the solution's own last weeks.

    Args:
        market: simulates the outcomes.
        log: decisions before the first week.
        derive: from settled and unsettled decisions to what serves for a week.
        name: in the log.
        window_weeks: weeks of the log that are used.
    """

    def __init__(
        self,
        market: Market,
        log: Experience,
        derive: Callable[[Experience], PmfFunction],
        name: str,
        window_weeks: int = 8,
    ) -> None:
        self._market, self._log, self._derive = market, [log], derive
        self._name, self._window_ms = name, window_weeks * WEEK_MS
        self._pmf: PmfFunction | None = None

    def retrain(self, now_ms: int) -> None:
        """Derive the policy from what is known at `now_ms`, Unix time in milliseconds."""
        log = concatenate(self._log)
        self._pmf = self._derive(as_of(log.take(log.time_ms >= now_ms - self._window_ms), now_ms))

    def serve(self, arrivals: Arrivals, truth: Floats) -> Served:
        """Decide `n` payments; `truth` is `[n, K]`."""
        if self._pmf is None:
            raise RuntimeError("retrain first")
        pmf = np.concatenate([self._pmf(arrivals.take(part)) for part in blocks(len(arrivals))])
        decided = decide(self._market, arrivals, pmf, self._name, self._name, truth)
        self._log.append(decided)
        return Served(decided, (pmf * truth).sum(axis=1))


def uniform(market: Market, log: Experience) -> Weekly:
    """Every eligible action with the same probability."""
    return Weekly(market, log, lambda _: lambda arrivals: Uniform().pmf(arrivals.contexts), "uniform")


def ranking(market: Market, log: Experience) -> Weekly:
    """One fixed ranking, derived weekly, with the exploration share of the payment team's rule."""
    return Weekly(market, log, lambda known: _exploring(FixedRanking(known)), "ranking")


def rules(market: Market, log: Experience) -> Weekly:
    """Rules per issuer, derived weekly; a share of the traffic is drawn uniformly to test them."""
    return Weekly(market, log, lambda known: _exploring(IssuerRules(known)), "rules")


def linear(market: Market, log: Experience) -> Weekly:
    """A linear model per issuer, retrained weekly, with the exploration rule of `scorer learn`."""
    task = authorise_task()
    policy = Policy(policy_spec(PolicySettings(), 0.0, 0, "linear"), task.actions)

    def derive(known: Experience) -> PmfFunction:
        model = IssuerLinear(known)

        def pmf(arrivals: Arrivals) -> Floats:
            return policy.pmf(model.probability(arrivals.rows), arrivals.eligible)

        return pmf

    return Weekly(market, log, derive, "linear")


def _exploring(policy: FixedRanking | IssuerRules, share: float = BASELINE_EXPLORATION) -> PmfFunction:
    def pmf(arrivals: Arrivals) -> Floats:
        return (1 - share) * policy.pmf(arrivals.contexts) + share * Uniform().pmf(arrivals.contexts)

    return pmf
