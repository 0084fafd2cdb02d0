"""AUC with DeLong's variance, and bounds of quantiles by order statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def quantile(values: Floats, q: float) -> float:
    """The smallest value that at least a share q is not above; NaN of nothing."""
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan
    at = max(math.ceil(q * len(values)) - 1, 0)
    return float(np.partition(values, at)[at])


def quantile_bounds(values: Floats, q: float, confidence: float) -> tuple[float, float]:
    """One-sided bounds of a quantile, whatever the distribution (David and Nagaraja, 2003, section 7.1).

    How many of n values are at most the quantile is binomial; so an order statistic is below (above) it with
    known probability. Ties make the bounds wider, never wrong. Infinite where n is too small for the claim.
    """
    n = len(values)
    if not n:
        return -math.inf, math.inf
    ordered = values if (values[:-1] <= values[1:]).all() else np.sort(values)
    below = int(stats.binom.ppf(1 - confidence, n, q))
    above = int(stats.binom.ppf(confidence, n, q)) + 1
    low = float(ordered[below - 1]) if below >= 1 else -math.inf
    high = float(ordered[above - 1]) if above <= n else math.inf
    return low, high


def auc(scores: Sequence[Floats], labels: Bools) -> tuple[Floats, Floats]:
    """Areas under the ROC curve of `k` scores of the same rows, and their `[k, k]` covariance.

    DeLong, DeLong and Clarke-Pearson (1988), by midranks (Sun and Xu, 2014): n log n.
    """
    positive, negative = int(labels.sum()), int((~labels).sum())
    areas, ones, zeros = [], [], []
    for score in scores:
        every = stats.rankdata(score)
        own, other = stats.rankdata(score[labels]), stats.rankdata(score[~labels])
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
