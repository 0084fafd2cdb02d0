"""Statistics of rankings: the highest rows, average precision, and rank correlation."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from scorer.stats.arrays import Bools, Floats, Ints
from scorer.stats.distributions import midranks
from scorer.stats.interval import Interval

_LEAST = 10
"""Least number of rows for which bounds of a rank correlation are computed."""


def among_highest(scores: Floats, places: int) -> Floats:
    """Return the share of each row that is among the highest `places`, `[n]`.

    Rows that tie for the last places get equal shares of them, so a constant score has the hit rate of a
    random selection.

    Args:
        scores: `[n]` finite scores.
        places: Number of places, from 0 to n. The result adds up to it.
    """
    if not places:
        return np.zeros(len(scores))
    last = np.partition(scores, len(scores) - places)[len(scores) - places]
    above, level = scores > last, scores == last
    share = (places - int(above.sum())) / int(level.sum())
    return np.where(above, 1.0, np.where(level, share, 0.0))


def among_highest_weight(scores: Floats, weights: Floats, total: float) -> Floats:
    """Return the share of each row that is among the highest rows of a total weight, `[n]`.

    As `among_highest`, for rows that stand for several ones each.

    Args:
        scores: `[n]` finite scores.
        weights: `[n]` weights of at least 0.
        total: Weight of the highest rows, from 0 to the sum of the weights.
    """
    if total <= 0:
        return np.zeros(len(scores))
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    reached = np.cumsum(weights[order])[ends]
    level = np.diff(reached, prepend=0.0)
    part = np.clip((total - (reached - level)) / np.where(level > 0, level, 1.0), 0.0, 1.0)
    out = np.empty(len(scores))
    out[order] = np.repeat(part, np.diff(ends, prepend=-1))
    return out


def without_gaps(scores: Floats) -> Floats:
    """Replace scores that are not finite by a value below all others, so that such rows are not flagged.

    Args:
        scores: `[n]` scores.
    """
    known = np.isfinite(scores)
    return np.where(known, scores, np.min(scores[known], initial=0.0) - 1.0)


def tail_correlation(scores: Floats, others: Floats, tail: Bools) -> float:
    """Return Spearman's correlation of two scores over the rows of a tail.

    It depends only on ranks, so increasing transformations of the scores do not change it.

    Args:
        scores: `[n]` finite scores.
        others: `[n]` finite scores.
        tail: `[n]` whether a row is in the tail.

    Returns:
        The correlation; NaN with fewer than two rows, or if a score is constant in the tail.
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
        rows: Number of rows of the correlation.
        confidence: One-sided confidence of each bound.

    Returns:
        The bounds; -1 and 1 with fewer than 10 rows, and the value itself if it is 1 or -1.
    """
    if rows < _LEAST:
        return Interval(-1.0, 1.0)
    if abs(value) >= 1:
        return Interval(value, value)
    half = NormalDist().inv_cdf(confidence) * math.sqrt((1 + value * value / 2) / (rows - 3))
    z = math.atanh(value)
    return Interval(math.tanh(z - half), math.tanh(z + half))


class Precision:
    """Average precision, and area under the ROC curve, of one score for many weightings of the rows.

    A bootstrap needs them. The rows are sorted once, because the order does not depend on the weights.

    Args:
        scores: `[n]` finite scores.
        labels: `[n]` whether a row is positive.
    """

    def __init__(self, scores: Floats, labels: Bools) -> None:
        self._order: Ints = np.argsort(-scores, kind="stable")
        ordered = scores[self._order]
        # Rows with equal scores are retrieved together.
        ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
        self._labels = labels[self._order]
        self._ends = ends

    def average(self, weights: Floats | None = None) -> float:
        """Return the area under the precision-recall steps: the sum of precision times the gain of recall.

        Args:
            weights: `[n]` weights of at least 0; default: 1 for every row.

        Returns:
            The average precision; NaN if all positive rows have weight 0.
        """
        own = np.ones(len(self._order)) if weights is None else weights[self._order]
        hits = np.cumsum(np.where(self._labels, own, 0.0))[self._ends]
        rows = np.cumsum(own)[self._ends]
        if not len(hits) or hits[-1] <= 0:
            return math.nan
        gain = np.diff(hits, prepend=0.0)
        precision = np.divide(hits, rows, out=np.zeros_like(hits), where=rows > 0)
        return float((precision * gain).sum() / hits[-1])

    def area(self, weights: Floats | None = None) -> float:
        """Return the area under the ROC curve: P(a positive row has the higher score), half of it for ties.

        Args:
            weights: `[n]` weights of at least 0; default: 1 for every row.

        Returns:
            The area; NaN if all rows of a class have weight 0.
        """
        own = np.ones(len(self._order)) if weights is None else weights[self._order]
        hits = np.cumsum(np.where(self._labels, own, 0.0))[self._ends]
        others = np.cumsum(own)[self._ends] - hits
        if not len(hits) or hits[-1] <= 0 or others[-1] <= 0:
            return math.nan
        gain = np.diff(hits, prepend=0.0)
        below = others[-1] - others + np.diff(others, prepend=0.0) / 2
        return float((gain * below).sum() / (hits[-1] * others[-1]))
