"""The features of behaviour: a naive reference, and planted information of the future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.fraud.behaviour import BEHAVIOUR, FAR, LARGE, LONG_AGO, RECENT, behaviour
from examples.fraud.handbook import NAMES, SETTINGS, TASK, features_of, write_table
from examples.fraud.knowable import knowable
from examples.fraud.transactions import DAY_MS, Transactions
from examples.simulators.transactions import TransactionPlan, simulate_transactions
from scorer.learn.fraud.table import read_table

DELAY = 7
BEGIN = 1_522_540_800_000


def make(rows: list[tuple[int, int, int, float, int]]) -> Transactions:
    """Return transactions from tuples (time in ms, customer, terminal, amount, fraud)."""
    columns = [np.array(column) for column in zip(*sorted(rows, key=lambda row: row[0]), strict=True)]
    return Transactions(
        ids=np.arange(len(rows)),
        time_ms=columns[0].astype(np.int64),
        customer=columns[1].astype(np.int64),
        terminal=columns[2].astype(np.int64),
        amount=columns[3].astype(np.float64),
        fraud=columns[4].astype(np.int64),
        scenario=columns[4].astype(np.int64),
    )


def naive(t: Transactions) -> np.ndarray:
    """Compute the columns row by row from lists of earlier rows."""
    n = len(t)
    out = np.zeros((n, len(BEHAVIOUR)))
    ratio, usual = np.zeros(n), np.zeros(n)
    for step in range(3):
        earlier_usual = usual.copy()
        for i in range(n):
            before = [j for j in range(i) if t.customer[j] == t.customer[i]]
            if step:
                before = [j for j in before if t.amount[j] <= FAR * earlier_usual[j]]
            prior = t.amount[:i].mean() if i else t.amount[0]
            usual[i] = (sum(t.amount[j] for j in before) + prior) / (len(before) + 1)
        if step == 0:
            mean = usual.copy()
    ratio = t.amount / np.maximum(usual, 0.01)
    for i in range(n):
        now = t.time_ms[i]
        mine = [j for j in range(i) if t.customer[j] == t.customer[i]]
        spread = np.std(t.amount[mine]) if mine else 0.0
        line = [ratio[i], t.amount[i] - mean[i], (t.amount[i] - mean[i]) / max(spread, 1.0), usual[i]]
        for window in RECENT:
            recent = [j for j in mine if t.time_ms[j] > now - window * DAY_MS]
            line.append(sum(ratio[j] > FAR for j in recent))
        line.append(sum(max(ratio[j] - FAR, 0.0) for j in recent))
        known = [j for j in range(n) if t.time_ms[j] <= now - DELAY * DAY_MS]
        for window in (7, 14):
            since = now - (DELAY + window) * DAY_MS
            line.append(
                sum(t.fraud[j] for j in known if t.customer[j] == t.customer[i] and t.time_ms[j] > since)
            )
        here = [j for j in known if t.terminal[j] == t.terminal[i]]
        plain = [j for j in here if t.fraud[j] and t.amount[j] <= LARGE and ratio[j] <= FAR]
        counts, shares = [], []
        for window in (7, 14, 28):
            since = now - (DELAY + window) * DAY_MS
            within = [j for j in here if t.time_ms[j] > since]
            counts.append(sum(j in plain for j in within))
            shares.append(counts[-1] / max(len(within), 1))
        line += counts + shares
        genuine = [j for j in here if not t.fraud[j]]
        run = [j for j in here if j > max(genuine, default=-1)]
        first = [j for j in plain if t.time_ms[j] > now - (DELAY + 28) * DAY_MS]

        def days(rows: list[int], at: int, moment: int = now) -> float:
            return min((moment - t.time_ms[rows[at]]) / DAY_MS, LONG_AGO) if rows else LONG_AGO

        line += [days(plain, -1), days(first, 0), days(genuine, -1), len(run), days(run, 0)]
        out[i] = line
    return out


# The times are on a coarse grid, so that equal times and exact window edges are frequent.
row = st.tuples(
    st.integers(0, 90).map(lambda halves: BEGIN + halves * DAY_MS // 2),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 40_000).map(lambda cents: cents / 100),
    st.integers(0, 1),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(row, min_size=1, max_size=40))
def test_features_equal_the_naive_reference(rows):
    transactions = make(rows)
    np.testing.assert_allclose(behaviour(transactions), naive(transactions), rtol=1e-4, atol=1e-3)


@pytest.fixture(scope="module")
def transactions():
    return simulate_transactions(TransactionPlan(customers=150, terminals=200, days=60), seed=2)


@pytest.mark.parametrize("day", [25, 40, 52])
def test_planted_information_of_the_future_changes_nothing(transactions, day):
    """Labels that are not known yet are inverted, and later transactions have other amounts and parties."""
    now = int(transactions.time_ms[np.searchsorted(transactions.day, day)])
    later = transactions.time_ms > now
    unknown = transactions.time_ms > now - DELAY * DAY_MS
    assert later.any()
    assert (unknown & ~later).any()
    planted = replace(
        transactions,
        fraud=np.where(unknown, 1 - transactions.fraud, transactions.fraud),
        amount=np.where(later, 1000.0 + transactions.amount * 7, transactions.amount),
        customer=np.where(later, transactions.customer[::-1], transactions.customer),
        terminal=np.where(later, transactions.terminal[::-1], transactions.terminal),
    )
    kept = ~later
    # Sums are differences of running sums over all groups, so their last digits may differ.
    np.testing.assert_allclose(
        features_of(planted)[kept], features_of(transactions)[kept], rtol=1e-5, atol=1e-4
    )
    # The planted labels would be seen if they were known at once.
    assert not np.allclose(behaviour(planted, 0)[kept], behaviour(transactions, 0)[kept], atol=0.1)


def test_the_table_has_the_features_of_the_task_after_the_warm_up(transactions, tmp_path):
    rows = features_of(transactions)
    assert rows.shape[1] == len(NAMES) == len(TASK.features)
    write_table(transactions, rows, tmp_path / "table.parquet")
    table = read_table(tmp_path / "table.parquet", TASK.features, SETTINGS.columns)
    used = transactions.day >= 21
    np.testing.assert_array_equal(table.rows, rows[used])
    np.testing.assert_array_equal(table.label, transactions.fraud[used] == 1)


def test_frauds_that_can_be_known_are_those_of_a_naive_reference():
    random = np.random.default_rng(4)
    scenario = random.choice([0, 1, 2, 3], size=600, p=[0.6, 0.05, 0.3, 0.05])
    t = make(
        [
            (BEGIN + int(at), int(random.integers(0, 30)), int(random.integers(0, 8)), 10.0, int(one > 0))
            for at, one in zip(np.sort(random.integers(0, 90 * DAY_MS, 600)), scenario, strict=True)
        ]
    )
    t = replace(t, scenario=scenario)
    expected = []
    for i in range(len(t)):
        age = (t.time_ms[i] - t.time_ms) / DAY_MS
        earlier = (t.terminal == t.terminal[i]) & (t.scenario == 2) & (age >= DELAY) & (age <= 28)
        expected.append(bool(t.fraud[i]) and (t.scenario[i] != 2 or bool(earlier.any())))
    assert knowable(t, DELAY).tolist() == expected
    assert 0 < sum(expected) < t.fraud.sum()
    # What happens within the delay does not count.
    last = np.flatnonzero(t.time_ms > t.time_ms[-1] - DELAY * DAY_MS)[:-1]
    changed = t.scenario.copy()
    changed[last] = 2
    assert knowable(replace(t, scenario=changed), DELAY)[-1] == expected[-1]
