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


def test_drops_are_the_worst_of_each_seed_in_points_and_never_below_nothing():
    years = [Year([], [], [-0.01, 0.002, 0.001]), Year([], [], [-0.3, -0.1]), Year([], [], [0.005])]
    assert _drops(years) == pytest.approx((0.5, 0.2))


def test_a_generation_is_judged_where_it_takes_over():
    plan = LoopPlan(train=QUICK.model_copy(update={"trees": 15, "depth": 3}), overlay=None)
    year = live(3, plan, 3, 10.0)
    assert len(year.value) == len(year.best) == 3
    assert len(year.drop) == 2
    assert all(0.5 < value < best for value, best in zip(year.value, year.best, strict=True))
    assert max(map(abs, year.drop)) < 0.1


def test_lost_is_what_can_be_had_and_won_what_is_better_than_leaving_it():
    before, served = np.array([[0.5, 0.5, 0.0]]), np.array([0.5])
    calm, truth = np.array([[0.8, 0.6, 0.9]]), np.array([[0.08, 0.6, 0.9]])
    lost, won = lost_and_won(before, calm, truth, np.array([[True, True, False]]), served)
    # 0.7 before, 0.34 now; of the eligible ones 0.6 is the best that can be had.
    assert lost == pytest.approx([0.26])
    assert won == pytest.approx([0.16])


def test_won_back_is_only_what_lasts():
    minute = np.arange(0, 240, 1.0)
    lost = np.ones(240)
    # Recovered at 30, lost again at 50, recovered for good at 90.
    won = np.where(((minute >= 30) & (minute < 50)) | (minute >= 90), 1.0, 0.0)
    assert first_lasting(minute, lost, won, 240) == pytest.approx(90 + 15, abs=5.1)
    assert first_lasting(minute, lost, np.zeros(240), 240) == 240


def test_the_worst_shock_hits_what_is_used_most_and_can_be_avoided():
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
