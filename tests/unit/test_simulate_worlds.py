"""Tests of worlds from a seed: reproducible, independent of the traffic, and of the named kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from examples.simulators.actions import codes
from examples.simulators.weeks import Market, WeeksPlan
from examples.simulators.worlds import (
    JUDGING_SEED,
    NEWCOMERS_FIRST_WEEK,
    OUTAGE_DAYS,
    OWN,
    SEASON_DAYS,
    WorldSpec,
    draw_effect,
    drawn,
    families,
    standard,
)
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


def test_no_family_is_for_development_and_for_judging():
    development, judging = families(judging=False), families(judging=True)
    assert len(development) + len(judging) == len({*development, *judging}) == 45
    for half in (development, judging):
        assert [len(set(values)) for values in zip(*half, strict=True)] == [5, 3, 3]
    below, above = drawn(40, JUDGING_SEED - 40), drawn(40, JUDGING_SEED)
    for specs, known in ((below, development), (above, judging)):
        assert {(one.drift, one.interactions, one.issuers) for one in specs} <= set(known)
        assert len({(one.drift, one.interactions, one.issuers) for one in specs}) > 10
    # A world depends on its own seed only.
    assert drawn(2, JUDGING_SEED + 1) == above[1:3]
    with pytest.raises(DataError, match="at least 1"):
        drawn(0)


@pytest.mark.parametrize("spec", drawn(6), ids=lambda spec: spec.name)
def test_a_drawn_world_is_repeatable_and_gives_probabilities(spec):
    first = truth_of(spec, 6)
    np.testing.assert_array_equal(first, truth_of(spec, 6))
    assert 0 <= first.min() < first.max() <= 1


def test_a_season_comes_back_and_an_outage_ends():
    season, outage = replace(OWN, drift="seasonal"), replace(OWN, drift="outage")
    weeks = SEASON_DAYS // 7
    assert changed(season, 1 + weeks) < 1e-9 < 0.005 < changed(season, 1 + weeks // 2)
    market = Market(PLAN, 1, outage)
    payments = market.week(PLAN.drift_week)
    lower = market.truth(payments)
    usual = Market(PLAN, 1, replace(OWN, drift="none")).truth(payments)
    ends = PLAN.week_ms(PLAN.drift_week) + OUTAGE_DAYS * 86_400_000
    during = payments.time_ms < ends
    np.testing.assert_array_equal(lower[~during], usual[~during])
    route = codes()[:, 2]
    falls = [float((usual - lower)[during][:, route == one].mean()) for one in np.unique(route)]
    assert sorted(fall > 0.2 for fall in falls) == [False, False, False, True]


def test_issuers_have_a_heavy_tail_or_appear_later():
    def shares(spec: WorldSpec, week: int) -> np.ndarray:
        count = np.bincount(Market(PLAN, 1, spec).week(week).contexts.issuer, minlength=12)
        return np.asarray(count / count.sum())

    heavy, new = replace(OWN, issuers="heavy"), replace(OWN, issuers="newcomers")
    assert shares(heavy, 2).max() > 0.3 > 0.2 > shares(OWN, 2).max()
    before, after = shares(new, NEWCOMERS_FIRST_WEEK - 1), shares(new, NEWCOMERS_FIRST_WEEK)
    assert ((before == 0) & (after > 0)).sum() == 2
    assert before.sum() == pytest.approx(1)
