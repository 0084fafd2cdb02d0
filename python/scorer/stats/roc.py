"""Areas under ROC curves with DeLong's covariance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scorer.stats.arrays import Bools, Floats
from scorer.stats.distributions import midranks


def auc(scores: Sequence[Floats], labels: Bools) -> tuple[Floats, Floats]:
    """Return the areas under the ROC curves of `k` scores of the same rows, and their covariance.

    DeLong, DeLong and Clarke-Pearson (1988), computed by midranks in n log n (Sun and Xu, 2014).

    Args:
        scores: `k` arrays `[n]` of finite scores, greater for the class True.
        labels: `[n]`, with at least two rows of each class.

    Returns:
        Areas `[k]` and their covariance `[k, k]`.
    """
    positive, negative = int(labels.sum()), int((~labels).sum())
    areas, ones, zeros = [], [], []
    for score in scores:
        every = midranks(score)
        own, other = midranks(score[labels]), midranks(score[~labels])
        # The share of the other class that each row is ranked above.
        up = (every[labels] - own) / negative
        down = 1 - (every[~labels] - other) / positive
        areas.append(float(up.mean()))
        ones.append(up)
        zeros.append(down)
    covariance = (
        np.atleast_2d(np.cov(ones, ddof=1)) / positive + np.atleast_2d(np.cov(zeros, ddof=1)) / negative
    )
    return np.array(areas), np.asarray(covariance)
