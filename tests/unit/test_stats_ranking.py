"""Tests of rankings and the bootstrap by day, against other libraries and their nominal coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score

from scorer.stats import ranking
from scorer.stats.blocks import DAY_US, Blocks, block_codes
from scorer.stats.roc import auc


@pytest.mark.parametrize("digits", [1, 2, 9])
def test_average_precision_equals_that_of_scikit_learn(digits: int) -> None:
    random = np.random.default_rng(digits)
    scores, labels = np.round(random.random(500), digits), random.random(500) < 0.1
    weights = random.integers(0, 4, 500).astype(np.float64)
    precision = ranking.Precision(scores, labels)
    assert precision.average() == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    assert precision.average(weights) == pytest.approx(
        average_precision_score(labels, scores, sample_weight=weights), abs=1e-12
    )
    assert math.isnan(precision.average(np.zeros(500)))


def test_equal_scores_share_the_last_places() -> None:
    weights = ranking.among_highest(np.array([3.0, 1.0, 2.0, 2.0, 0.0]), 2)
    assert weights.tolist() == [1.0, 0.0, 0.5, 0.5, 0.0]
    assert ranking.among_highest(np.zeros(4), 3).tolist() == [0.75] * 4
    assert ranking.among_highest(np.arange(3.0), 0).tolist() == [0.0] * 3


def test_the_correlation_of_a_tail_equals_that_of_spearman_and_ignores_scale() -> None:
    random = np.random.default_rng(1)
    one = random.normal(size=300)
    other = one + random.normal(size=300)
    tail = one > np.quantile(one, 0.8)
    correlation = ranking.tail_correlation(other, one, tail)
    assert correlation == pytest.approx(stats.spearmanr(other[tail], one[tail])[0])
    assert ranking.tail_correlation(np.exp(3 * other), one, tail) == pytest.approx(correlation)
    assert math.isnan(ranking.tail_correlation(np.zeros(300), one, tail))


def test_bounds_of_a_rank_correlation_have_their_nominal_coverage() -> None:
    """The upper and the lower bound are each correct in about 95 % of the samples."""
    random = np.random.default_rng(2)
    truth = 6 / math.pi * math.asin(0.8 / 2)
    inside = np.zeros(2)
    for _ in range(800):
        one = random.normal(size=60)
        other = 0.8 * one + 0.6 * random.normal(size=60)
        low, high = ranking.correlation_bounds(float(stats.spearmanr(one, other)[0]), 60, 0.95)
        inside += (low <= truth, truth <= high)
    assert 0.93 <= inside.min() / 800 <= 0.98
    assert ranking.correlation_bounds(1.0, 50, 0.95) == (1.0, 1.0)
    assert ranking.correlation_bounds(0.5, 9, 0.95) == (-1.0, 1.0)


def test_the_interval_of_delong_for_a_difference_has_its_nominal_coverage() -> None:
    """The test compares the bounds of two correlated scores with their known AUC in 400 samples."""
    random = np.random.default_rng(3)
    strong, weak = 1.5, 1.0
    truth = stats.norm.cdf(strong / math.sqrt(2)) - stats.norm.cdf(weak / math.sqrt(2))
    inside = np.zeros(2)
    for _ in range(400):
        label = np.arange(600) < 60
        shared = random.normal(size=600)
        one, other = (
            0.7 * shared + math.sqrt(1 - 0.49) * random.normal(size=600) + mean * label
            for mean in (strong, weak)
        )
        areas, covariance = auc([one, other], label)
        error = math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
        apart = areas[0] - areas[1]
        inside += (apart - 1.645 * error <= truth, truth <= apart + 1.645 * error)
    assert 0.92 <= inside.min() / 400 <= inside.max() / 400 <= 0.98


def test_bounds_by_day_have_their_nominal_coverage_if_days_differ() -> None:
    """Days have different levels. Bounds for independent rows would be correct in half of the samples."""
    random = np.random.default_rng(4)
    days, rows, inside, naive = 21, 60, np.zeros(2), 0
    at = np.repeat(np.arange(days), rows) * DAY_US
    for turn in range(400):
        level = random.normal(0, 0.3, days)
        values = np.repeat(level, rows) + random.normal(size=days * rows)
        ratio = Blocks(at, draws=200, seed=turn).ratio(values, np.ones(len(values)))
        low, high = ratio.bounds(0.95)
        inside += (low <= 0, high >= 0)
        naive += abs(values.mean()) <= 1.645 * values.std() / math.sqrt(len(values))
    assert 0.92 <= inside.min() / 400 <= inside.max() / 400 <= 0.98
    assert naive / 400 < 0.7


def test_the_error_of_a_weighted_statistic_equals_that_of_a_ratio() -> None:
    random = np.random.default_rng(5)
    at = np.sort(random.integers(0, 30 * DAY_US, 2_000))
    hits, rows = (random.random(2_000) < 0.2).astype(float), np.ones(2_000)
    blocks = Blocks(at)
    one, other = blocks.ratio(hits, rows), blocks.of(lambda w: float((w * hits).sum() / w.sum()))
    assert (one.value, one.blocks) == (pytest.approx(other.value), 30)
    assert one.error == pytest.approx(other.error, rel=0.25)
    assert one.bounds(0.95)[0] < one.value < one.bounds(0.95)[1]


def test_short_periods_have_ten_blocks_and_a_single_time_has_no_bounds() -> None:
    assert len(np.unique(block_codes(np.arange(0, 3_600_000_000, 1_000_000)))) in (10, 11)
    alone = Blocks(np.zeros(5, np.int64)).ratio(np.ones(5), np.ones(5))
    assert alone.bounds(0.95) == (-math.inf, math.inf)
    assert len(block_codes(np.zeros(0, np.int64))) == 0
