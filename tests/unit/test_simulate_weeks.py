"""Tests of weeks of simulated payments: frozen, reproducible, and with the documented delays."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from examples.simulators.actions import codes
from examples.simulators.outcomes import as_of, decide
from examples.simulators.payments import ISSUER_NAMES, Payments, baseline_pmf
from examples.simulators.weeks import HOUR_MS, WEEK_MS, Market, Shock, WeeksPlan
from scorer.learn.errors import DataError
from scorer.learn.experience import State, concatenate

SHOCK = Shock(30, "NL-bank-0", "route", "A")


def checksum(*columns: np.ndarray) -> str:
    hasher = hashlib.sha256()
    for column in columns:
        values = np.round(column, 6) if column.dtype.kind == "f" else column
        hasher.update(np.ascontiguousarray(values).tobytes())
    return hasher.hexdigest()[:16]


def baseline(market: Market, *weeks: int):
    parts = []
    for week in weeks:
        arrivals = market.week(week)
        parts.append(decide(market, arrivals, baseline_pmf(arrivals.contexts), "baseline"))
    return concatenate(parts)


@pytest.fixture(scope="module")
def market() -> Market:
    return Market(WeeksPlan(per_hour=120), seed=3)


@pytest.fixture(scope="module")
def log(market):
    return baseline(market, 5, 6)


def test_the_generator_is_frozen():
    """Figures of different days are comparable only while these checksums are unchanged."""
    market = Market(WeeksPlan(per_hour=20, shocks=(Shock(850, "US-bank-9", "retry", "no"),)), seed=1)
    week = market.week(6)
    log = decide(market, week, baseline_pmf(week.contexts), "baseline")
    assert checksum(week.rows, week.time_ms, week.shopper, week.luck) == "0386a994ff196ab0"
    assert checksum(market.truth(week)) == "51fc58e4e71ea168"
    assert checksum(log.action, log.settled_ms, log.reward, log.propensity) == "2a71520dd16ff5d6"


def test_a_day_does_not_depend_on_the_generated_days(market):
    week = market.week(2)
    day = market.day(9)
    inside = week.between(int(day.time_ms[0]), int(day.time_ms[-1]) + 1)
    assert np.array_equal(inside.time_ms, day.time_ms)
    assert np.array_equal(inside.rows, day.rows)
    assert not np.array_equal(Market(market.plan, seed=4).day(9).rows[:50], day.rows[:50])


def test_traffic_is_in_chronological_order_and_has_the_requested_size(market, log):
    assert len(log) == 2 * 120 * 168
    assert (np.diff(log.time_ms) >= 0).all()
    start = market.plan.week_ms(5)
    assert log.time_ms[0] >= start
    assert log.time_ms[-1] < start + 2 * WEEK_MS
    assert len(set(log.decision_id)) == len(log)
    hours = log.time_ms // HOUR_MS % 24
    assert np.array_equal(hours, log.context[:, 1])
    busiest = np.bincount(hours, minlength=24) / (len(log) / 24)
    assert busiest[15] == pytest.approx(1.6, abs=0.15)
    assert busiest[3] == pytest.approx(0.4, abs=0.15)


def test_shoppers_return_with_the_same_card(log):
    order = np.argsort(log.entity, kind="stable")
    same = log.entity[order][1:] == log.entity[order][:-1]
    assert same.mean() > 0.3
    for column in (2, 4):  # issuer, scheme
        value = log.context[order, column]
        assert (value[1:] == value[:-1])[same].all()


def test_before_the_drift_the_world_is_the_frozen_one_and_then_three_issuers_differ(market):
    for week, moved in ((5, False), (6, True)):
        arrivals = market.week(week).take(slice(0, 4000))
        same = np.isclose(market.truth(arrivals), Payments().probability(arrivals.contexts)).all(axis=1)
        changed = {ISSUER_NAMES[i] for i in np.unique(arrivals.contexts.issuer[~same])}
        assert changed == ({"DE-bank-2", "US-bank-9", "BR-bank-11"} if moved else set())
        assert same.mean() == pytest.approx(0.79 if moved else 1, abs=0.03)


def test_a_shock_removes_nine_tenths_of_one_family_at_one_issuer_from_its_hour_on():
    arrivals = Market(WeeksPlan(), 1).days(0, 3)
    calm = Market(WeeksPlan(), 1).truth(arrivals)
    hit = Market(WeeksPlan(shocks=(SHOCK,)), 1).truth(arrivals)
    concerned = np.outer(
        (arrivals.contexts.issuer == 0) & (arrivals.time_ms >= market_hour(30)), codes()[:, 2] == 0
    )
    np.testing.assert_allclose(hit[concerned], 0.1 * calm[concerned])
    assert np.array_equal(hit[~concerned], calm[~concerned])
    brief = Shock(30, "NL-bank-0", "route", "A", hours=5)
    over = Market(WeeksPlan(shocks=(brief,)), 1).truth(arrivals) < calm
    assert arrivals.time_ms[over.any(axis=1)].max() < market_hour(35)


def market_hour(hour: float) -> int:
    return WeeksPlan().start_ms + int(hour * HOUR_MS)


def test_outcomes_have_the_true_probabilities(market):
    arrivals = market.week(1)
    truth = market.truth(arrivals)
    log = decide(market, arrivals, baseline_pmf(arrivals.contexts), "baseline", truth=truth)
    expected = truth[np.arange(len(log)), log.action]
    settled = log.state == State.SETTLED
    assert np.nanmean(log.reward) == pytest.approx(expected[settled].mean(), abs=0.01)
    assert log.eligible[np.arange(len(log)), log.action].all()
    np.testing.assert_allclose(log.pmf.sum(axis=1), 1, atol=1e-6)
    # As above, inverse propensities sum to the number of eligible actions.
    assert (1 / log.propensity).mean() == pytest.approx(log.eligible.sum(axis=1).mean(), rel=0.1)
    assert market.best(arrivals, truth).mean() > expected.mean() + 0.1


def test_delays_and_missing_outcomes_are_as_documented(log):
    three_ds = codes()[log.action, 0]
    hours = (log.settled_ms - log.time_ms) / HOUR_MS
    known = log.state == State.SETTLED
    assert (log.state == State.MISSING).mean() == pytest.approx(0.02, abs=0.003)
    assert hours[known].min() >= 0
    assert 60 < hours[known].max() <= 72
    for kind, mean, late, missing, factor in (
        (0, 1 / 30, 0.05, 0.017, 1),
        (1, 0.1, 0.10, 0.020, 2),
        (2, 1 / 3, 0.20, 0.026, 4),
    ):
        of_kind = three_ds == kind
        assert (~known[of_kind]).mean() == pytest.approx(missing, abs=0.01)
        for reward, takes in ((1, mean), (0, mean * factor)):
            own = hours[of_kind & known & (log.reward == reward)]
            # The median of the prompt outcomes, with the late outcomes included.
            prompt = -takes * np.log1p(-0.5)
            assert (own <= prompt).mean() == pytest.approx(0.5 * (1 - late), abs=0.05)
            assert (own > 12).mean() == pytest.approx(late * 60 / 71, abs=0.045)


def test_the_known_outcomes_grow_and_never_include_the_future(market, log):
    end = market.plan.week_ms(7)
    before = as_of(log, end - 24 * HOUR_MS)
    after = as_of(log, end + 100 * HOUR_MS)
    assert before.time_ms.max() < end - 24 * HOUR_MS
    assert (before.settled_ms <= end - 24 * HOUR_MS).all()
    waiting = before.state == State.IN_FLIGHT
    assert waiting.any()
    assert np.isnan(before.reward[waiting]).all()
    assert (before.settled_ms[waiting] == -1).all()
    # An outcome that never arrives is in flight like the others until the window has passed.
    lost = log.take(slice(0, len(before))).state == State.MISSING
    young = before.time_ms > end - (24 + 72) * HOUR_MS
    assert (before.state[lost & young] == State.IN_FLIGHT).all()
    assert (before.state[lost & ~young] == State.MISSING).all()
    assert not (after.state == State.IN_FLIGHT).any()
    assert np.array_equal(after.reward, log.reward, equal_nan=True)


def test_early_outcomes_overestimate_three_ds(market, log):
    """The overlay must handle this bias: among recent challenges, known outcomes are the better ones."""
    challenge = log.take((codes()[log.action, 0] == 2) & (log.state == State.SETTLED))
    early = challenge.settled_ms - challenge.time_ms < HOUR_MS // 2
    assert challenge.reward[early].mean() > challenge.reward.mean() + 0.1


@pytest.mark.parametrize(
    "text", ["noon", "12:NL-bank-0:route", "12:NL:route=A", "12:NL-bank-0:road=A", "12:NL-bank-0:route=Z"]
)
def test_an_impossible_shock_is_refused(text):
    with pytest.raises(DataError, match=r"shock: .*(HOUR|one of|unknown)"):
        Shock.parse(text)


def test_an_impossible_plan_is_refused():
    with pytest.raises(DataError, match="weeks 0"):
        WeeksPlan(weeks=0)
