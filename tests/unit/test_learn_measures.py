"""Tests of splits, measures and calibration against plain counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.fraud.metrics import ranking
from examples.fraud.split import Days, SplitPlan, without_known
from examples.fraud.training import thresholds
from examples.fraud.transactions import DAY_MS, Transactions
from scorer.bundle import fit_centred_isotonic
from scorer.learn.errors import DataError
from scorer.learn.fraud.measures import card_precision_by_day
from scorer.learn.fraud.training import calibrated


def transactions(days, customers, frauds) -> Transactions:
    n = len(days)
    return Transactions(
        ids=np.arange(n),
        time_ms=17_600 * DAY_MS + np.asarray(days, dtype=np.int64) * DAY_MS,
        customer=np.asarray(customers, dtype=np.int64),
        terminal=np.zeros(n, dtype=np.int64),
        amount=np.ones(n),
        fraud=np.asarray(frauds, dtype=np.int64),
        scenario=np.asarray(frauds, dtype=np.int64),
    )


def spanning(days: int) -> Transactions:
    return transactions(range(days), range(days), [0] * days)


class TestSplit:
    def test_blocks_follow_from_the_span_of_the_data(self):
        split = SplitPlan().last(spanning(100))
        assert (split.test.first, split.test.end) == (93, 100)
        assert (split.calibration.first, split.calibration.end) == (79, 86)
        assert (split.training.first, split.training.end) == (51, 79)
        earlier = SplitPlan().earlier(spanning(100), 14)
        assert (earlier.training.first, earlier.training.end) == (37, 65)
        assert earlier.test == split.test

    def test_shorter_data_gives_less_training_and_too_short_data_is_refused(self):
        def lengths(days, earlier=0):
            split = SplitPlan().earlier(spanning(days), earlier)
            return len(split.training), len(split.calibration)

        assert lengths(56) == (28, 7)
        assert lengths(40) == (20, 6)
        assert lengths(30) == (12, 4)
        assert lengths(24) == (7, 3)
        assert lengths(30, 5) == (8, 3)
        with pytest.raises(DataError, match="cover 23 days and at least 24 are needed"):
            SplitPlan().last(spanning(23))
        with pytest.raises(DataError, match="cover 5 days and at least 24 are needed"):
            SplitPlan().last(spanning(5))
        with pytest.raises(
            DataError, match=r"cover 24 days and at least 25 are needed .* 1 between versions"
        ):
            SplitPlan().earlier(spanning(24), 1)

    def test_no_block_contains_labels_that_are_not_known_yet(self):
        plan = SplitPlan()
        for days in range(24, 120, 7):
            split = plan.last(spanning(days))
            assert split.training.end == split.calibration.first
            assert split.test.first - split.calibration.end == plan.delay

    def test_known_customers_are_excluded_from_the_test_block(self):
        # With a delay of 2, frauds up to day 7 are known on day 10, those of day 8 on day 11, of
        # day 9 on day 12.
        days = [5, 6, 8, 9, 10, 10, 10, 10, 11, 11, 12, 12]
        who = [1, 2, 3, 4, 1, 2, 3, 4, 3, 4, 3, 4]
        bad = [1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0]
        result = transactions(days, who, bad)
        first = 5  # day numbers count from the first transaction
        kept = without_known(result, Days(0, 8 - first), Days(10 - first, 13 - first), delay=2)
        left = [(days[i], who[i]) for i in kept]
        assert left == [(10, 2), (10, 3), (10, 4), (11, 4)]


class TestRanking:
    def test_counts_equal_those_by_hand(self):
        scores = np.array([0.9, 0.8, 0.7, 0.1])
        fraud = np.array([1, 0, 1, 0])
        measured = ranking(scores, fraud, np.arange(4), np.zeros(4))
        assert measured.auc == pytest.approx(3 / 4)
        assert measured.average_precision == pytest.approx((1 + 2 / 3) / 2)
        assert measured.frauds == 2

    def test_card_precision_counts_cards_not_transactions(self):
        scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
        customer = np.array([1, 1, 2, 3, 4])
        fraud = np.array([0, 1, 0, 1, 1])
        # The top two cards are 1, which has one fraudulent transaction, and 2.
        assert card_precision_by_day(scores, fraud == 1, customer, np.zeros(5), 2) == [0.5]
        assert card_precision_by_day(scores, fraud == 1, customer, np.array([0, 0, 0, 1, 1]), 1).mean() == 1.0

    @pytest.mark.parametrize("label", [0, 1])
    def test_a_ranking_needs_both_classes(self, label):
        with pytest.raises(DataError, match="both kinds are needed"):
            ranking(np.zeros(3), np.full(3, label), np.arange(3), np.zeros(3))


class TestCalibration:
    @settings(max_examples=100, deadline=None)
    @given(st.integers(0, 10_000), st.integers(20, 400), st.booleans())
    def test_calibration_keeps_the_ranking_and_gives_probabilities(self, seed, n, coarse):
        rng = np.random.default_rng(seed)
        outputs = rng.random(n)
        if coarse:
            outputs = np.round(outputs, 1)
        labels = (rng.random(n) < outputs**2).astype(int)
        labels[:2] = [0, 1]
        curve = fit_centred_isotonic(outputs, labels)
        assert (np.diff(curve.x) > 0).all()
        assert (np.diff(curve.y) > 0).all()
        seen = np.unique(outputs)
        mapped = calibrated(seen, curve)
        assert (np.diff(mapped) > 0).all()
        assert mapped.min() > 0
        assert mapped.max() < 1

    def test_calibration_recovers_distorted_probabilities(self):
        rng = np.random.default_rng(1)
        odds = rng.normal(-2, 1.5, 40_000)
        truth = 1 / (1 + np.exp(-odds))
        labels = (rng.random(40_000) < truth).astype(int)
        distorted = 1 / (1 + np.exp(-(1.5 * odds + 2)))
        curve = fit_centred_isotonic(distorted, labels)
        assert np.abs(calibrated(distorted, curve) - truth).mean() < 0.01


def test_thresholds_give_the_requested_shares():
    scores = np.random.default_rng(0).random(100_000)
    bands = thresholds(scores, review_rate=0.02, decline_rate=0.005)
    assert [label for _, label in bands] == ["approve", "review", "decline"]
    starts = [start for start, _ in bands]
    assert starts[0] == 0
    assert (scores >= starts[2]).mean() == pytest.approx(0.005, abs=1e-4)
    assert ((scores >= starts[1]) & (scores < starts[2])).mean() == pytest.approx(0.02, abs=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_thresholds_differ_if_all_scores_are_equal(value):
    starts = [start for start, _ in thresholds(np.full(100, value), 0.02, 0.005)]
    assert starts[0] < starts[1] < starts[2]
