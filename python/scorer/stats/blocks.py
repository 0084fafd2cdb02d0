"""The bootstrap by day: intervals for rows that are correlated within a day.

Fraud occurs in waves, so rows of one day are not independent. Whole days are drawn with replacement (Davison
and Hinkley, 1997, section 8.2.3). Because there are few days, the bounds are Student's with the bootstrap's
standard error and one degree of freedom less than the number of days, and not quantiles of the replicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scorer.stats.arrays import Floats, Ints
from scorer.stats.distributions import student_quantile
from scorer.stats.interval import Interval

DAY_US = 86_400_000_000
LEAST = 10
"""Number of blocks to aim for. A period with fewer days is divided into shorter blocks."""
DRAWS = 300
"""Number of replicates for ratios of sums."""
FEW_DRAWS = 100
"""Number of replicates for statistics that must be computed from all rows for each."""


@dataclass(frozen=True)
class Replicated:
    """A value with its bootstrap standard error.

    Attributes:
        value: The value over all rows.
        error: Standard error; NaN if there are fewer than two blocks, or if more than half of the replicates
            are not finite.
        blocks: Number of blocks.
    """

    value: float
    error: float
    blocks: int

    def bounds(self, confidence: float) -> Interval:
        """Return the lower and the upper bound, infinite if the standard error is not known.

        Args:
            confidence: One-sided confidence of each bound.
        """
        if not math.isfinite(self.error) or self.blocks < 2:
            return Interval(-math.inf, math.inf)
        half = student_quantile(confidence, self.blocks - 1) * self.error
        return Interval(self.value - half, self.value + half)


class Blocks:
    """Rows in blocks of time, and draws of these blocks.

    Args:
        at: `[n]` microseconds since the Unix epoch.
        draws: Number of replicates.
        seed: Seed of the draws, so that the same rows give the same bounds.
    """

    def __init__(self, at: Ints, *, draws: int = DRAWS, seed: int = 0) -> None:
        self._draw(block_codes(at), draws, seed)

    @classmethod
    def of_groups(cls, group: Ints, *, draws: int = DRAWS, seed: int = 0) -> Blocks:
        """Return blocks that are groups of rows, such as the rows of each customer.

        Args:
            group: `[n]` any numbers, equal for rows of a group.
            draws: Number of replicates.
            seed: Seed of the draws.
        """
        blocks = cls.__new__(cls)
        blocks._draw(np.unique(group, return_inverse=True)[1].astype(np.int64), draws, seed)
        return blocks

    def _draw(self, code: Ints, draws: int, seed: int) -> None:
        self.code = code
        self.count = int(self.code.max()) + 1 if len(self.code) else 0
        random = np.random.default_rng(seed)
        even = np.full(self.count, 1 / self.count) if self.count else np.zeros(0)
        self._weights = random.multinomial(self.count, even, size=draws).astype(np.float64)

    def ratio(self, numerator: Floats, denominator: Floats) -> Replicated:
        """Return the ratio of two sums over rows, such as a change of recall.

        Args:
            numerator: `[n]`.
            denominator: `[n]`; its sum is not 0.
        """
        above, below = (
            np.bincount(self.code, values, minlength=self.count) for values in (numerator, denominator)
        )
        value = float(above.sum() / below.sum()) if below.sum() else math.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates = (self._weights @ above) / (self._weights @ below)
        return self._of(value, replicates)

    def of(self, statistic: Callable[[Floats], float]) -> Replicated:
        """Return a function of the rows' weights. The standard error uses the first 100 draws.

        Args:
            statistic: Function of the weights `[n]`, which state how often each row was drawn.
        """
        value = statistic(np.ones(len(self.code)))
        some = self._weights[:FEW_DRAWS]
        return self._of(value, np.array([statistic(drawn[self.code]) for drawn in some]))

    def _of(self, value: float, replicates: Floats) -> Replicated:
        known = replicates[np.isfinite(replicates)]
        if self.count < 2 or len(known) < len(replicates) / 2:
            return Replicated(value, math.nan, self.count)
        # The variance of draws from m blocks is smaller than the blocks' variance by the factor (m - 1) / m.
        error = float(known.std(ddof=1)) * math.sqrt(self.count / (self.count - 1))
        return Replicated(value, error, self.count)


def block_codes(at: Ints) -> Ints:
    """Return the block of each row, from 0 without gaps: its day, or a shorter span in a period of few days.

    Args:
        at: `[n]` microseconds since the Unix epoch.
    """
    if not len(at):
        return np.zeros(0, np.int64)
    span = int(at.max() - at.min()) + 1
    length = min(DAY_US, max(span // LEAST, 1))
    return np.unique(at // length, return_inverse=True)[1].astype(np.int64)
