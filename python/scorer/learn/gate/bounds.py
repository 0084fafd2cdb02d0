"""A mean with bounds that may be read at any time, for every figure that the gate judges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scorer.learn.ope.sequences import asymptotic

Floats = npt.NDArray[np.float64]

# Before so many decisions nothing is claimed: the sequence is an asymptotic one.
FIRST = 500


@dataclass(frozen=True)
class Bounded:
    """A mean with an interval that holds at every sample size at once; infinite where nothing is claimed."""

    value: float
    low: float
    high: float
    rows: int


def bounded(values: Floats, alpha: float) -> Bounded:
    """The asymptotic confidence sequence after the last of `values`.

    Args:
        values: `[n]` in order of time, each with the mean wanted given what came before.
        alpha: error rate of both sides together.
    """
    n = len(values)
    if n == 0:
        return Bounded(0.0, -math.inf, math.inf, 0)
    value, low, high = asymptotic(values, alpha=alpha, best_at=2_000, first=FIRST).at(n)
    return Bounded(value, low, high, n)
