"""Solutions that learn from their own payments every week, like `examples.loop.learner.Learner`.

Each has `retrain(now_ms)`, which is called when a week begins, and `serve(arrivals, truth)`, which decides
the week's payments. A solution uses its own decisions, and outcomes once they are known. The truth is used
only to simulate outcomes and to evaluate.
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
"""Maps payments to `[n, K]` probabilities."""


class Solution(Protocol):
    """A solution, which decides payments and learns from them."""

    def retrain(self, now_ms: int) -> None:
        """Learn from what is known at `now_ms`, Unix time in milliseconds."""

    def serve(self, arrivals: Arrivals, truth: Floats) -> Served:
        """Decide `n` payments in order of time; `truth` is `[n, K]`."""


class Weekly:
    """A policy that is derived anew each week from the solution's own last weeks.

    Args:
        market: Simulates the outcomes.
        log: Decisions before the first week.
        derive: Derives the policy of a week from settled and unsettled decisions.
        name: Name of bundle and lane in the log.
        window_weeks: Number of weeks of the log that are used.
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
    """Return a solution that chooses every eligible action with the same probability."""
    return Weekly(market, log, lambda _: lambda arrivals: Uniform().pmf(arrivals.contexts), "uniform")


def ranking(market: Market, log: Experience) -> Weekly:
    """Return a solution with one fixed ranking, derived weekly, and the exploration share of the baseline."""
    return Weekly(market, log, lambda known: _exploring(FixedRanking(known)), "ranking")


def rules(market: Market, log: Experience) -> Weekly:
    """Return a solution with rules per issuer, derived weekly, and a uniform share to test them."""
    return Weekly(market, log, lambda known: _exploring(IssuerRules(known)), "rules")


def linear(market: Market, log: Experience) -> Weekly:
    """Return a solution with a weekly linear model per issuer that explores like `scorer learn`."""
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
