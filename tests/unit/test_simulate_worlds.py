"""Tests of worlds from a seed: reproducible, independent of the traffic, and of the named kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from examples.simulators.actions import codes
from examples.simulators.weeks import Market, WeeksPlan
from examples.simulators.worlds import OWN, WorldSpec, draw_effect, standard
from scorer.learn.errors import DataError

PLAN = WeeksPlan(weeks=10, per_hour=10)


def truth_of(spec: WorldSpec, week: int, seed: int = 1) -> np.ndarray:
    market = Market(PLAN, seed, spec)
    return market.truth(market.week(week))


def test_the_standard_worlds_have_distinct_names_and_seeds():
    specs = standard(11)
    assert specs[0] == OWN
    assert len({spec.name for spec in specs}) == len({spec.seed for spec in specs}) == 11
    assert [spec.interactions for spec in specs].count("crossed") == 2
    assert [spec.interactions for spec in specs].count("forest") == 2
    assert (
        [spec.drift for spec in specs].count("gradual") == [spec.drift for spec in specs].count("none") == 1
    )
    assert not {spec.seed for spec in specs[1:]} & {spec.seed for spec in standard(11, first_seed=50)[1:]}
    with pytest.raises(DataError, match="at least 1"):
        standard(0)


@pytest.mark.parametrize("spec", standard(11), ids=lambda spec: spec.name)
def test_a_world_is_repeatable_and_gives_probabilities(spec):
    first, again = truth_of(spec, 6), truth_of(spec, 6)
    np.testing.assert_array_equal(first, again)
    assert first.shape[1] == len(codes())
    assert 0 <= first.min() < first.max() <= 1


def test_the_seeds_of_world_and_traffic_are_independent():
    one, other = Market(PLAN, 1), Market(PLAN, 2)
    # Other traffic has the same true probabilities for the same payments.
    assert not np.array_equal(one.week(1).shopper, other.week(1).shopper)
    payments = one.week(1)
    np.testing.assert_array_equal(one.truth(payments), other.truth(payments))
    # Another world has other true probabilities for the same payments.
    elsewhere = Market(PLAN, 1, standard(2)[1])
    assert np.abs(elsewhere.truth(payments) - one.truth(payments)).mean() > 0.05


def changed(spec: WorldSpec, week: int) -> float:
    """Return how much the true probabilities of week 1's payments change if they are made in `week`."""
    market = Market(PLAN, 1, spec)
    payments = market.week(1)
    later = replace(payments, time_ms=payments.time_ms + PLAN.week_ms(week) - PLAN.week_ms(1))
    return float(np.abs(market.truth(later) - market.truth(payments)).mean())


def test_drift_is_abrupt_gradual_or_none():
    abrupt, calm = OWN, replace(OWN, drift="none")
    gradual = replace(OWN, drift="gradual")
    assert changed(abrupt, 5) == 0 < changed(abrupt, 6) == changed(abrupt, 9)
    assert changed(calm, 9) == 0
    steps = [changed(gradual, week) for week in (2, 3, 5, 7, 9, 10)]
    assert steps[0] == 0 < steps[1] < steps[2] < steps[3] < steps[4] <= steps[5]


@pytest.mark.parametrize("kind", ["crossed", "forest"])
def test_interactions_are_not_the_sum_of_issuer_and_factor(kind):
    spec = replace(OWN, interactions=kind)
    given = Market(PLAN, 1).week(1).contexts
    odds = draw_effect(spec).odds(given)
    assert odds.shape == (len(given), len(codes()))
    assert 0.4 < odds.std() < 1.2
    # The residual of an additive model of payment and action.
    rest = odds - odds.mean(axis=0) - odds.mean(axis=1, keepdims=True) + odds.mean()
    assert rest.std() > 0.2
    assert draw_effect(OWN) is None
