"""Statistics of repeated rounds: the median, its interval, and whether a figure is settled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

# Without a target, the interval of a settled figure is at most this part of its median.
MARGIN: Final = 0.25
# With fewer rounds the variation of a figure is unknown.
LEAST_ROUNDS: Final = 3
_COVERAGE: Final = 0.95


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the distribution-free 95 % interval of the median.

    The limits are order statistics. With fewer than six values no pair of them reaches 95 %, so the range of
    the values is returned.

    Args:
        values: One value per round, at least one.

    Raises:
        ValueError: `values` is empty.
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    # P(fewer than `rank + 1` of `count` values lie below the median), for both sides.
    while 2 * (outside + math.comb(count, rank) / 2**count) <= 1 - _COVERAGE:
        outside += math.comb(count, rank) / 2**count
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[count - 1 - rank]


def is_settled(values: Sequence[float], target: float | None) -> bool:
    """Return whether the rounds agree closely enough to judge the figure.

    The margin of a figure is the distance of its median to its target, or without a target `MARGIN` of the
    median. The figure is settled if the interval is at most as wide as the margin.

    Args:
        values: The judged value (the ratio, or the figure itself) of each round.
        target: The bound of the median, or None.
    """
    if len(values) < LEAST_ROUNDS:
        return False
    low, high = interval(values)
    middle = median(values)
    margin = abs(middle) * MARGIN if target is None else abs(middle - target)
    return high - low <= margin


def beside_neighbours(values: Sequence[float], at: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return some rounds, and for each the mean of the rounds before and after it.

    The load of a machine changes, so that a round is compared with those around it.

    Args:
        values: One value per round, in the order in which they were measured.
        at: Positions of the rounds to return. Each has a round before and after it.
    """
    return [values[place] for place in at], [(values[place - 1] + values[place + 1]) / 2 for place in at]
