"""The result of computing a metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """The value of a metric with its bounds and its number of rows."""

    value: float
    rows: int
    bounds: Callable[[float], tuple[float, float]] | None = None
    """Function from a one-sided confidence to bounds; None if the value is exact."""
    chance: Callable[[float], float] | None = None
    """For distances, function from a probability to the value that random variation exceeds with it."""
    missing: str = ""
    """The reason why there is no value; empty if there is one."""
    remark: str = ""
    """A sentence with further information."""


def nothing(why: str, rows: int = 0) -> Measured:
    """Return a result without a value, and the reason."""
    return Measured(math.nan, rows, missing=why)
