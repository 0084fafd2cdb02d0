"""Tests of simple policies against their known values in the simulated world."""

from __future__ import annotations

import numpy as np
import pytest

from examples.loop.baselines import Baseline, FixedRanking, IssuerLinear, Uniform
from examples.loop.rules import IssuerRules
from examples.simulators.outcomes import decide
from examples.simulators.payments import baseline_pmf
from examples.simulators.task import context_rows
from examples.simulators.weeks import Market, WeeksPlan


@pytest.fixture(scope="module")
def world():
    """A log of 60,480 payments under the team's rule, and 5,760 later payments with true probabilities."""
    market = Market(WeeksPlan(per_hour=60, drift_week=None), seed=1)
    logged, later = market.days(0, 42), market.days(42, 46)
    log = decide(market, logged, baseline_pmf(logged.contexts), "baseline")
    assert (len(log), len(later)) == (60_480, 5_760)
    return log, later, market.truth(later), market.best(later)


@pytest.mark.parametrize(
    ("policy", "low", "high"),
    [
        (Uniform, 0.734, 0.746),
        (Baseline, 0.740, 0.752),
        (FixedRanking, 0.81, 0.83),
        (IssuerRules, 0.84, 0.86),
        (IssuerLinear, 0.86, 0.87),
    ],
)
def test_policies_have_their_known_values(world, policy, low, high):
    log, later, truth, best = world
    result = policy() if policy in (Uniform, Baseline) else policy(log)
    pmf = result.pmf(later.contexts)
    np.testing.assert_allclose(pmf.sum(axis=1), 1)
    assert not pmf[~later.eligible].any()
    assert low < (pmf * truth).sum(axis=1).mean() < high < best.mean()


def test_a_ranking_is_one_order_for_every_payment(world):
    log, later, *_ = world
    ranking = FixedRanking(log)
    chosen = ranking.pmf(later.contexts).argmax(axis=1)
    allowed = np.where(later.eligible, ranking.value, -np.inf)
    assert (ranking.value[chosen] == allowed.max(axis=1)).all()


def test_the_linear_model_is_calibrated_on_the_evaluated_payments(world):
    log, later, truth, _ = world
    predicted = IssuerLinear(log).probability(context_rows(later.contexts))
    assert predicted.shape == truth.shape
    # Over uniformly chosen actions, the mean prediction equals the mean true probability.
    weights = later.eligible / later.eligible.sum(axis=1, keepdims=True)
    assert (predicted * weights).sum(axis=1).mean() == pytest.approx(
        (truth * weights).sum(axis=1).mean(), abs=0.01
    )
    errors = (predicted - truth)[later.eligible]
    assert 0.01 < np.sqrt((errors**2).mean()) < 0.1


def test_missing_outcomes_do_not_count(world):
    log, later, *_ = world
    known = log.settled()
    assert len(known) < len(log)
    np.testing.assert_array_equal(FixedRanking(log).value, FixedRanking(known).value)
    rows = context_rows(later.contexts)
    np.testing.assert_allclose(IssuerLinear(log).probability(rows), IssuerLinear(known).probability(rows))
