"""Average precision and the area under the ROC curve of weighted rows, computed quickly for many weights."""

from __future__ import annotations

import math

import numpy as np

from scorer.stats.arrays import Bools, Floats


class RankedScores:
    """Scores in descending order, sorted once, whose measures are then computed for any weights.

    Rows with equal scores are one step of the curve, so that their order does not matter.

    Args:
        scores: `[n]` finite scores, greater for the class True.
        labels: `[n]`.
    """

    def __init__(self, scores: Floats, labels: Bools) -> None:
        self._order = np.argsort(-scores, kind="stable")
        ordered = scores[self._order]
        self._ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(scores) else []
        self._labels = labels[self._order].astype(np.float64)

    def average_precision(self, weights: Floats) -> float:
        """Return the sum over the steps of precision times the gain in recall; NaN without positive rows.

        Args:
            weights: `[n]`, not negative.
        """
        positive, every = self._steps(weights)
        total = positive[-1] if len(positive) else 0.0
        if not total > 0:
            return math.nan
        gains = np.diff(positive, prepend=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.where(every > 0, positive / every, 0.0)
        return float((gains * precision).sum() / total)

    def auc(self, weights: Floats) -> float:
        """Return the area under the ROC curve; equal scores count half. NaN if a class has no weight.

        Args:
            weights: `[n]`, not negative.
        """
        positive, every = self._steps(weights)
        if not len(positive):
            return math.nan
        negative = every - positive
        if not (positive[-1] > 0 and negative[-1] > 0):
            return math.nan
        before = positive - np.diff(positive, prepend=0.0) / 2
        area = float((np.diff(negative, prepend=0.0) * before).sum())
        return area / float(positive[-1] * negative[-1])

    def _steps(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return cumulative weights of positive rows and of all rows at the end of each step."""
        ordered = weights[self._order]
        return np.cumsum(ordered * self._labels)[self._ends], np.cumsum(ordered)[self._ends]
