"""One-sided bounds of shares and of differences of shares.

Every function takes a one-sided confidence: each of the two bounds holds with that probability, so the
interval between them holds with probability `2 * confidence - 1`.
"""

from __future__ import annotations

import math

from scorer.stats.distributions import normal_quantile
from scorer.stats.interval import Interval


def wilson(hits: int, rows: int, confidence: float) -> Interval:
    """Return Wilson's score bounds of a share (1927).

    Args:
        hits: Number of rows that count, at most `rows`.
        rows: Number of all rows; for 0 rows the bounds are 0 and 1.
        confidence: One-sided confidence, from 0.5 to below 1.
    """
    if not rows:
        return Interval(0.0, 1.0)
    z = normal_quantile(confidence)
    share, square = hits / rows, z * z
    centre = (2 * hits + square) / (2 * (rows + square))
    half = z / (2 * (rows + square)) * math.sqrt(4 * rows * share * (1 - share) + square)
    return Interval(centre - half if hits else 0.0, centre + half if hits < rows else 1.0)


def independent_difference(first: tuple[int, int], second: tuple[int, int], confidence: float) -> Interval:
    """Return Newcombe's hybrid score bounds of the difference of the shares of two samples (1998, method 10).

    Args:
        first: `(hits, rows)` of the first sample.
        second: `(hits, rows)` of the second sample, whose share is subtracted.
        confidence: One-sided confidence.

    Returns:
        Bounds between -1 and 1; -1 and 1 if a sample has no rows.
    """
    (x1, n1), (x2, n2) = first, second
    if not n1 or not n2:
        return Interval(-1.0, 1.0)
    p1, p2 = x1 / n1, x2 / n2
    one, two = wilson(x1, n1, confidence), wilson(x2, n2, confidence)
    low = p1 - p2 - math.hypot(p1 - one.low, two.high - p2)
    high = p1 - p2 + math.hypot(one.high - p1, p2 - two.low)
    return Interval(low, high)


def paired_difference(both: int, first: int, second: int, neither: int, confidence: float) -> Interval:
    """Return Newcombe's score bounds of the difference of two shares of the same rows (1998, method 10).

    Args:
        both: Rows that count on both sides.
        first: Rows that count on the first side only.
        second: Rows that count on the second side only; its share is subtracted.
        neither: All other rows.
        confidence: One-sided confidence.

    Returns:
        Bounds between -1 and 1; -1 and 1 if there are no rows.
    """
    n = both + first + second + neither
    if not n:
        return Interval(-1.0, 1.0)
    p1, p2 = (both + first) / n, (both + second) / n
    one, two = wilson(both + first, n, confidence), wilson(both + second, n, confidence)
    phi = _correlation(both, first, second, neither)
    below = _side(p1 - one.low, two.high - p2, phi)
    above = _side(one.high - p1, p2 - two.low, phi)
    return Interval(p1 - p2 - below, p1 - p2 + above)


def _side(a: float, b: float, phi: float) -> float:
    return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))


def _correlation(a: int, b: int, c: int, d: int) -> float:
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    if not margins:
        return 0.0
    product: float = a * d - b * c
    if product > 0:
        # Newcombe's continuity correction: without it, a strong correlation makes the bounds too narrow.
        product = max(product - (a + b + c + d) / 2, 0)
    return product / math.sqrt(margins)
