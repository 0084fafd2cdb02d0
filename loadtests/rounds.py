"""Statistics of repeated rounds: the median, its interval, and whether a figure is settled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

# Without a target, the interval of a settled figure is at most this part of its median.
MARGIN: Final = 0.25
# Fewer rounds cannot show how much a figure varies.
LEAST_ROUNDS: Final = 3
_COVERAGE: Final = 0.95


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the distribution-free 95 % interval of the median.

    The limits are order statistics; with fewer than six values no pair of them reaches 95 %, and the
    range of the values is returned.

    Args:
        values: One value per round, at least one.

    Raises:
        ValueError: There are no values.
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
    """Return whether the rounds agree well enough for the figure to be judged.

    The margin of a figure is its distance to its target; without a target it is `MARGIN` of the median.
    Rounds whose interval is wider than the margin do not settle the figure, whatever their median is.

    Args:
        values: The judged value (the ratio, or the figure itself) of each round.
        target: The bound that the median is held to; None where there is none.
    """
    if len(values) < LEAST_ROUNDS:
        return False
    low, high = interval(values)
    middle = median(values)
    margin = abs(middle) * MARGIN if target is None else abs(middle - target)
    return high - low <= margin
