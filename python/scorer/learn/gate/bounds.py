"""Bounds that may be read at any time: what the gate needs of a confidence sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bounded:
    """A mean with an interval that holds at every sample size at once."""

    value: float
    low: float
    high: float
    rows: int


def bounded(values: Floats, alpha: float, *, tuned_rows: int = 2_000) -> Bounded:
    """An asymptotic confidence sequence for the mean of `values`.

    Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic
    confidence sequences" (Annals of Statistics 52, 2024), Theorem 2.2: with standard deviation s,
    ``s sqrt( 2 (n rho^2 + 1) / (n^2 rho^2) log( sqrt(n rho^2 + 1) / alpha ) )`` around the mean, at
    all n at once.

    Args:
        values: `[n]`, each with the mean wanted given what came before.
        alpha: error rate of both sides together.
        tuned_rows: the sample size at which the interval is tightest.
    """
    n = len(values)
    mean = float(values.mean()) if n else 0.0
    if n < 2:
        return Bounded(mean, -math.inf, math.inf, n)
    rho2 = (-2 * math.log(alpha) + math.log(1 - 2 * math.log(alpha))) / tuned_rows
    inside = 2 * (n * rho2 + 1) / (n * n * rho2) * math.log(math.sqrt(n * rho2 + 1) / alpha)
    half = float(values.std(ddof=1)) * math.sqrt(inside)
    return Bounded(mean, mean - half, mean + half, n)
