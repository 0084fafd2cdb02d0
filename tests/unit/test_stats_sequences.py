"""Tests of means and confidence sequences against their definitions and their error rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scorer.stats import sequences
from scorer.stats.means import effective_sample_size, student
from scorer.stats.sample_ratio import check_ratio
from scorer.stats.sequences import clustered_mean, tuned_rho2


def test_effective_sample_size_counts_equal_weights_and_ignores_their_scale():
    assert effective_sample_size(np.full(7, 3.0)) == pytest.approx(7)
    assert effective_sample_size(np.array([1.0, 0.0, 0.0])) == 1
    assert effective_sample_size(np.array([2.0, 1.0])) == pytest.approx(9 / 5)
    assert effective_sample_size(np.zeros(4)) == 0
    assert effective_sample_size(np.empty(0)) == 0


def test_one_draw_gives_no_bound_of_the_mean():
    assert student(np.array([0.4]), confidence=0.9) == (-math.inf, math.inf)
    one_cluster = student(np.array([0.4, 0.6]), confidence=0.9, clusters=np.zeros(2, np.int64))
    assert one_cluster == (-math.inf, math.inf)


def test_the_asymptotic_sequence_equals_its_formula():
    rng = np.random.default_rng(0)
    x = 1_000 + rng.normal(0, 3, 900)
    interval = sequences.asymptotic(x, alpha=0.1, best_at=300, first=10)
    rho2 = (-2 * math.log(0.1) + math.log(-2 * math.log(0.1) + 1)) / 300
    for n in (10, 300, 900):
        s = x[:n].std()
        half = s * math.sqrt(2 * (n * rho2 + 1) / (n**2 * rho2) * math.log(math.sqrt(n * rho2 + 1) / 0.1))
        assert interval.at(n) == pytest.approx((x[:n].mean(), x[:n].mean() - half, x[:n].mean() + half))
    assert np.isinf(interval.low[:9]).all()
    both = sequences.asymptotic(np.stack([x, -x]), first=10)
    assert both.low[0] == pytest.approx(-both.high[1])
    lower = sequences.asymptotic(x, first=10, side="lower")
    assert (lower.low[50:] > sequences.asymptotic(x, first=10).low[50:]).all()


def test_the_betting_bound_equals_its_definition_by_brute_force():
    rng = np.random.default_rng(1)
    x = rng.exponential(0.5, 150)
    low = sequences.betting_lower(x, alpha=0.1, steps=50)
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


def test_bets_never_use_later_rows():
    rng = np.random.default_rng(2)
    x = rng.exponential(0.5, 300)
    other = x.copy()
    other[200:] = rng.exponential(5.0, 100)
    for bound in (sequences.betting_lower, sequences.bernstein_lower):
        np.testing.assert_array_equal(bound(x)[:200], bound(other)[:200])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_bounds_never_decrease(seed):
    x = np.random.default_rng(seed).exponential(0.4, 200)
    for bound in (sequences.betting_lower(x, steps=60), sequences.bernstein_lower(x)):
        assert (np.diff(bound) >= 0).all()
        assert (bound >= 0).all()


def heavy(rng, n):
    """Return weighted rewards of a target that the log chooses one time in ten.

    The mean is 0.6, and most are zero.
    """
    weight = np.where(rng.random(n) < 0.1, 10.0, 0.0)
    return weight * (rng.random(n) < 0.6)


@pytest.mark.parametrize(
    ("bound", "more", "near"),
    [(sequences.betting_lower, {"steps": 200}, 0.3), (sequences.bernstein_lower, {}, 0.3)],
)
def test_lower_bounds_hold_at_every_row_with_heavy_weights_and_become_tighter(bound, more, near):
    rng = np.random.default_rng(3)
    wrong, last = 0, []
    for _ in range(200):
        low = bound(heavy(rng, 3_000), alpha=0.1, **more)
        wrong += (low > 0.6).any()
        last.append(low[-1])
    assert wrong <= 200 * 0.1
    assert np.median(last) > near


def test_the_asymptotic_sequence_is_rarely_wrong_and_a_repeated_interval_often():
    rng = np.random.default_rng(4)
    x = (rng.random((300, 5_000)) < 0.9).astype(float)
    interval = sequences.asymptotic(x)
    wrong = ((interval.low > 0.9) | (interval.high < 0.9)).any(axis=1).mean()
    n = np.arange(1, 5_001)
    half = 1.96 * 0.3 / np.sqrt(n)
    repeated = (np.abs(interval.value - 0.9) > half)[:, 499:].any(axis=1).mean()
    assert wrong <= 0.05
    assert repeated > 0.2
    # The sequence is also useful: at its tightest, it is at most three times as wide as the fixed interval.
    assert (interval.high - interval.low)[:, -1].mean() < 3 * 2 * half[-1]


def test_the_student_interval_equals_its_formula():
    x = np.random.default_rng(6).random(50)
    half = stats.t.ppf(0.975, 49) * x.std(ddof=1) / math.sqrt(50)
    assert student(x, confidence=0.975) == pytest.approx((x.mean() - half, x.mean() + half))
    twice = student(np.repeat(x, 2), confidence=0.975, clusters=np.repeat(np.arange(50), 2))
    assert twice == pytest.approx(student(x, confidence=0.975))


def test_sequences_refuse_invalid_values():
    with pytest.raises(ValueError, match="no rows"):
        sequences.betting_lower([])
    with pytest.raises(ValueError, match="1 values of a sequence are negative or missing"):
        sequences.bernstein_lower([0.1, -0.2])
    with pytest.raises(ValueError, match="one sequence at a time"):
        sequences.betting_lower(np.ones((2, 3)))


def test_the_bernstein_bound_equals_its_definition_by_brute_force():
    x = np.random.default_rng(7).exponential(0.5, 120)
    low = sequences.bernstein_lower(x, alpha=0.1)
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


def test_the_sequence_equals_the_published_one_if_every_shopper_comes_once() -> None:
    """Theorem 2.2: s sqrt(2 (n rho^2 + 1) / (n^2 rho^2) log(sqrt(n rho^2 + 1) / alpha)), with V = n s^2."""
    x = np.random.default_rng(5).normal(0.3, 2.0, 5000)
    rho2, alpha = 0.01, 0.05
    interval = clustered_mean(x, np.arange(5000), alpha, rho2 / x.var())
    inner = 5000 * rho2 + 1
    width = x.std() * math.sqrt(2 * inner / (5000**2 * rho2) * math.log(math.sqrt(inner) / alpha))
    assert interval.high - interval.value == pytest.approx(width, rel=1e-12)
    assert interval.value - interval.low == pytest.approx(width, rel=1e-12)
    # A shopper who returns with the same score adds no evidence, so the width per decision is unchanged.
    twice = clustered_mean(np.repeat(x, 2), np.repeat(np.arange(5000), 2), alpha, rho2 / x.var())
    assert twice.high - twice.low > 0.99 * (interval.high - interval.low)
    narrowest = [
        clustered_mean(x, np.arange(5000), alpha, tuned_rho2(alpha, v * 5000 * x.var()))
        for v in (0.1, 1.0, 10.0)
    ]
    widths = [one.high - one.low for one in narrowest]
    assert widths[1] == min(widths)


def test_a_broken_assignment_is_detected_and_a_correct_one_is_not() -> None:
    random = np.random.default_rng(7)
    alarms = 0
    for _ in range(300):
        ones = np.cumsum(random.random(20_000) < 0.1)
        looks = np.linspace(100, 20_000, 200).astype(int)
        alarms += any(
            check_ratio([int(n - ones[n - 1]), int(ones[n - 1])], [0.9, 0.1], 0.01).mismatch for n in looks
        )
    assert alarms <= 3, "at most 1 % of 300 runs with 200 analyses each"
    assert check_ratio([8850, 1150], [0.9, 0.1], 0.01).mismatch
    assert not check_ratio([8975, 1025], [0.9, 0.1], 0.01).mismatch
    assert check_ratio([500, 500, 300], [1 / 3, 1 / 3, 1 / 3], 0.01).mismatch


def test_the_ratio_check_is_a_martingale_of_mean_one() -> None:
    """Summed over every sequence of 8 draws with its probability under the plan, the factor is 1."""
    shares, total = [0.7, 0.3], 0.0
    for ones in range(9):
        factor = check_ratio([8 - ones, ones], shares, 0.01).evidence
        total += math.comb(8, ones) * shares[0] ** (8 - ones) * shares[1] ** ones * factor
    assert total == pytest.approx(1.0, rel=1e-9)
