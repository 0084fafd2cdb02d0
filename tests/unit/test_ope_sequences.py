"""Tests of intervals and sequences against their definitions and their error rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from loadtests.learning.designs import design, sample
from scorer.learn import ope
from scorer.learn.ope.intervals import PseudoOutcomeDesign, moments
from scorer.stats.means import student


@pytest.mark.parametrize("model", [True, False])
def test_value_bounds_are_valid_and_become_narrower(model):
    result = design(0.9, "usual")
    wrong, widths = 0, []
    for seed in range(12):
        target = sample(result, 3_000, np.random.default_rng(seed), forward=True)
        if not model:
            target = ope.Target(target.logged, target.pmf)
        bounds = ope.value_bounds(target, alpha=0.1)
        wrong += bool(((bounds.low > result.value) | (bounds.high < result.value)).any())
        widths.append(bounds.high[-1] - bounds.low[-1])
    assert wrong <= 3
    assert np.mean(widths) < 0.4


def test_mass_outside_the_support_widens_the_bounds_on_both_sides():
    """Half of the target has no support: its value is .45 plus half of an unknown reward."""
    rng = np.random.default_rng(0)
    n = 20_000
    logging = np.tile([1.0, 0.0], (n, 1))
    logged = ope.Logged(np.zeros(n, int), (rng.random(n) < 0.9).astype(float), np.ones(n), pmf=logging)
    target = ope.Target(logged, np.full((n, 2), 0.5), np.full((n, 2), 0.9))
    low, high = ope.value_bounds(target).at(n)[1:]
    assert 0.40 < low < 0.45
    assert 0.95 < high < 1.0
    diagnosed = ope.diagnose(target)
    assert diagnosed.outside == 0.5
    assert diagnosed.outside_rows == n
    assert any("could not have been logged" in warning for warning in diagnosed.warnings())


def test_moments_equal_those_of_an_enumeration():
    rng = np.random.default_rng(5)
    n, k = 3, 4
    logging, model = rng.dirichlet(np.ones(k), n), rng.random((n, k))
    weight, control, direct = rng.normal(1, 2, (n, k)), rng.random((n, k)), rng.random(n)
    given_ = PseudoOutcomeDesign(logging, model, weight, weight * (model - control), direct)
    result = moments(
        lambda rows: PseudoOutcomeDesign(
            logging[rows], model[rows], weight[rows], given_.drift[rows], direct[rows]
        ),
        n,
    )
    values, chances = [], []
    for row in range(n):
        for action in range(k):
            for reward in (0, 1):
                p = model[row, action] if reward else 1 - model[row, action]
                values.append(direct[row] + weight[row, action] * (reward - control[row, action]))
                chances.append(logging[row, action] * p / n)
    values, chances = np.array(values), np.array(chances)
    mean = values @ chances
    second, third = chances @ (values - mean) ** 2, chances @ (values - mean) ** 3
    # The variance over rows is estimated with n - 1.
    means = np.array([sum(values[i * 8 : i * 8 + 8] * chances[i * 8 : i * 8 + 8] * n) for i in range(n)])
    assert result.noise + result.rest == pytest.approx(second + means.var(ddof=1) - means.var())
    assert result.noise_skew + result.rest_skew == pytest.approx(third)


def test_without_weights_the_score_interval_is_close_to_that_of_wilson():
    for wins, n in ((180, 200), (198, 200), (100, 200)):
        reward = np.zeros(n)
        reward[:wins] = 1
        logged = ope.Logged(np.zeros(n, int), reward, np.full(n, 0.5), pmf=np.full((n, 2), 0.5))
        target = ope.Target(logged, np.full((n, 2), 0.5), np.full((n, 2), wins / n))
        interval, wilson = ope.dr(target), ope.share(wins, n)
        assert interval.interval == "score"
        assert interval.value == pytest.approx(wilson.value)
        assert (interval.low, interval.high) == pytest.approx((wilson.low, wilson.high), abs=0.006)


def test_a_log_without_failures_does_not_give_a_certain_value():
    """Without a failure in the rows of large weight, the empirical variance and Student's interval are 0."""
    n = 1_000
    logging = np.tile([0.98, 0.02], (n, 1))
    action = np.zeros(n, int)
    action[:20] = 1
    reward = np.ones(n)
    logged = ope.Logged(action, reward, logging[np.arange(n), action], pmf=logging)
    pmf = np.tile([0.0, 1.0], (n, 1))
    sure = ope.snipw(ope.Target(logged, pmf))
    assert (sure.low, sure.high) == (1.0, 1.0)
    careful = ope.dr(ope.Target(logged, pmf, np.full((n, 2), 0.96)))
    assert careful.low < 0.95
    # Twenty successes: the bound is near Wilson's lower end.
    assert careful.low == pytest.approx(ope.share(20, 20).low, abs=0.06)


@pytest.mark.parametrize(
    ("rate", "regime"), [(0.6, "usual"), (0.9, "usual"), (0.96, "broad"), (0.96, "narrow")]
)
def test_the_default_interval_has_about_its_nominal_coverage(rate, regime):
    world = design(rate, regime)
    covered, widths, students = 0, [], 0
    for seed in range(150):
        target = sample(world, 1_000, np.random.default_rng([9, seed]))
        interval = ope.dr(target)
        covered += interval.low <= world.value <= interval.high
        widths.append(interval.width)
        low, high = student(interval.pseudo, confidence=0.975)
        students += low <= world.value <= high
    # The tolerance is five standard errors of 150 logs. Student's interval fails with .96.
    assert 0.88 <= covered / 150 <= 1.0
    if rate == 0.96:
        assert students / 150 < 0.90
    least = 2 * 1.96 * math.sqrt(world.least_variance() / 1_000)
    assert np.mean(widths) < 1.45 * least


def test_a_paired_difference_of_outcomes_is_estimated():
    difference = ope.paired_difference([1, 1, 0, 1], [0, 1, 0, 0])
    assert difference.value == 0.5
    half = stats.t.ppf(0.975, 3) * np.std([1, 0, 0, 1], ddof=1) / 2
    assert (difference.low, difference.high) == pytest.approx((0.5 - half, 0.5 + half))


def test_wrong_propensities_are_detected_by_the_mean_weight():
    result = sample(design(0.9, "broad"), 20_000, np.random.default_rng(0))
    assert ope.diagnose(result).warnings() == []
    halved = ope.Logged(
        result.logged.action, result.logged.reward, result.logged.propensity / 2, pmf=result.logged.pmf
    )
    assert "not those of the draw" in ope.diagnose(ope.Target(halved, result.pmf)).warnings()[0]
    few = result.logged.take(slice(0, 100))
    assert any("effective rows" in w for w in ope.diagnose(ope.Target(few, result.pmf[:100])).warnings())
