"""Intervals and sequences against their definitions, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loadtests.learning.designs import design, sample
from scorer.learn import ope
from scorer.learn.errors import DataError
from scorer.learn.ope.moments import Design, moments


def test_asymptotic_sequence_is_its_formula():
    rng = np.random.default_rng(0)
    x = 1_000 + rng.normal(0, 3, 900)
    found = ope.sequences.asymptotic(x, alpha=0.1, best_at=300, first=10)
    rho2 = (-2 * math.log(0.1) + math.log(-2 * math.log(0.1) + 1)) / 300
    for n in (10, 300, 900):
        s = x[:n].std()
        half = s * math.sqrt(2 * (n * rho2 + 1) / (n**2 * rho2) * math.log(math.sqrt(n * rho2 + 1) / 0.1))
        assert found.at(n) == pytest.approx((x[:n].mean(), x[:n].mean() - half, x[:n].mean() + half))
    assert np.isinf(found.low[:9]).all()
    both = ope.sequences.asymptotic(np.stack([x, -x]), first=10)
    assert both.low[0] == pytest.approx(-both.high[1])
    lower = ope.sequences.asymptotic(x, first=10, side="lower")
    assert (lower.low[50:] > ope.sequences.asymptotic(x, first=10).low[50:]).all()


def test_betting_bound_is_the_definition_by_brute_force():
    rng = np.random.default_rng(1)
    x = rng.exponential(0.5, 150)
    low = ope.sequences.betting_lower(x, alpha=0.1, steps=50)
    for t in (20, 80, 150):
        best = 0.0
        for candidate in np.arange(1, 51) / 50:
            wealth, refuted, seen = 1.0, False, []
            mean_sum, var_sum = 0.5, 0.25
            for i in range(t):
                variance = var_sum / (i + 1)
                stake = math.sqrt(2 * math.log(10) / (variance * (i + 1) * math.log(i + 2)))
                wealth *= 1 + min(stake, 0.5 / candidate) * (x[i] - candidate)
                refuted |= wealth >= 10
                seen.append(x[i])
                mean_sum += x[i]
                var_sum += (x[i] - mean_sum / (i + 2)) ** 2
            if not refuted:
                break
            best = candidate
        assert low[t - 1] == pytest.approx(best)


def test_bets_never_use_what_is_yet_to_come():
    rng = np.random.default_rng(2)
    x = rng.exponential(0.5, 300)
    other = x.copy()
    other[200:] = rng.exponential(5.0, 100)
    for bound in (ope.sequences.betting_lower, ope.sequences.bernstein_lower):
        np.testing.assert_array_equal(bound(x)[:200], bound(other)[:200])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_bounds_only_ever_rise(seed):
    x = np.random.default_rng(seed).exponential(0.4, 200)
    for bound in (ope.sequences.betting_lower(x, steps=60), ope.sequences.bernstein_lower(x)):
        assert (np.diff(bound) >= 0).all()
        assert (bound >= 0).all()


def heavy(rng, n):
    """Weights of a target that the log takes one time in ten: mean 0.6, seldom anything at all."""
    weight = np.where(rng.random(n) < 0.1, 10.0, 0.0)
    return weight * (rng.random(n) < 0.6)


@pytest.mark.parametrize(
    ("bound", "more", "near"),
    [(ope.sequences.betting_lower, {"steps": 200}, 0.3), (ope.sequences.bernstein_lower, {}, 0.3)],
)
def test_lower_bounds_hold_at_every_row_under_heavy_weights_and_close_in(bound, more, near):
    rng = np.random.default_rng(3)
    wrong, last = 0, []
    for _ in range(200):
        low = bound(heavy(rng, 3_000), alpha=0.1, **more)
        wrong += (low > 0.6).any()
        last.append(low[-1])
    assert wrong <= 200 * 0.1
    assert np.median(last) > near


def test_asymptotic_sequence_is_seldom_wrong_and_a_repeated_interval_often():
    rng = np.random.default_rng(4)
    x = (rng.random((300, 5_000)) < 0.9).astype(float)
    found = ope.sequences.asymptotic(x)
    wrong = ((found.low > 0.9) | (found.high < 0.9)).any(axis=1).mean()
    n = np.arange(1, 5_001)
    half = 1.96 * 0.3 / np.sqrt(n)
    repeated = (np.abs(found.value - 0.9) > half)[:, 499:].any(axis=1).mean()
    assert wrong <= 0.05
    assert repeated > 0.2
    # Not by being useless: no wider than three times the fixed interval where it is tightest.
    assert (found.high - found.low)[:, -1].mean() < 3 * 2 * half[-1]


@pytest.mark.parametrize("model", [True, False])
@pytest.mark.parametrize("method", ["betting", "bernstein"])
def test_value_bounds_hold_and_close_in(model, method):
    made = design(0.9, "usual")
    wrong, widths = 0, []
    for seed in range(12):
        target = sample(made, 3_000, np.random.default_rng(seed), forward=True)
        if not model:
            target = ope.Target(target.logged, target.pmf)
        found = ope.sequences.value_bounds(target, method=method, alpha=0.1)
        wrong += bool(((found.low > made.value) | (found.high < made.value)).any())
        widths.append(found.high[-1] - found.low[-1])
    assert wrong <= 3
    assert np.mean(widths) < (0.4 if method == "betting" else 0.6)


def test_mass_outside_the_support_widens_the_bounds_on_both_sides():
    """A target of which half can never be seen: its value is .45 plus half of something unknown."""
    rng = np.random.default_rng(0)
    n = 20_000
    logging = np.tile([1.0, 0.0], (n, 1))
    logged = ope.Logged(np.zeros(n, int), (rng.random(n) < 0.9).astype(float), np.ones(n), pmf=logging)
    target = ope.Target(logged, np.full((n, 2), 0.5), np.full((n, 2), 0.9))
    low, high = ope.sequences.value_bounds(target).at(n)[1:]
    assert 0.40 < low < 0.45
    assert 0.95 < high < 1.0
    diagnosed = ope.diagnose(target)
    assert diagnosed.outside == 0.5
    assert diagnosed.outside_rows == n
    assert any("could not have been logged" in warning for warning in diagnosed.warnings())


def test_moments_are_those_of_enumeration():
    rng = np.random.default_rng(5)
    n, k = 3, 4
    logging, model = rng.dirichlet(np.ones(k), n), rng.random((n, k))
    weight, control, direct = rng.normal(1, 2, (n, k)), rng.random((n, k)), rng.random(n)
    given_ = Design(logging, model, weight, weight * (model - control), direct)
    found = moments(
        lambda rows: Design(logging[rows], model[rows], weight[rows], given_.drift[rows], direct[rows]), n
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
    # The spread over rows is estimated with n - 1.
    means = np.array([sum(values[i * 8 : i * 8 + 8] * chances[i * 8 : i * 8 + 8] * n) for i in range(n)])
    assert found.noise + found.rest == pytest.approx(second + means.var(ddof=1) - means.var())
    assert found.noise_skew + found.rest_skew == pytest.approx(third)


def test_without_weights_the_score_interval_is_nearly_wilsons():
    for wins, n in ((180, 200), (198, 200), (100, 200)):
        reward = np.zeros(n)
        reward[:wins] = 1
        logged = ope.Logged(np.zeros(n, int), reward, np.full(n, 0.5), pmf=np.full((n, 2), 0.5))
        target = ope.Target(logged, np.full((n, 2), 0.5), np.full((n, 2), wins / n))
        found, wilson = ope.dr(target), ope.share(wins, n)
        assert found.interval == "score"
        assert found.value == pytest.approx(wilson.value)
        assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), abs=0.006)


def test_a_lucky_log_is_not_taken_for_certainty():
    """No failure among the heavy rows: the empirical spread is 0, and Student's interval with it."""
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
    # Twenty successes: Wilson's lower end, within the roughness of either.
    assert careful.low == pytest.approx(ope.share(20, 20).low, abs=0.06)


@pytest.mark.parametrize(
    ("rate", "regime"), [(0.6, "usual"), (0.9, "usual"), (0.96, "broad"), (0.96, "narrow")]
)
def test_the_default_interval_covers_about_as_often_as_it_says(rate, regime):
    made = design(rate, regime)
    covered, widths, students = 0, [], 0
    for seed in range(150):
        target = sample(made, 1_000, np.random.default_rng([9, seed]))
        found = ope.dr(target)
        covered += found.low <= made.value <= found.high
        widths.append(found.width)
        low, high = ope.intervals.t(found.pseudo, len(found.pseudo))
        students += low <= made.value <= high
    # Five standard errors of 150 logs; Student's interval fails this at .96.
    assert 0.88 <= covered / 150 <= 1.0
    if rate == 0.96:
        assert students / 150 < 0.90
    least = 2 * 1.96 * math.sqrt(made.least_variance() / 1_000)
    assert np.mean(widths) < 1.45 * least


def test_student_and_bernstein_are_their_formulas():
    x = np.random.default_rng(6).random(50)
    half = stats.t.ppf(0.975, 49) * x.std(ddof=1) / math.sqrt(50)
    assert ope.intervals.t(x, 50) == pytest.approx((x.mean() - half, x.mean() + half))
    level = math.log(80)
    half = math.sqrt(2 * x.var(ddof=1) * level / 50) + 7 * level / (3 * 49)
    assert ope.intervals.bernstein(x, 0, 1) == pytest.approx((x.mean() - half, x.mean() + half))
    twice = ope.intervals.t(np.repeat(x, 2), 50, clusters=np.repeat(np.arange(50), 2))
    assert twice == pytest.approx(ope.intervals.t(x, 50))


def test_paired_difference_of_outcomes():
    found = ope.paired_difference([1, 1, 0, 1], [0, 1, 0, 0])
    assert found.value == 0.5
    half = stats.t.ppf(0.975, 3) * np.std([1, 0, 0, 1], ddof=1) / 2
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half))


def test_sequences_refuse_what_they_cannot_use():
    with pytest.raises(DataError, match="no rows"):
        ope.sequences.betting_lower([])
    with pytest.raises(DataError, match="1 values of a sequence are negative or missing"):
        ope.sequences.bernstein_lower([0.1, -0.2])
    with pytest.raises(DataError, match="one sequence at a time"):
        ope.sequences.betting_lower(np.ones((2, 3)))


def test_wrong_propensities_are_told_by_the_mean_weight():
    made = sample(design(0.9, "broad"), 20_000, np.random.default_rng(0))
    assert ope.diagnose(made).warnings() == []
    halved = ope.Logged(
        made.logged.action, made.logged.reward, made.logged.propensity / 2, pmf=made.logged.pmf
    )
    assert "not those of the draw" in ope.diagnose(ope.Target(halved, made.pmf)).warnings()[0]
    few = made.logged.take(slice(0, 100))
    assert any("effective rows" in w for w in ope.diagnose(ope.Target(few, made.pmf[:100])).warnings())


def test_bernstein_bound_is_the_definition_by_brute_force():
    x = np.random.default_rng(7).exponential(0.5, 120)
    low = ope.sequences.bernstein_lower(x, alpha=0.1)
    mean_sum, var_sum = 0.5, 0.25
    won = cost = staked = best = 0.0
    for i, value in enumerate(x):
        before, variance = min(mean_sum / (i + 1), 1.0), var_sum / (i + 1)
        bet = min(math.sqrt(2 * math.log(10) / (variance * (i + 1) * math.log(i + 2))), 0.1)
        won, staked = won + bet * value, staked + bet
        cost += (-math.log(1 - bet) - bet) * (value - before) ** 2
        best = max(best, (won - cost - math.log(10)) / staked)
        assert low[i] == pytest.approx(best)
        mean_sum += value
        var_sum += (value - mean_sum / (i + 2)) ** 2
