"""Quantiles and their bounds by order statistics."""

from __future__ import annotations

import math

import numpy as np

from scorer.stats.arrays import Floats
from scorer.stats.distributions import binomial_quantile
from scorer.stats.interval import Interval


def quantile(values: Floats, q: float) -> float:
    """Return the smallest value that at least a share `q` of all values does not exceed.

    Args:
        values: `[n]` values; those that are not finite are ignored.
        q: Share, between 0 and 1.

    Returns:
        One of the values; NaN if there is none.
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan
    rank = max(math.ceil(q * len(values)) - 1, 0)
    return float(np.partition(values, rank)[rank])


def quantile_bounds(values: Floats, q: float, confidence: float) -> Interval:
    """Return distribution-free bounds of a quantile (David and Nagaraja, 2003, section 7.1).

    The number of values that do not exceed the quantile is binomial, so an order statistic is below (above)
    the quantile with a known probability. Ties make the bounds wider but keep them valid.

    Args:
        values: `[n]` finite values, in any order.
        q: Share, between 0 and 1.
        confidence: One-sided confidence of each bound.

    Returns:
        Two of the values; a bound is infinite if n is too small for the confidence.
    """
    n = len(values)
    if not n:
        return Interval(-math.inf, math.inf)
    ordered = values if (values[:-1] <= values[1:]).all() else np.sort(values)
    below = binomial_quantile(1 - confidence, n, q)
    above = binomial_quantile(confidence, n, q) + 1
    low = float(ordered[below - 1]) if below >= 1 else -math.inf
    high = float(ordered[above - 1]) if above <= n else math.inf
    return Interval(low, high)
