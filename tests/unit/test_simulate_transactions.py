"""Tests of the transaction simulator against docs/simulators.md."""

from __future__ import annotations

import numpy as np
import pytest

from examples.simulators.transactions import TransactionPlan, simulate_transactions
from scorer.learn.errors import DataError

PLAN = TransactionPlan(customers=1_000, terminals=2_000, days=60)


@pytest.fixture(scope="module")
def stream():
    return simulate_transactions(PLAN, seed=1)


def test_the_result_depends_on_the_seed_only(stream):
    assert simulate_transactions(PLAN, seed=1).digest() == stream.digest()
    assert simulate_transactions(PLAN, seed=2).digest() != stream.digest()


def test_the_volume_and_times_follow_the_model(stream):
    # Customers make 2 purchases a day on average, of which 3.1 % are outside the day and are dropped.
    assert len(stream) == pytest.approx(PLAN.customers * 2 * PLAN.days * 0.969, rel=0.06)
    assert stream.date(0) == PLAN.start
    assert stream.days == PLAN.days
    assert (np.diff(stream.time_ms) >= 0).all()
    second = stream.time_ms // 1000 % 86_400
    assert second.mean() == pytest.approx(43_200, abs=300)
    # A normal distribution with deviation 20,000, truncated at 2.16 deviations.
    assert second.std() == pytest.approx(18_194, rel=0.01)


def test_customers_spend_around_their_mean(stream):
    genuine = stream.scenario != 3
    means = np.bincount(stream.customer[genuine], stream.amount[genuine]) / np.maximum(
        np.bincount(stream.customer[genuine]), 1
    )
    often = np.bincount(stream.customer[genuine]) > 60
    # Uniform means of 5 to 100; replacing negative amounts by positive ones raises them by 1.5 %.
    assert means[often].min() < 12
    assert means[often].max() == pytest.approx(100, abs=20)
    assert means[often].mean() == pytest.approx(53, abs=3)
    assert (stream.amount >= 0).all()
    assert np.array_equal(np.round(stream.amount, 2), stream.amount)


def test_customers_buy_near_home(stream):
    # At most 0.8 % of the terminals are within 5 of a point on a 100 x 100 map, so a customer uses few.
    for customer in np.unique(stream.customer)[:50]:
        assert len(np.unique(stream.terminal[stream.customer == customer])) < 40


def test_every_large_amount_is_fraud(stream):
    assert (stream.fraud[stream.amount > PLAN.suspicious_amount] == 1).all()
    assert (stream.amount[stream.scenario == 1] > PLAN.suspicious_amount).all()


def test_a_compromised_terminal_has_only_fraud_for_four_weeks(stream):
    frauds = stream.scenario == 2
    assert frauds.sum() > 100
    spans = []
    for terminal in np.unique(stream.terminal[frauds]):
        there = stream.terminal == terminal
        days = stream.day[there & frauds]
        spans.append(days.max() - days.min())
        if spans[-1] < PLAN.terminal_days:
            between = there & (stream.day > days.min()) & (stream.day < days.max())
            assert stream.fraud[between].all()
    # Few terminals are compromised twice in two months.
    assert np.quantile(spans, 0.9) < PLAN.terminal_days
    assert max(spans) > 20


def test_a_compromised_customer_pays_five_times_as_much_on_a_third(stream):
    frauds = stream.scenario == 3
    assert frauds.sum() > 100
    # A customer that is compromised once, and not at the end: a third of the purchases of two weeks.
    mean = np.bincount(stream.customer[stream.fraud == 0], stream.amount[stream.fraud == 0], PLAN.customers)
    mean /= np.maximum(np.bincount(stream.customer[stream.fraud == 0], minlength=PLAN.customers), 1)
    ratio = stream.amount[frauds] / mean[stream.customer[frauds]]
    assert np.median(ratio) == pytest.approx(5, rel=0.2)
    spans = [np.ptp(stream.day[frauds & (stream.customer == c)]) for c in np.unique(stream.customer[frauds])]
    assert np.median(spans) < PLAN.customer_days


def test_the_fraud_rate_equals_the_published_one():
    # The published data set, with 5,000 customers and 10,000 terminals, has 0.8 % fraud.
    stream = simulate_transactions(TransactionPlan(days=60), seed=4)
    assert 0.005 < stream.fraud.mean() < 0.011
    assert set(np.unique(stream.scenario)) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"customers": 2}, "customers is 2; it must be at least 3"),
        ({"terminals": 1}, "terminals is 1; it must be at least 2"),
        ({"days": 0}, "days is 0; it must be at least 1"),
        ({"radius": 0.0}, "radius is 0.0; it must be above 0"),
        ({"start": "yesterday"}, '"yesterday" is not a date'),
    ],
)
def test_impossible_plans_are_refused(changes, message):
    with pytest.raises(DataError, match="simulation") as refused:
        TransactionPlan(**changes)
    assert message in str(refused.value)


def test_a_plan_without_transactions_is_an_error():
    with pytest.raises(DataError, match="no transaction came out"):
        simulate_transactions(TransactionPlan(customers=3, terminals=2, days=1, radius=1e-6), seed=0)
