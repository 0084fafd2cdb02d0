"""What a metric comes to over some rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """A value, how surely it is known, and over how many rows."""

    value: float
    rows: int
    bounds: Callable[[float], tuple[float, float]] | None = None
    """One-sided bounds at a confidence; None where the value is what it is."""
    chance: Callable[[float], float] | None = None
    """Of distances: what chance alone exceeds with a probability."""
    missing: str = ""
    """Why there is no value, in words; empty where there is one."""
    remark: str = ""
    """What else one should know, as a sentence."""


def nothing(why: str, rows: int = 0) -> Measured:
    """Return a result without a value, and the reason."""
    return Measured(math.nan, rows, missing=why)
