"""What another policy would have earned on a log: off-policy estimates with intervals.

These are estimates, not measurements. They hold as far as the logged choices
depended on nothing but what the propensities were computed from.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Two-sided 95 %.
Z = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A value with an interval at 95 %.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
        rows: choices it rests on.
        effective_rows: how many equally weighted ones would say as much: (sum w)^2 / sum w^2.
        mean_weight: near 1 where the propensities fit.
        largest_weight: one choice's greatest say.
    """

    value: float
    low: float
    high: float
    rows: int
    effective_rows: float
    mean_weight: float = 1.0
    largest_weight: float = 1.0

    def as_dict(self) -> dict[str, float]:
        """For summaries."""
        return asdict(self)


def share(successes: int, rows: int) -> Estimate:
    """A measured rate with Wilson's interval."""
    if rows == 0:
        raise DataError("a rate over no rows; nothing was measured")
    p = successes / rows
    centre = (p + Z * Z / (2 * rows)) / (1 + Z * Z / rows)
    half = Z * math.sqrt(p * (1 - p) / rows + Z * Z / (4 * rows * rows)) / (1 + Z * Z / rows)
    return Estimate(value=p, low=centre - half, high=centre + half, rows=rows, effective_rows=float(rows))


def paired_difference(ours: Floats | Ints, theirs: Floats | Ints) -> Estimate:
    """The mean difference of two outcomes of the same payments, by the normal approximation."""
    difference = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    half = Z * float(difference.std(ddof=1)) / math.sqrt(len(difference))
    mean = float(difference.mean())
    return Estimate(mean, mean - half, mean + half, len(difference), float(len(difference)))


def snipw(weights: Floats, rewards: Floats | Ints, groups: Ints | None = None) -> Estimate:
    """Self-normalised inverse-propensity estimate with the delta method's interval.

    Args:
        weights: `[n]` target probability over logging probability of what was chosen.
        rewards: `[n]`.
        groups: `[n]` rows that belong together (attempts at one purchase) count
            as one draw in the interval; None: every row is its own.
    """
    total = float(weights.sum())
    if total <= 0:
        raise DataError("off-policy estimate: the policy never chooses what was logged; no weight is left")
    value = float((weights * rewards).sum()) / total
    return _around(value, weights * (rewards - value) / total, weights, groups)


def ipw(weights: Floats, rewards: Floats | Ints, groups: Ints | None = None) -> Estimate:
    """Inverse-propensity estimate: unbiased where the propensities are right, and wider than `snipw`."""
    value = float((weights * rewards).mean())
    return _around(value, (weights * rewards - value) / len(weights), weights, groups)


def _around(value: float, influence: Floats, weights: Floats, groups: Ints | None) -> Estimate:
    if groups is not None:
        influence = np.asarray(
            np.bincount(np.unique(groups, return_inverse=True)[1], weights=influence), dtype=np.float64
        )
    n = len(influence)
    half = Z * math.sqrt(float((influence**2).sum()) * n / max(n - 1, 1))
    return Estimate(
        value=value,
        low=value - half,
        high=value + half,
        rows=len(weights),
        effective_rows=float(weights.sum() ** 2 / (weights**2).sum()),
        mean_weight=float(weights.mean()),
        largest_weight=float(weights.max()),
    )


def estimated_propensities(chosen: Ints, cell: Ints, actions: int) -> Floats:
    """`[n]` how often each row's choice was made among the rows of its cell.

    For logs that do not hold propensities. Valid if, within a cell, the choice
    depended on nothing that also moves the reward.
    """
    counts = np.zeros((int(cell.max()) + 1, actions))
    np.add.at(counts, (cell, chosen), 1)
    return np.asarray((counts / counts.sum(axis=1, keepdims=True))[cell, chosen])
