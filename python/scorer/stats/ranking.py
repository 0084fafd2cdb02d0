"""Rankings: what is at their top, how well they find what is rare, how far two of them agree."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from scorer.stats.arrays import Bools, Floats, Ints
from scorer.stats.distributions import midranks
from scorer.stats.interval import Interval

_LEAST = 10
"""Rows below which a rank correlation has no bounds."""


def among_highest(scores: Floats, places: int) -> Floats:
    """Return how much of each row is among the highest: 1, 0, or a share of the last places.

    Rows that tie for the last places share them, so that a constant score finds what chance finds.

    Args:
        scores: `[n]` finite.
        places: Number of places, from 0 to n; the result adds up to it.
    """
    if not places:
        return np.zeros(len(scores))
    last = np.partition(scores, len(scores) - places)[len(scores) - places]
    above, level = scores > last, scores == last
    share = (places - int(above.sum())) / int(level.sum())
    return np.where(above, 1.0, np.where(level, share, 0.0))


def without_gaps(scores: Floats) -> Floats:
    """Return the scores with those that are not finite below all others: such a row cannot be flagged."""
    known = np.isfinite(scores)
    return np.where(known, scores, np.min(scores[known], initial=0.0) - 1.0)


def tail_correlation(scores: Floats, others: Floats, tail: Bools) -> float:
    """Return Spearman's correlation of two rankings over the rows of a tail; NaN where one is constant.

    It depends on ranks alone, so a monotone change of either score leaves it as it is.

    Args:
        scores: `[n]` finite.
        others: `[n]` finite.
        tail: `[n]` rows to compare.
    """
    if int(tail.sum()) < 2:
        return math.nan
    one, other = midranks(scores[tail]), midranks(others[tail])
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])


def correlation_bounds(value: float, rows: int, confidence: float) -> Interval:
    """Return bounds of a rank correlation by Fisher's z with the variance of Bonett and Wright (2000).

    Args:
        value: Spearman's correlation.
        rows: Rows that it is of.
        confidence: One-sided confidence of each bound.

    Returns:
        -1 and 1 with fewer than 10 rows; the value itself where it is 1 or -1.
    """
    if rows < _LEAST:
        return Interval(-1.0, 1.0)
    if abs(value) >= 1:
        return Interval(value, value)
    half = NormalDist().inv_cdf(confidence) * math.sqrt((1 + value * value / 2) / (rows - 3))
    z = math.atanh(value)
    return Interval(math.tanh(z - half), math.tanh(z + half))


class Precision:
    """Average precision of one score, computed again and again with other weights of the rows.

    Sorting is what costs, and it does not depend on the weights.

    Args:
        scores: `[n]` finite.
        labels: `[n]`.
    """

    def __init__(self, scores: Floats, labels: Bools) -> None:
        self._order: Ints = np.argsort(-scores, kind="stable")
        ordered = scores[self._order]
        # Equal scores are retrieved together.
        ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
        self._labels = labels[self._order]
        self._ends = ends

    def average(self, weights: Floats | None = None) -> float:
        """Return the area under the precision-recall steps: the sum of precision times the gain of recall.

        Args:
            weights: `[n]` not negative; None: 1 each.

        Returns:
            NaN without weight on a positive row.
        """
        own = np.ones(len(self._order)) if weights is None else weights[self._order]
        hits = np.cumsum(np.where(self._labels, own, 0.0))[self._ends]
        rows = np.cumsum(own)[self._ends]
        if not len(hits) or hits[-1] <= 0:
            return math.nan
        gain = np.diff(hits, prepend=0.0)
        precision = np.divide(hits, rows, out=np.zeros_like(hits), where=rows > 0)
        return float((precision * gain).sum() / hits[-1])
