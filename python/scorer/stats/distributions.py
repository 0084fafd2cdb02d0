"""Quantile functions of distributions, and ranks.

They call `scipy.special`. `scipy.stats`, which defines the same, imports most other packages of SciPy, and
their memory would stay in every process of the platform.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from scorer.stats.arrays import Floats


def normal_quantile(probability: float) -> float:
    """Return the value that a standard normal variable does not exceed with a probability."""
    return float(special.ndtri(probability))


def student_quantile(probability: float, degrees: float) -> float:
    """Return the value that Student's t with some degrees of freedom does not exceed with a probability."""
    return float(special.stdtrit(degrees, probability))


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the value that a beta variable with parameters a and b does not exceed with a probability."""
    return float(special.betaincinv(a, b, probability))


def chi_square_upper(probability: float, degrees: float) -> float:
    """Return the value that chi-square with some degrees of freedom exceeds with a probability."""
    return float(special.chdtri(degrees, probability))


def binomial_quantile(probability: float, n: int, share: float) -> int:
    """Return the smallest k with P(Binomial(n, share) <= k) of at least a probability, from 0 to n."""
    guess = float(special.bdtrik(probability, n, share))
    k = min(max(math.ceil(guess), 0), n) if math.isfinite(guess) else 0
    # The inverse is of a continuous extension, whose rounding can be off by one.
    while k > 0 and special.bdtr(k - 1, n, share) >= probability:
        k -= 1
    while k < n and special.bdtr(k, n, share) < probability:
        k += 1
    return k


def midranks(values: npt.NDArray[np.generic]) -> Floats:
    """Return the ranks of values, `[n]`, from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(ranks[inverse.reshape(-1)], dtype=np.float64)
