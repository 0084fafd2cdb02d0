"""Tests of the plan of `make bench-training`: its arithmetic, and a measurement of a small experience."""

from __future__ import annotations

import pytest

from loadtests.training import Load, Rates, core_hours, measure, table, trainings_of
from scorer.learn.training.settings import TrainSettings

PLAN = TrainSettings(storage="disk", compare=False)


def test_trainings_count_by_their_share_of_the_rows():
    # Five folds of four fifths, the oracle, and three exponents on 7/8 and 6/8 of eight weeks.
    assert trainings_of(PLAN, 8) == pytest.approx(4 + 1 + 3 * (7 / 8 + 6 / 8))
    plan = PLAN.model_copy(update={"tau": (0.0,), "members": 2, "member_weights": "double_or_nothing"})
    assert trainings_of(plan, 8) == pytest.approx(4 + 1 + 1)


def test_core_hours_are_proportional_to_values_trainings_and_trees():
    rates = Rates(read=10, bins=300, tree=20, size=5)
    load = Load(3_600_000, 1_000, 2.0)
    assert core_hours(load, rates, 100) == pytest.approx((0.6, 4.0, 0.01))
    text = table(load, rates, PLAN.model_copy(update={"trees": 100}), [(2, 4)], 0.5)
    assert "| core-hours in all | 5 |" in text
    assert "| bins of external memory, over all workers | 18 GB |" in text
    assert "| 2 | 8 | 9 GB | 0.6 | 2 |" in text


def test_a_measurement_finds_every_rate(tmp_path):
    found = measure(3_000, 20, PLAN.model_copy(update={"trees": 3}), tmp_path)
    assert min(found.read, found.bins, found.size) > 0
    # A byte of the column matrix and, with missing values, four of the index.
    assert 2 < found.size < 8
