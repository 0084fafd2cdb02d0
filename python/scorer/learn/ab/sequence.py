"""A confidence sequence for a mean over decisions whose lanes were drawn by shopper.

The asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform
central limit theory and asymptotic confidence sequences" (Annals of Statistics 52, 2024), Theorem
2.2, over the variance process of sums per shopper: all decisions of a shopper share one draw, so the
shopper is the unit of evidence, however often he comes back. With V the sum of squared deviations
of shoppers' sums, at all times together with probability 1 - alpha

    |estimate - truth| <= sqrt( 2 (V rho^2 + 1) / rho^2 * log( sqrt(V rho^2 + 1) / alpha ) ) / decisions
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bounds:
    """A mean with an interval that holds at every reading at once; infinite where nothing can be said."""

    value: float
    low: float
    high: float


def bounds(scores: Floats, shopper: Ints, alpha: float, rho2: float) -> Bounds:
    """The sequence after these decisions.

    Args:
        scores: `[n]` whose mean is asked for.
        shopper: `[n]` codes from 0.
        alpha: error over all readings.
        rho2: from `scorer.learn.ope.sequences.tune`, fixed before the first reading.
    """
    n = len(scores)
    if n == 0:
        return Bounds(math.nan, -math.inf, math.inf)
    value = float(scores.mean())
    deviation = np.bincount(shopper, scores - value)
    spread = float(deviation @ deviation) * rho2 + 1
    width = math.sqrt(2 * spread / rho2 * math.log(math.sqrt(spread) / alpha)) / n
    return Bounds(value, value - width, value + width)
