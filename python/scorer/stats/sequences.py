"""Confidence sequences: bounds that hold at all numbers of rows together, so a test may stop at any time.

`asymptotic` and `clustered_mean` are fast, but their level holds only after some hundred rows.
`bernstein_lower` and `betting_lower` hold for every n and require only values of at least 0. The upper bound
of a value between 0 and 1 follows from the lower bound of its complement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from scorer.stats.arrays import Floats, Ints

FIRST = 500
"""Least number of rows for finite bounds of `anytime_mean`, because its sequence is asymptotic."""


@dataclass(frozen=True)
class ConfidenceSequence:
    """Bounds after each row.

    Attributes:
        value: `[..., n]` running estimate.
        low: `[..., n]` lower bounds; minus infinity while there is none.
        high: `[..., n]` upper bounds; infinity while there is none.
    """

    value: Floats
    low: Floats
    high: Floats

    def at(self, rows: int) -> tuple[float, float, float]:
        """Return estimate, lower and upper bound of a one-dimensional sequence after `rows` rows."""
        return float(self.value[rows - 1]), float(self.low[rows - 1]), float(self.high[rows - 1])


@dataclass(frozen=True, slots=True)
class AnytimeMean:
    """A mean with bounds that hold at all analyses together.

    Attributes:
        value: The mean. Without rows it is 0 from `anytime_mean` and NaN from `clustered_mean`.
        low: Lower bound; minus infinity if it is not known.
        high: Upper bound; infinity if it is not known.
        rows: Number of values.
    """

    value: float
    low: float
    high: float
    rows: int


def tuned_rho2(alpha: float, variance: float) -> float:
    """Return the square of `rho` for which a sequence is tightest when the summed variance is `variance`.

    Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024), section 2.5. In units of the variance of one row,
    `variance` is a number of rows.

    Args:
        alpha: Error rate of both sides together.
        variance: Summed variance at which the width is smallest, chosen before the first analysis.
    """
    return (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / variance


def asymptotic(
    pseudo: npt.ArrayLike,
    *,
    alpha: float = 0.05,
    best_at: int = 5_000,
    first: int = 500,
    side: Literal["both", "lower"] = "both",
) -> ConfidenceSequence:
    """Return the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024).

    `mean +- s sqrt(2 (n p^2 + 1) / (n^2 p^2) log(sqrt(n p^2 + 1) / alpha))`, with `p` chosen so that it is
    tightest after `best_at` rows; one-sided, the logarithm is of `1 + sqrt(n p^2 + 1) / (2 alpha)`.

    Args:
        pseudo: `[..., n]` values in order of time; sequences are along the last axis.
        alpha: Probability that the bounds ever exclude the mean.
        best_at: Number of rows at which the sequence is tightest, chosen before the first analysis.
        first: Number of rows before which the bounds are infinite.
        side: "lower" for a lower bound only, which is tighter.
    """
    values = np.asarray(pseudo, dtype=np.float64)
    n = np.arange(1, values.shape[-1] + 1, dtype=np.float64)
    # The values are shifted by the first one, because sums of squares of values far from 0 lose precision.
    shift = values[..., :1]
    total = np.cumsum(values - shift, axis=-1)
    square = np.cumsum((values - shift) ** 2, axis=-1)
    mean = total / n
    spread = np.sqrt(np.maximum(square / n - mean**2, 0.0))
    level = alpha if side == "both" else 2 * alpha
    tight = tuned_rho2(level, best_at)
    grown = n * tight + 1
    inside = np.log(np.sqrt(grown) / alpha) if side == "both" else np.log1p(np.sqrt(grown) / (2 * alpha))
    half = spread * np.sqrt(2 * grown / (n * n * tight) * inside)
    half = np.where(n < first, np.inf, half)
    mean = mean + shift
    return ConfidenceSequence(
        mean, mean - half, mean + half if side == "both" else np.full_like(mean, np.inf)
    )


def anytime_mean(values: Floats, alpha: float) -> AnytimeMean:
    """Return a mean with the bounds of the asymptotic confidence sequence after the last value.

    Args:
        values: `[n]` in order of time. The expectation of each value, given the earlier values, must be the
            mean to be bounded.
        alpha: Error rate of both sides together, over all analyses.

    Returns:
        The mean with its bounds, which are infinite for fewer than 500 rows.
    """
    n = len(values)
    if n == 0:
        return AnytimeMean(0.0, -math.inf, math.inf, 0)
    value, low, high = asymptotic(values, alpha=alpha, best_at=2_000, first=FIRST).at(n)
    return AnytimeMean(value, low, high, n)


def clustered_mean(values: Floats, cluster: Ints, alpha: float, rho2: float) -> AnytimeMean:
    """Return a mean with anytime-valid bounds if rows of a cluster share one draw, such as a shopper's lane.

    The asymptotic confidence sequence (Waudby-Smith et al., Annals of Statistics 52, 2024, theorem 2.2) over
    the variance process of sums per cluster. With V the sum of squared deviations of these sums,
    `|mean - truth| <= sqrt(2 (V rho^2 + 1) / rho^2 log(sqrt(V rho^2 + 1) / alpha)) / n` at all times together
    with probability 1 - alpha.

    Args:
        values: `[n]` values whose mean is bounded.
        cluster: `[n]` codes of clusters, from 0.
        alpha: Error rate of both sides together, over all analyses.
        rho2: A value of `tuned_rho2`, chosen before the first analysis.
    """
    n = len(values)
    if n == 0:
        return AnytimeMean(math.nan, -math.inf, math.inf, 0)
    value = float(values.mean())
    deviation = np.bincount(cluster, values - value)
    spread = float(deviation @ deviation) * rho2 + 1
    width = math.sqrt(2 * spread / rho2 * math.log(math.sqrt(spread) / alpha)) / n
    return AnytimeMean(value, value - width, value + width, n)


def bernstein_lower(values: npt.ArrayLike, *, alpha: float = 0.05, largest_bet: float = 0.1) -> Floats:
    """Return predictable plug-in empirical-Bernstein lower bounds of the mean of non-negative values.

    From Fan's inequality, `exp(l y - (-log(1 - l) - l) y^2) <= 1 + l y` for `y >= -1`, with
    `y = x_i - mean_(i-1)` and the running mean held within 0 to 1 (Howard et al., 2021; Waudby-Smith et
    al., 2022): no upper bound on the values is needed.

    Args:
        values: `[..., n]` in order of time, none below 0.
        alpha: Probability that the bound ever exceeds the mean.
        largest_bet: Largest `l`. It must be small, because the loss from one large early value is never
            recovered.

    Returns:
        `[..., n]` running maximum of the bounds.

    Raises:
        ValueError: There are no values, or one is negative or NaN.
    """
    x = _never_negative(values)
    before, spread = _predictable(x)
    n = np.arange(1, x.shape[-1] + 1)
    bet = np.minimum(np.sqrt(2 * math.log(1 / alpha) / (spread * n * np.log1p(n))), largest_bet)
    cost = (-np.log1p(-bet) - bet) * (x - before) ** 2
    stake = np.cumsum(bet, axis=-1)
    low = (np.cumsum(bet * x, axis=-1) - np.cumsum(cost, axis=-1) - math.log(1 / alpha)) / stake
    return np.asarray(np.maximum.accumulate(np.maximum(low, 0.0), axis=-1))


def betting_lower(
    values: npt.ArrayLike, *, alpha: float = 0.05, part: float = 0.5, highest: float = 1.0, steps: int = 1_000
) -> Floats:
    """Return lower bounds of the mean of non-negative values by betting (Waudby-Smith and Ramdas, 2024).

    For each candidate mean `m`, the wealth is `prod(1 + l_i (x_i - m))` with a predictable stake
    `l_i = min(plug-in, part / m)`. If `m` is the mean, the probability that the wealth ever exceeds 1 / alpha
    is at most alpha. The wealth decreases with `m`, so all candidates below a rejected one are rejected too.

    Args:
        values: `[n]` in order of time, none below 0; no upper bound is needed.
        alpha: Probability that the bound ever exceeds the mean.
        part: Share of the largest possible stake that is used.
        highest: Largest candidate.
        steps: Number of candidates, evenly spaced. The bound is the largest rejected candidate.

    Returns:
        `[n]` bounds; 0 until a candidate is rejected.

    Raises:
        ValueError: There are no values, one is negative or NaN, or the array is not one-dimensional.
    """
    x = _never_negative(values)
    if x.ndim != 1:
        raise ValueError(f"betting takes one sequence at a time, not shape {x.shape}")
    _, spread = _predictable(x)
    n = np.arange(1, len(x) + 1)
    plug_in = np.sqrt(2 * math.log(1 / alpha) / (spread * n * np.log1p(n)))
    low = np.zeros(len(x))
    goal = math.log(1 / alpha)
    last = len(x)
    for candidate in highest * np.arange(1, steps + 1) / steps:
        wealth = np.cumsum(np.log1p(np.minimum(plug_in, part / candidate) * (x - candidate)))
        reached = wealth >= goal
        if not reached.any():
            break
        # Rows that reject a candidate reject all smaller ones, so `last` does not decrease.
        last = int(reached.argmax())
        low[last:] = candidate
    return low


def _never_negative(values: npt.ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.shape[-1] == 0:
        raise ValueError("a sequence over no rows")
    if not (x >= -1e-9).all():
        raise ValueError(f"{int((~(x >= -1e-9)).sum())} values of a sequence are negative or missing")
    return np.maximum(x, 0.0)


def _predictable(x: Floats) -> tuple[Floats, Floats]:
    """Return the mean and the variance of the rows before each row, each with one row of prior."""
    n = np.arange(1, x.shape[-1] + 1)
    mean = (0.5 + np.cumsum(x, axis=-1)) / (n + 1)
    before = np.minimum(_shifted(mean, 0.5), 1.0)
    variance = (0.25 + np.cumsum((x - mean) ** 2, axis=-1)) / (n + 1)
    return before, _shifted(variance, 0.25)


def _shifted(values: Floats, start: float) -> Floats:
    return np.concatenate([np.full_like(values[..., :1], start), values[..., :-1]], axis=-1)
