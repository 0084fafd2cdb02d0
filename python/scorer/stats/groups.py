"""Differences and ratios of shares between groups, with bounds that hold for all pairs of groups together.

The definitions are those of fairlearn's `MetricFrame`: the difference is the largest share minus the smallest
one, the ratio is the smallest share over the largest one. Every function takes one or several divisions of
rows into groups, such as by country and by channel, and returns the worst of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import TypeAlias

from scorer.stats.interval import Interval
from scorer.stats.proportions import independent_difference, wilson

Groups: TypeAlias = Sequence[tuple[int, int]]
"""`(hits, rows)` of each group, each with at least one row."""


def difference(divisions: Sequence[Groups]) -> float:
    """Return the largest difference of the shares of two groups; 0 if no division has two groups."""
    return max((max(own) - min(own) for own in map(_shares, divisions) if len(own) > 1), default=0.0)


def ratio(divisions: Sequence[Groups]) -> float:
    """Return the smallest ratio of the shares of two groups, 0 to 1.

    It is 1 if no division has two groups, or if every share is 0.
    """
    found = [own for own in map(_shares, divisions) if len(own) > 1 and max(own) > 0]
    return min((min(own) / max(own) for own in found), default=1.0)


def difference_bounds(divisions: Sequence[Groups], confidence: float) -> Interval:
    """Return bounds of the largest difference, by Newcombe's bounds of each pair of groups.

    All pairs share the probability of an error evenly (Bonferroni).

    Args:
        divisions: The groups of each division.
        confidence: One-sided confidence, from 0.5 to below 1.

    Returns:
        Bounds between 0 and 1.
    """
    pairs = [pair for groups in divisions for pair in permutations(groups, 2)]
    if not pairs:
        return Interval(0.0, 1.0)
    each = 1 - (1 - confidence) / len(pairs)
    found = [independent_difference(first, second, each) for first, second in pairs]
    return Interval(max(0.0, *(one.low for one in found)), min(1.0, max(one.high for one in found)))


def ratio_bounds(divisions: Sequence[Groups], confidence: float) -> Interval:
    """Return bounds of the smallest ratio, by Wilson's bounds of every share.

    The bounds of all shares hold together (Bonferroni), so the ratios of their ends bound every ratio.

    Args:
        divisions: The groups of each division.
        confidence: One-sided confidence, from 0.5 to below 1.

    Returns:
        Bounds between 0 and 1.
    """
    kept = [groups for groups in divisions if len(groups) > 1]
    total = 2 * sum(map(len, kept))
    if not total:
        return Interval(0.0, 1.0)
    each = 1 - (1 - confidence) / total
    low = high = 1.0
    for groups in kept:
        ends = [wilson(hits, rows, each) for hits, rows in groups]
        most_high, most_low = max(one.high for one in ends), max(one.low for one in ends)
        low = min(low, min(one.low for one in ends) / most_high)
        if most_low > 0:
            high = min(high, min(one.high for one in ends) / most_low)
    return Interval(low, high)


def _shares(groups: Groups) -> list[float]:
    return [hits / rows for hits, rows in groups]
