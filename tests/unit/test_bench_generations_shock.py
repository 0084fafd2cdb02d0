"""Tests of how the figures of the benchmarks of generations and shocks are computed."""

from __future__ import annotations

import numpy as np
import pytest

from examples.loop.learner import QUICK, LoopPlan
from examples.simulators.actions import FACTORS
from examples.simulators.payments import ISSUER_NAMES
from examples.simulators.task import authorise_task
from examples.simulators.weeks import Market, WeeksPlan
from loadtests.learning.generations import Year, _drops, live
from loadtests.learning.shock import first_lasting, lost_and_won, worst_shock


def test_a_drop_is_the_largest_of_each_seed_in_points_and_never_negative():
    years = [Year([], [], [-0.01, 0.002, 0.001]), Year([], [], [-0.3, -0.1]), Year([], [], [0.005])]
    assert _drops(years) == pytest.approx((0.5, 0.2))


def test_a_generation_is_evaluated_from_the_time_at_which_it_is_live():
    plan = LoopPlan(train=QUICK.model_copy(update={"trees": 15, "depth": 3}), overlay=None)
    year = live(3, plan, 3, 10.0)
    assert len(year.value) == len(year.best) == 3
    assert len(year.drop) == 2
    assert all(0.5 < value < best for value, best in zip(year.value, year.best, strict=True))
    assert max(map(abs, year.drop)) < 0.1


def test_the_loss_is_relative_to_the_best_policy_and_the_gain_relative_to_no_reaction():
    before, served = np.array([[0.5, 0.5, 0.0]]), np.array([0.5])
    calm, truth = np.array([[0.8, 0.6, 0.9]]), np.array([[0.08, 0.6, 0.9]])
    lost, won = lost_and_won(before, calm, truth, np.array([[True, True, False]]), served)
    # The rate was 0.7 before and is 0.34 now. The best eligible action has 0.6.
    assert lost == pytest.approx([0.26])
    assert won == pytest.approx([0.16])


def test_only_a_permanent_recovery_counts():
    minute = np.arange(0, 240, 1.0)
    lost = np.ones(240)
    # Recovered at 30, lost again at 50, permanently recovered at 90.
    won = np.where(((minute >= 30) & (minute < 50)) | (minute >= 90), 1.0, 0.0)
    assert first_lasting(minute, lost, won, 240) == pytest.approx(90 + 15, abs=5.1)
    assert first_lasting(minute, lost, np.zeros(240), 240) == 240


def test_the_worst_shock_affects_the_action_that_is_used_most_and_can_be_avoided():
    arrivals = Market(WeeksPlan(per_hour=100), 1).day(0)
    task = authorise_task()
    on_a = np.array([action.factors["route"] == "A" for action in task.actions])
    weight = arrivals.eligible * np.where(on_a, 50.0, 1.0)
    shock = worst_shock(weight / weight.sum(axis=1, keepdims=True), arrivals, 3, 12)
    assert shock.issuer == ISSUER_NAMES[3]
    assert shock.value in FACTORS[shock.factor]
    here = arrivals.contexts.issuer == 3
    assert arrivals.eligible[here][:, ~shock.family].any(axis=1).mean() > 0.95
    used = weight / weight.sum(axis=1, keepdims=True)
    assert used[here][:, shock.family].sum(axis=1).mean() > 0.4
