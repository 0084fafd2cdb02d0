"""Tests that LinUCB is the published rule: ridge regression and a bonus of alpha standard errors."""

from __future__ import annotations

import numpy as np

from examples.loop.baselines import action_effects, context_effects
from examples.loop.linucb import LinUcb
from examples.simulators.actions import codes
from examples.simulators.outcomes import decide
from examples.simulators.weeks import Market, WeeksPlan


def test_bounds_equal_the_formula_and_outcomes_are_used_when_they_are_known() -> None:
    market = Market(WeeksPlan(weeks=2, per_hour=3.0), 1)
    first, second = market.week(1), market.week(2)
    even = first.eligible / first.eligible.sum(axis=1, keepdims=True)
    log = decide(market, first, even, "uniform")
    learner = LinUcb(market, log, alpha=0.7, ridge=2.0)
    now = market.plan.week_ms(2)
    learner.retrain(now)

    known = log.settled()
    known = known.take(known.settled_ms <= now)
    assert 0 < len(known) < len(log)
    x = np.hstack([context_effects(known.context), action_effects(known.context, known.action).toarray()])
    inverse = np.linalg.inv(x.T @ x + 2.0 * np.eye(x.shape[1]))
    weights = inverse @ x.T @ known.reward
    rows = second.rows[:7]
    bounds = learner.upper_bounds(rows)
    for row in range(len(rows)):
        each = np.repeat(rows[row : row + 1], len(codes()), axis=0)
        z = np.hstack([context_effects(each), action_effects(each, np.arange(len(codes()))).toarray()])
        expected = z @ weights + 0.7 * np.sqrt(np.einsum("ki,ij,kj->k", z, inverse, z))
        np.testing.assert_allclose(bounds[row], expected, rtol=1e-9)

    served = learner.serve(second, market.truth(second))
    assert len(served.value) == len(second)
    assert set(np.unique(served.experience.propensity)) == {1.0}
