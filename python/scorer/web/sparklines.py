"""Small lines of latencies on a logarithmic scale, for tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 200
HEIGHT: Final = 36
_MARGIN: Final = 2
"""Distance of the highest and lowest point from the edges, in units of the drawing."""
_NEAR: Final = 10.0
"""Largest factor from the highest value to a limit that is drawn without flattening the values."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A line through values, in the units of a drawing of `WIDTH` by `HEIGHT` whose y axis points down."""

    points: tuple[tuple[float, float], ...]
    limit: float | None
    """Height of the limit; None: it is too far above the values."""
    width: int = WIDTH
    height: int = HEIGHT


def sparkline(values: Sequence[float], limit: float) -> Sparkline:
    """Draw values on a logarithmic scale around them, with a limit that is at most ten times the highest.

    Args:
        values: Latencies in microseconds, at least one. Times are whole microseconds, so 0 is less than 1.
        limit: The limit in microseconds, above 0.
    """
    known = [max(value, 1.0) for value in values]
    is_near = limit <= _NEAR * max(known)
    ends = [*known, limit] if is_near else known
    low, high = math.log10(min(ends)), math.log10(max(ends))
    if high - low < 1:
        # At least a factor of ten, so that small changes look small.
        low = high - 1

    def height(value: float) -> float:
        part = (math.log10(value) - low) / (high - low)
        return round(HEIGHT - _MARGIN - part * (HEIGHT - 2 * _MARGIN), 1)

    step = WIDTH / max(len(known) - 1, 1)
    points = tuple((round(at * step, 1), height(value)) for at, value in enumerate(known))
    return Sparkline(points, height(limit) if is_near else None)
