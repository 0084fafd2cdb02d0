"""Bounds of shares and of their differences: Wilson's and Newcombe's, one-sided at a confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True, slots=True)
class Bounds:
    """A value with its one-sided bounds."""

    low: float
    high: float


def wilson(hits: int, rows: int, confidence: float) -> Bounds:
    """Wilson's score bounds of a share (1927)."""
    if not rows:
        return Bounds(0.0, 1.0)
    z = float(stats.norm.ppf(confidence))
    p, n = hits / rows, float(rows)
    middle = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At the ends the formula leaves a rounding error where a 0 or 1 belongs.
    low = 0.0 if not hits else (middle - half) / scale
    high = 1.0 if hits == rows else (middle + half) / scale
    return Bounds(low, high)


def independent(first: tuple[int, int], second: tuple[int, int], confidence: float) -> Bounds:
    """Newcombe's hybrid score bounds of `p1 - p2` of two samples (1998, method 10); `(hits, rows)` each."""
    (x1, n1), (x2, n2) = first, second
    if not n1 or not n2:
        return Bounds(-1.0, 1.0)
    p1, p2 = x1 / n1, x2 / n2
    one, two = wilson(x1, n1, confidence), wilson(x2, n2, confidence)
    low = p1 - p2 - math.hypot(p1 - one.low, two.high - p2)
    high = p1 - p2 + math.hypot(one.high - p1, p2 - two.low)
    return Bounds(low, high)


def paired(both: int, first: int, second: int, neither: int, confidence: float) -> Bounds:
    """Newcombe's score bounds of the difference of two shares of the same rows (1998, method 10 of the pair).

    Args:
        both: rows with both.
        first: rows with the first alone.
        second: rows with the second alone.
        neither: the others.
        confidence: one-sided.
    """
    n = both + first + second + neither
    if not n:
        return Bounds(-1.0, 1.0)
    p1, p2 = (both + first) / n, (both + second) / n
    one, two = wilson(both + first, n, confidence), wilson(both + second, n, confidence)
    phi = _correlation(both, first, second, neither)
    below = _side(p1 - one.low, two.high - p2, phi)
    above = _side(one.high - p1, p2 - two.low, phi)
    return Bounds(p1 - p2 - below, p1 - p2 + above)


def _side(a: float, b: float, phi: float) -> float:
    return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))


def _correlation(a: int, b: int, c: int, d: int) -> float:
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    if not margins:
        return 0.0
    product: float = a * d - b * c
    if product > 0:
        # Newcombe's continuity correction keeps a strong correlation from being believed too far.
        product = max(product - (a + b + c + d) / 2, 0)
    return product / math.sqrt(margins)
