"""Tests of the small lines of latencies."""

from __future__ import annotations

import pytest

from scorer.web.sparklines import HEIGHT, WIDTH, sparkline


def test_equal_factors_are_equal_heights() -> None:
    drawn = sparkline([10.0, 100.0, 1_000.0], limit=1e9)
    assert [x for x, _ in drawn.points] == [0, WIDTH / 2, WIDTH]
    low, middle, high = (y for _, y in drawn.points)
    assert low - middle == pytest.approx(middle - high)
    assert 0 < high < low < HEIGHT


def test_one_outlier_leaves_the_other_values_apart() -> None:
    """On a linear scale, 20 and 60 microseconds beside 20 milliseconds are one line."""
    drawn = sparkline([20.0, 60.0, 20_000.0], limit=1e9)
    assert drawn.points[0][1] - drawn.points[1][1] > HEIGHT / 10


def test_a_limit_that_is_near_is_drawn_above_the_values_below_it() -> None:
    near = sparkline([20.0, 900.0], limit=5_000.0)
    assert near.limit is not None
    assert 0 < near.limit < min(y for _, y in near.points)
    exceeded = sparkline([20.0, 9_000.0], limit=5_000.0)
    assert exceeded.limit is not None
    assert exceeded.limit > min(y for _, y in exceeded.points)
    assert sparkline([20.0, 90.0], limit=5_000.0).limit is None


def test_times_of_less_than_a_microsecond_and_single_values_are_drawn() -> None:
    for values in ([0.0], [0.0, 0.0], [7.0], [5.0, 5.0]):
        drawn = sparkline(values, limit=1e9)
        assert len(drawn.points) == len(values)
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn.points)
