"""Tests of the fifteen features against a reference that compares every pair of transactions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.fraud.features import FEATURES, WINDOWS, features
from examples.fraud.transactions import DAY_MS, Transactions


def make(rows: list[tuple[int, int, int, float, int]]) -> Transactions:
    """Return sorted transactions from tuples (time in ms, customer, terminal, amount, fraud)."""
    rows = sorted(rows, key=lambda row: row[0])
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Transactions(
        ids=np.arange(len(rows)),
        time_ms=columns[0].astype(np.int64),
        customer=columns[1].astype(np.int64),
        terminal=columns[2].astype(np.int64),
        amount=columns[3].astype(np.float64),
        fraud=columns[4].astype(np.int64),
        scenario=columns[4].astype(np.int64),
    )


def naive(transactions: Transactions, delay_days: int) -> np.ndarray:
    rows = list(
        zip(
            transactions.time_ms.tolist(),
            transactions.customer.tolist(),
            transactions.terminal.tolist(),
            transactions.amount.tolist(),
            transactions.fraud.tolist(),
            strict=True,
        )
    )
    out = []
    for i, (time, customer, terminal, amount, _) in enumerate(rows):
        date = np.datetime64(time, "ms").astype(object)
        line = [amount, float(date.weekday() >= 5), float(date.hour <= 6)]
        for window in WINDOWS:
            mine = [r[3] for r in rows[: i + 1] if r[1] == customer and time - window * DAY_MS < r[0] <= time]
            line += [len(mine), sum(mine) / len(mine)]
        for window in WINDOWS:
            until = time - delay_days * DAY_MS
            seen = rows if delay_days else rows[: i + 1]
            theirs = [r[4] for r in seen if r[2] == terminal and until - window * DAY_MS < r[0] <= until]
            line += [len(theirs), sum(theirs) / len(theirs) if theirs else 0.0]
        out.append(line)
    return np.array(out)


# The times are on a coarse grid, so that equal times and exact window edges are frequent.
HALF_DAY = DAY_MS // 2
row = st.tuples(
    st.integers(0, 90).map(lambda halves: 1_522_540_800_000 + halves * HALF_DAY),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 50_000).map(lambda cents: cents / 100),
    st.integers(0, 1),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(row, min_size=1, max_size=60), st.sampled_from([0, 1, 7]))
def test_features_equal_the_naive_reference(rows, delay_days):
    transactions = make(rows)
    np.testing.assert_allclose(
        features(transactions, delay_days), naive(transactions, delay_days), rtol=1e-5, atol=1e-4
    )


def test_features_equal_the_naive_reference_with_irregular_times_and_scattered_ids():
    rng = np.random.default_rng(5)
    rows = [
        (
            int(1_522_540_800_000 + rng.integers(0, 60 * DAY_MS)),
            int(rng.choice([-4, 7, 10**12])),
            int(rng.choice([3, 10**9, 10**9 + 1])),
            float(rng.uniform(0, 300)),
            int(rng.random() < 0.2),
        )
        for _ in range(500)
    ]
    transactions = make(rows)
    np.testing.assert_allclose(features(transactions), naive(transactions, 7), rtol=1e-5, atol=1e-3)


def test_window_edges_and_equal_times():
    start = 1_522_540_800_000 + 12 * 3_600_000  # a Sunday at noon
    transactions = make(
        [
            (start, 1, 9, 10.0, 1),
            (start, 1, 9, 30.0, 0),
            (start + DAY_MS - 1, 1, 9, 20.0, 0),
            (start + DAY_MS, 1, 9, 40.0, 0),
            (start + 7 * DAY_MS - 1, 2, 9, 1.0, 0),
            (start + 7 * DAY_MS, 2, 9, 1.0, 0),
        ]
    )
    at = {name: features(transactions)[:, i].tolist() for i, name in enumerate(FEATURES)}
    # Of two transactions at the same time, the first counts only itself. A day excludes its exact start.
    assert at["customer_count_1d"] == [1, 2, 3, 2, 1, 2]
    assert at["customer_mean_amount_1d"] == [10, 20, 20, 30, 1, 1]
    # A fraud becomes known exactly seven days later, not a millisecond before.
    assert at["terminal_count_1d"] == [0, 0, 0, 0, 0, 2]
    assert at["terminal_risk_1d"] == [0, 0, 0, 0, 0, 0.5]


@pytest.mark.parametrize(("hour", "night"), [(0, 1), (6, 1), (7, 0), (23, 0)])
def test_night_is_from_midnight_until_seven(hour, night):
    monday = 1_522_627_200_000
    transactions = make([(monday + hour * 3_600_000 + 59 * 60_000, 1, 1, 5.0, 0)])
    assert features(transactions)[0, FEATURES.index("night")] == night


def test_weekend_is_saturday_and_sunday():
    monday = 1_522_627_200_000
    transactions = make([(monday + day * DAY_MS, 1, 1, 5.0, 0) for day in range(7)])
    assert features(transactions)[:, FEATURES.index("weekend")].tolist() == [0, 0, 0, 0, 0, 1, 1]
