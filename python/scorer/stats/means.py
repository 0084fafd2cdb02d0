"""Intervals of means for a single analysis, and the effective size of a weighted sample."""

from __future__ import annotations

import math

import numpy as np

from scorer.stats.arrays import Floats, Ints
from scorer.stats.distributions import student_quantile
from scorer.stats.interval import Interval


def effective_sample_size(weights: Floats) -> float:
    """Return the effective sample size of weighted rows, `(sum w)^2 / sum w^2` (Kish, 1965).

    Args:
        weights: `[n]` weights.

    Returns:
        A number of at most n; 0 if all weights are 0 or there are none.
    """
    square = float((weights**2).sum())
    return float(weights.sum()) ** 2 / square if square else 0.0


def mean_of_known(one: Floats, other: Floats) -> Floats:
    """Return the mean of two estimates, element by element: one of them where the other is missing.

    Args:
        one: Estimates; NaN where there is none.
        other: Estimates of the same shape.

    Returns:
        An array of this shape; 0 where both are missing.
    """
    pair = np.stack([one, other])
    known = np.isfinite(pair)
    return np.asarray(np.where(known, pair, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))


def student(
    values: Floats, *, confidence: float, degrees: float | None = None, clusters: Ints | None = None
) -> Interval:
    """Return Student's bounds of a mean.

    Args:
        values: `[n]` values whose mean is bounded, n >= 1. For a self-normalised estimate, pass values that
            are linearised with the normaliser of the same sample (delta method).
        confidence: One-sided confidence of each bound.
        degrees: Degrees of freedom, at least 1; default: n - 1.
        clusters: `[n]` codes of clusters. The rows of one cluster count as one draw.

    Returns:
        The bounds; infinite if there is only one value or one cluster.
    """
    value = float(values.mean())
    deviations = (values - value) / len(values)
    if clusters is not None:
        groups = np.unique(clusters, return_inverse=True)[1]
        deviations = np.bincount(groups, weights=deviations).astype(np.float64)
    n = len(deviations)
    if n < 2:
        return Interval(-math.inf, math.inf)
    error = math.sqrt(float((deviations**2).sum()) * n / (n - 1))
    free = n - 1 if degrees is None else degrees
    half = student_quantile(confidence, max(free, 1.0)) * error
    return Interval(value - half, value + half)
