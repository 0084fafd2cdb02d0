"""Statistics of drift against naive references, for any counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from scorer.drift import performance, shift, slices
from scorer.drift.binning import MISSING, bins_of
from scorer.drift.trigger import OpenAlert, advance, tripped
from scorer.stats import distances

counts = st.lists(st.integers(0, 500), min_size=2, max_size=12)
pairs = counts.flatmap(
    lambda one: st.tuples(st.just(one), st.lists(st.integers(0, 500), min_size=len(one), max_size=len(one)))
)


@settings(deadline=None)
@given(pairs)
def test_distances_of_several_rows_equal_those_of_single_histograms(
    pair: tuple[list[int], list[int]],
) -> None:
    reference, window = pair
    every = np.array([reference, window, reference]), np.array([window, reference, window])
    found = shift.pooled(*every, least=0.0)
    for name in ("psi", "kl", "js"):
        own = getattr(distances, name)
        values = getattr(shift, name)(found)
        assert values == pytest.approx([own(b, a) for a, b in zip(*every, strict=True)], abs=1e-12)
    if sum(reference) and sum(window):
        assert found.noise[0] == pytest.approx(1 / sum(reference) + 1 / sum(window))
    assert found.free.tolist() == [len(reference) - 1] * 3


@settings(deadline=None)
@given(pairs)
def test_bins_with_small_expected_counts_are_compared_together(pair: tuple[list[int], list[int]]) -> None:
    reference, window = pair
    found = shift.pooled(reference, window)
    n, m = sum(window), sum(reference)
    scale = min(n, m) / max(n + m, 1)
    kept = [at for at in range(len(window)) if (reference[at] + window[at]) * scale >= 5]
    rare = sum(reference[at] + window[at] for at in range(len(window)) if at not in kept)
    assert np.flatnonzero(found.used[:-1]).tolist() == kept
    assert bool(found.used[-1]) == (rare > 0 and rare * scale >= 5)
    if found.used[-1]:
        assert found.window.sum() == n
        assert found.reference.sum() == m


@settings(deadline=None)
@given(
    st.integers(0, 200), st.integers(1, 200), st.integers(0, 400), st.integers(1, 400)
)  # fmt: skip
def test_the_test_of_rates_is_the_binomial_one(hits: int, more: int, before: int, rest: int) -> None:
    rows, reference_rows = hits + more, before + rest
    a, b = hits, before
    if a + b > (rows + reference_rows) / 2:
        a, b = rows - a, reference_rows - b
    share = rows / (rows + reference_rows)
    upper, lower = stats.binom.sf(a - 1, a + b, share), stats.binom.cdf(a, a + b, share)
    expected = min(1.0, 2 * min(upper, lower))
    found = float(shift.rate_chance(hits, rows, before, reference_rows))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-300)


def test_quantiles_are_those_of_scipy_far_in_the_tail() -> None:
    for alpha in (0.01, 1e-4, 1e-7):
        found = shift.excess_critical(alpha, np.array([5.0, 40.0]))
        assert found == pytest.approx(stats.f.isf(alpha, 1, [5.0, 40.0]), rel=1e-6)
        found = shift.chi_square_critical(alpha, np.array([0.0, 1.0, 9.0]))
        assert found == pytest.approx([0.0, *stats.chi2.isf(alpha, [1.0, 9.0])], rel=1e-9)


def test_the_psi_of_one_population_exceeds_its_threshold_as_often_as_stated() -> None:
    random = np.random.default_rng(0)
    share = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.015, 0.005])
    window, reference = (random.multinomial(rows, share, size=100_000) for rows in (400, 1_600))
    pair = shift.pooled(reference, window)
    for alpha in (0.05, 0.001):
        exceed = shift.psi(pair) >= pair.noise * shift.chi_square_critical(alpha, pair.free)
        assert exceed.mean() == pytest.approx(alpha, rel=0.4)


def test_variation_between_samples_is_that_beyond_chance() -> None:
    random = np.random.default_rng(1)
    share = np.full(10, 0.1)
    same = random.multinomial(5_000, share, size=(4, 300)).astype(np.float64)
    assert float(shift.excess_variation(same).mean()) < 0.0005
    moved = share + np.array([0.05, -0.05, *[0.0] * 8])
    same[0] = random.multinomial(5_000, moved, size=300)
    # A quarter of the weeks deviates: the distance of all from their whole, over three degrees of freedom.
    weeks = np.stack([moved, share, share, share])
    expected = float((((weeks - weeks.mean(0)) ** 2) / weeks.mean(0)).sum() / 3)
    assert float(shift.excess_variation(same).mean()) == pytest.approx(expected, rel=0.1)


rows_of_bins = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=8)


@settings(deadline=None)
@given(rows_of_bins)
def test_the_auc_of_bins_is_that_of_rows_with_ties(bins: list[tuple[int, int]]) -> None:
    positives, negatives = [one[0] for one in bins], [one[1] for one in bins]
    found = performance.auc(positives, negatives)
    if not sum(positives) or not sum(negatives):
        assert math.isnan(found.value)
        return
    scores = np.repeat(np.arange(len(bins)), np.add(positives, negatives))
    labels = np.concatenate([[1] * one + [0] * other for one, other in bins])
    assert found.value == pytest.approx(roc_auc_score(labels, scores))
    assert found.error >= 0


@settings(deadline=None)
@given(rows_of_bins)
def test_outcome_rates_do_not_decrease_and_keep_the_number_of_positives(bins: list[tuple[int, int]]) -> None:
    positives = np.array([one[0] for one in bins], dtype=float)
    rows = positives + [one[1] for one in bins]
    rates = performance.outcome_rates(rows, positives)
    assert (np.diff(rates) >= -1e-12).all()
    if rows.sum():
        overall = positives.sum() / rows.sum()
        assert float(((rows + 1) * rates).sum()) == pytest.approx(positives.sum() + len(rows) * overall)


def test_performance_is_estimated_before_outcomes_are_known() -> None:
    random = np.random.default_rng(2)
    edges = np.linspace(0, 1, 17)[1:-1]
    old, new = random.beta(1, 8, 200_000), random.beta(1, 5, 200_000)
    before, after = (random.random(len(scores)) < scores for scores in (old, new))
    old_bins, new_bins = np.searchsorted(edges, old), np.searchsorted(edges, new)
    rates = performance.outcome_rates(
        np.bincount(old_bins, minlength=16), np.bincount(old_bins[before], minlength=16)
    )
    rows = np.bincount(new_bins, minlength=16)
    found = performance.estimate(rates, rows, threshold=5)
    assert found.auc == pytest.approx(roc_auc_score(after, new_bins), abs=0.01)
    assert found.positive_rate == pytest.approx(after.mean(), rel=0.03)
    assert found.precision == pytest.approx(after[new_bins >= 5].mean(), rel=0.04)
    assert found.recall == pytest.approx(after[new_bins >= 5].sum() / after.sum(), rel=0.05)
    same = performance.calibration(rates, rows, np.bincount(new_bins[after], minlength=16))
    doubled = performance.calibration(rates, rows, 2 * np.bincount(new_bins[after], minlength=16))
    assert same.chance > 1e-4
    assert same.error < 0.02
    assert doubled.chance < 1e-12
    assert doubled.observed == 2 * same.observed


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1_000))
def test_the_worst_segment_is_found_and_stable_ones_are_not(seed: int) -> None:
    random = np.random.default_rng(seed)
    rates = random.uniform(0.01, 0.05, 40)
    rows = random.integers(2_000, 5_000, 40)
    hits, before = random.binomial(rows, rates), random.binomial(4 * rows, rates)
    reference = np.stack([before, 4 * rows - before], axis=1).astype(float)
    window = np.stack([hits, rows - hits], axis=1).astype(float)
    names = [f"issuer={at}" for at in range(40)]
    assert slices.scan(names, window, reference, alpha=1e-6, least_rows=100) == []
    window[7, 0] += rows[7] * 0.1
    window[7, 1] -= rows[7] * 0.1
    (found,) = slices.scan(names, window, reference, alpha=1e-6, least_rows=100)
    assert found.name == "issuer=7"
    assert found.excess == pytest.approx(window[7, 0] - rows[7] * found.reference_rate)


def test_a_scan_compares_a_bounded_number_of_segments() -> None:
    number = 2 * slices.MOST_SLICES
    rows = np.full(number, 1_000.0)
    rows[: slices.MOST_SLICES] = 2_000
    window = np.stack([rows / 10, rows - rows / 10], axis=1)
    reference = np.stack([rows / 100, rows - rows / 100], axis=1)
    found = slices.scan([str(at) for at in range(number)], window, reference, alpha=0.01, least_rows=10)
    assert len(found) == slices.MOST_SLICES
    assert {one.rows for one in found} == {2_000}


values = st.lists(
    st.one_of(st.floats(-1e6, 1e6, width=32), st.sampled_from([0.0, 1.0]), st.just(math.nan)), max_size=80
)


@settings(deadline=None)
@given(values, values)
def test_values_are_counted_in_their_bins(reference: list[float], others: list[float]) -> None:
    bins = bins_of("x", np.array(reference, np.float32))
    own = np.array(others, np.float32)
    codes = bins.codes(own)
    for value, code in zip(own.tolist(), codes.tolist(), strict=True):
        if math.isnan(value):
            assert code == MISSING
        else:
            assert code == sum(edge <= value for edge in bins.edges)
            assert bins.label(code)
    known = [value for value in np.array(reference, np.float32).tolist() if not math.isnan(value)]
    outside = [
        at
        for at, value in enumerate(own.tolist())
        if not math.isnan(value) and known and not min(known) <= value <= max(known)
    ]
    assert bins.unseen(own).tolist() == outside


def test_categories_beyond_the_most_frequent_share_a_bin() -> None:
    reference = np.repeat(np.arange(20.0), np.arange(20, 0, -1)).astype(np.float32)
    bins = bins_of("issuer", reference, [f"bank {at}" for at in range(30)])
    codes = bins.codes(np.array([0, 14, 15, 25, np.nan, -1], np.float32))
    assert codes.tolist() == [0, 14, 15, 15, MISSING, 15]
    assert [bins.label(code) for code in (0, 15)] == ["bank 0", "other"]
    assert bins.unseen(np.array([0, 19, 25, np.nan, -1], np.float32)).tolist() == [2, 4]


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=20), st.integers(1, 4), st.integers(0, 3))
def test_k_of_m_looks_trip(shifted: list[bool], k: int, more: int) -> None:
    m = k + more
    found = tripped(np.array(shifted, dtype=bool).reshape(-1, 1), k, m)[:, 0]
    naive = [sum(shifted[max(0, at - m + 1) : at + 1]) >= k for at in range(len(shifted))]
    assert found.tolist() == naive


def test_an_alert_gathers_what_shifts_within_its_cool_down() -> None:
    none, is_new = advance(None, 5, frozenset(), cool_down=10)
    assert (none, is_new) == (None, False)
    alert, is_new = advance(None, 10, frozenset({"a"}), cool_down=10)
    assert is_new
    alert, is_new = advance(alert, 15, frozenset({"a", "b"}), cool_down=10)
    assert (alert, is_new) == (OpenAlert(10, 15, {"a": 10, "b": 15}), False)
    alert, is_new = advance(alert, 24, frozenset({"a"}), cool_down=10)
    assert (alert, is_new) == (OpenAlert(10, 24, {"a": 10, "b": 15}), False)
    assert advance(alert, 26, frozenset({"a", "c"}), cool_down=10) == (
        OpenAlert(26, 26, {"a": 10, "c": 26}),
        True,
    )
    assert advance(alert, 40, frozenset({"a"}), cool_down=10) == (OpenAlert(40, 40, {"a": 40}), True)
