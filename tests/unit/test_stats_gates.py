"""Tests of statistics against closed forms, other libraries and their nominal error rates."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import roc_auc_score

from scorer.bundle.statistics import distribution
from scorer.stats import distances, distributions, proportions, ranking
from scorer.stats.interim import alpha_share, interval_alpha
from scorer.stats.quantiles import quantile, quantile_bounds
from scorer.stats.roc import auc

counts = st.lists(st.integers(0, 500), min_size=2, max_size=12)


@given(
    st.integers(2, 12).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(0, 500), min_size=n, max_size=n)] * 2)
    )
)
def test_distances_equal_those_of_scipy_over_smoothed_shares(both: tuple[list[int], list[int]]) -> None:
    one, other = (np.array(c) + 0.5 for c in both)
    p, q = one / one.sum(), other / other.sum()
    forward, back = stats.entropy(p, q), stats.entropy(q, p)
    assert distances.kl(*both) == pytest.approx(forward, abs=1e-12)
    assert distances.psi(*both) == pytest.approx(forward + back, abs=1e-12)
    assert distances.js(*both) == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-12)
    assert distances.psi(both[0], both[0]) == 0.0
    assert 0 <= distances.js(*both) <= math.log(2)


def test_an_empty_bin_keeps_psi_finite_and_small() -> None:
    # With a share of 1e-10 instead of smoothing, the result would be 18.
    assert distances.psi([500, 500, 0], [400, 400, 200]) < 2


def test_bins_are_deciles_and_keep_ties_together() -> None:
    random = np.random.default_rng(1)
    one, other = random.normal(size=1000), random.normal(size=3000)
    binned = distances.by_samples(one, other)
    assert (binned.first.sum(), binned.second.sum()) == (1000, 3000)
    both = binned.first + binned.second
    assert len(both) == 10
    assert both.min() >= 400 > both.min() - 10
    tied = np.repeat([0.1, 0.2, 0.9], [700, 200, 100])
    binned = distances.by_samples(tied, tied[::2])
    assert binned.first.tolist() == [700, 200, 100]
    assert binned.second.tolist() == [350, 100, 50]
    assert len(distances.by_samples(np.full(50, 0.3), np.full(20, 0.3)).first) == 1


@given(st.lists(st.floats(0, 1), min_size=30, max_size=400), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_scores_of_the_reference_give_its_counts(scores: list[float], seed: int) -> None:
    values = np.round(np.array(scores), 3)
    reference = distribution(values)
    shuffled = np.random.default_rng(seed).permutation(values)
    binned = distances.by_reference(reference.counts, reference.edges, shuffled)
    assert binned.first.tolist() == binned.second.tolist()
    assert binned.first.sum() == len(values)
    assert len(binned.first) <= 10
    assert binned.first.min() >= len(values) / 10 * (1 - 1e-9)


def test_scores_outside_of_the_reference_are_in_the_outer_bins() -> None:
    reference = distribution(np.linspace(2, 3, 1000))
    binned = distances.by_reference(reference.counts, reference.edges, np.array([-5.0, 9.0, 9.0]))
    assert binned.second[0] == 1
    assert binned.second[-1] == 2


@pytest.mark.parametrize(("n", "m"), [(200, 2_000), (1_000, 1_000), (5_000, 300)])
def test_the_chance_level_is_exceeded_at_its_nominal_rate(n: int, m: int) -> None:
    random = np.random.default_rng(n)
    shares = np.full(10, 0.1)
    exceeded = []
    for _ in range(2_000):
        one, other = (random.multinomial(size, shares).astype(float) for size in (n, m))
        binned = distances.BinnedPair(np.empty(9), one, other)
        exceeded.append(distances.psi(one, other) > binned.null_psi(0.05))
    assert np.mean(exceeded) == pytest.approx(0.05, abs=0.02)


@given(
    st.integers(1, 4000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.6, 0.999)
)
def test_wilson_bounds_solve_the_score_equation(both: tuple[int, int], confidence: float) -> None:
    hits, rows = both
    low, high = proportions.wilson(hits, rows, confidence)
    z = stats.norm.ppf(confidence)
    for bound in {low, high} - {0.0, 1.0}:
        assert abs(hits / rows - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / rows), abs=1e-9)
    assert (low == 0.0) == (hits == 0)
    assert (high == 1.0) == (hits == rows)


def test_without_rows_the_bounds_of_a_share_are_zero_and_one() -> None:
    assert proportions.wilson(0, 0, 0.95) == (0.0, 1.0)
    assert proportions.independent_difference((0, 0), (1, 2), 0.95) == (-1.0, 1.0)
    assert proportions.paired_difference(0, 0, 0, 0, 0.95) == (-1.0, 1.0)


def test_differences_equal_the_published_examples_of_newcombe() -> None:
    # Newcombe (1998), table II of the paper on independent samples: (a) and (d) by method 10.
    difference = proportions.independent_difference((56, 70), (48, 80), 0.975)
    assert (difference.low, difference.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    difference = proportions.independent_difference((9, 10), (3, 10), 0.975)
    assert (difference.low, difference.high) == pytest.approx((0.1705, 0.8090), abs=5e-5)


def test_paired_differences_equal_those_of_newcombe_and_depend_on_the_correlation() -> None:
    difference = proportions.paired_difference(36, 12, 2, 0, 0.975)
    assert (difference.low, difference.high) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    difference = proportions.paired_difference(54, 0, 0, 0, 0.975)
    assert (difference.low, difference.high) == pytest.approx((-0.0664, 0.0664), abs=5e-5)
    # The same shares with positive correlation, as two samples, and with negative correlation.
    agreeing, opposed = (
        proportions.paired_difference(500, 0, 0, 500, 0.95),
        proportions.paired_difference(0, 500, 500, 0, 0.95),
    )
    apart = proportions.independent_difference((500, 1000), (500, 1000), 0.95)
    assert agreeing.high < apart.high / 10
    assert opposed.high > apart.high * 1.3


@given(*[st.integers(0, 60)] * 4)
def test_a_paired_difference_is_within_its_bounds_and_changes_sign_with_its_sides(
    a: int, b: int, c: int, d: int
) -> None:
    n = a + b + c + d
    if not n:
        return
    difference, other = (
        proportions.paired_difference(a, b, c, d, 0.95),
        proportions.paired_difference(a, c, b, d, 0.95),
    )
    assert difference.low - 1e-12 <= (b - c) / n <= difference.high + 1e-12
    assert (difference.low, difference.high) == pytest.approx((-other.high, -other.low), abs=1e-12)
    # The interval is wider with a higher confidence.
    sure = proportions.paired_difference(a, b, c, d, 0.99)
    assert sure.low <= difference.low + 1e-12
    assert sure.high >= difference.high - 1e-12


@pytest.mark.parametrize(("own", "control", "rows"), [(0.02, 0.0, 500), (0.03, 0.01, 1000), (0.3, 0.25, 300)])
def test_paired_bounds_have_their_nominal_coverage(own: float, control: float, rows: int) -> None:
    random = np.random.default_rng(7)
    low = high = 0
    for _ in range(2_000):
        shared = random.random(rows)
        one, other = shared < own, shared < control
        counts = [int((x & y).sum()) for x, y in ((one, other), (one, ~other), (~one, other), (~one, ~other))]
        difference = proportions.paired_difference(*counts, 0.95)
        low += difference.low <= own - control
        high += difference.high >= own - control
    assert low / 2_000 > 0.93
    assert high / 2_000 > 0.93


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_the_smallest_value_that_covers_its_share(values: list[int], q: float) -> None:
    array = np.array(values, dtype=float)
    result = quantile(array, q)
    assert (array <= result).mean() >= q - 1e-12
    assert (array < result).mean() < q


@pytest.mark.parametrize("rows", [40, 300, 2000])
@pytest.mark.parametrize("tied", [False, True])
def test_quantile_bounds_hold_for_any_distribution(rows: int, tied: bool) -> None:
    random = np.random.default_rng(rows)
    q, confidence = 0.99, 0.95
    draws = random.pareto(1.2, (3_000, rows))
    truth = (1 - q) ** (-1 / 1.2) - 1
    if tied:
        # The quantile of rounded values is the rounded quantile.
        draws, truth = np.ceil(draws), math.ceil(truth)
    bounds = np.array([quantile_bounds(row, q, confidence) for row in draws])
    assert (bounds[:, 0] <= truth).mean() > confidence - 0.012
    assert (bounds[:, 1] >= truth).mean() > confidence - 0.012
    if not tied and rows >= 1000:
        # The bounds are not wider than the steps of the binomial distribution require.
        assert (bounds[:, 1] >= truth).mean() < confidence + 0.03


def test_too_few_rows_give_no_bound_of_a_high_quantile() -> None:
    values = np.arange(298.0)
    assert quantile_bounds(values, 0.99, 0.95)[1] == math.inf
    assert quantile_bounds(np.arange(299.0), 0.99, 0.95)[1] == 298.0
    assert quantile_bounds(np.empty(0), 0.5, 0.9) == (-math.inf, math.inf)


@given(st.integers(0, 2**32 - 1), st.integers(20, 400))
@settings(deadline=None, max_examples=50)
def test_auc_equals_that_of_scikit_learn(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.random(rows) < 0.3
    labels[:2] = [True, False]
    labels[2:4] = [True, False]
    scores = np.round(random.normal(size=rows) + labels, 1)
    areas, _ = auc([scores], labels)
    assert areas[0] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_the_variance_of_delong_equals_that_of_resampling_and_of_pairs() -> None:
    random = np.random.default_rng(3)
    labels = random.random(600) < 0.25
    one = random.normal(size=600) + 0.8 * labels
    scores = [one, one + random.normal(size=600) * 0.5]
    areas, covariance = auc(scores, labels)
    # The definition, over all pairs.
    up = [
        (s[labels][:, None] > s[~labels][None, :]) + 0.5 * (s[labels][:, None] == s[~labels][None, :])
        for s in scores
    ]
    wanted = (
        np.cov([u.mean(axis=1) for u in up]) / labels.sum()
        + np.cov([u.mean(axis=0) for u in up]) / (~labels).sum()
    )
    np.testing.assert_allclose(covariance, wanted, rtol=1e-10)
    drawn = []
    for _ in range(300):
        rows = random.integers(0, 600, 600)
        drawn.append(np.subtract(*[roc_auc_score(labels[rows], s[rows]) for s in scores]))
    contrast = np.array([1.0, -1.0])
    assert math.sqrt(contrast @ covariance @ contrast) == pytest.approx(np.std(drawn), rel=0.15)
    assert areas[0] > areas[1]


@pytest.mark.parametrize(("count", "limit"), [(1, 0), (12, 1), (12, 0), (24, 5)])
def test_intervals_share_the_false_alarm_rate_exactly(count: int, limit: int) -> None:
    alpha = interval_alpha(0.002, count, limit)
    assert stats.binom.sf(limit, count, alpha) == pytest.approx(0.002, rel=1e-9)


def test_interim_analyses_spend_at_most_the_false_alarm_rate() -> None:
    assert sum(alpha_share(analysis) for analysis in range(1, 10_000)) == pytest.approx(1, abs=1e-3)


# --- rankings ---


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=6))
def test_ties_share_the_last_places_as_the_mean_over_all_orders(rows: list[tuple[int, bool]]) -> None:
    scores = np.array([float(score) for score, _ in rows])
    marked = np.array([mark for _, mark in rows])
    places = int(marked.sum())
    counts = [
        sum(marked[row] for row in sorted(order, key=lambda row: -scores[row])[:places])
        for order in permutations(range(len(rows)))
    ]
    assert ranking.among_highest(scores, places)[marked].sum() == pytest.approx(np.mean(counts))


@given(st.floats(1e-6, 1 - 1e-6), st.integers(1, 3000), st.floats(1e-4, 1 - 1e-4))
def test_quantile_functions_equal_those_of_scipy_stats(probability: float, n: int, share: float) -> None:
    close = {"rel": 1e-9, "abs": 1e-12}
    assert distributions.normal_quantile(probability) == pytest.approx(stats.norm.ppf(probability), **close)
    assert distributions.student_quantile(probability, n) == pytest.approx(
        stats.t.ppf(probability, n), **close
    )
    assert distributions.chi_square_upper(probability, n) == pytest.approx(
        stats.chi2.isf(probability, n), **close
    )
    assert distributions.beta_quantile(probability, 3, n) == pytest.approx(
        stats.beta.ppf(probability, 3, n), **close
    )
    k = distributions.binomial_quantile(probability, n, share)
    assert stats.binom.cdf(k, n, share) >= probability * (1 - 1e-12)
    assert k == 0 or stats.binom.cdf(k - 1, n, share) < probability * (1 + 1e-12)


@given(st.lists(st.integers(-5, 5), max_size=60))
def test_midranks_equal_those_of_scipy_stats(values: list[int]) -> None:
    np.testing.assert_array_equal(distributions.midranks(np.array(values)), stats.rankdata(values))


@given(st.integers(0, 400), st.integers(1, 400), st.floats(0.5, 0.999))
def test_wilson_bounds_equal_those_of_scipy_stats(hits: int, rows: int, confidence: float) -> None:
    hits = min(hits, rows)
    expected = stats.binomtest(hits, rows).proportion_ci(2 * confidence - 1, method="wilson")
    interval = proportions.wilson(hits, rows, confidence)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
