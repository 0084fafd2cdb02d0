"""An estimated value with its interval and, row by row, what it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.learn.ope.moments import PseudoOutcomeDesign

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Two-sided 95 %.
Z = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A value with an interval, at 95 % unless said otherwise.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
        rows: choices it rests on.
        effective_rows: how many equally weighted ones would say as much: (sum w)^2 / sum w^2.
        mean_weight: near 1 where the propensities fit.
        largest_weight: one choice's greatest say.
        estimator: its name.
        interval: how the interval was made.
        pseudo: `[n]` pseudo-outcomes whose mean is `value`: what differences and sequences are made
            of. Empty where the estimate has none.
        clusters: `[n]` rows that count as one draw; None: every row is its own.
        design: moments of the pseudo-outcomes under the reward model; None where they are not known.
    """

    value: float
    low: float
    high: float
    rows: int
    effective_rows: float
    mean_weight: float = 1.0
    largest_weight: float = 1.0
    estimator: str = ""
    interval: str = ""
    pseudo: Floats = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    clusters: Ints | None = field(default=None, repr=False, compare=False)
    design: Callable[[slice], PseudoOutcomeDesign] | None = field(default=None, repr=False, compare=False)

    @property
    def width(self) -> float:
        """Width of the confidence interval."""
        return self.high - self.low

    def as_dict(self) -> dict[str, float | str]:
        """Return the numbers of the estimate as plain JSON."""
        names = ("value", "low", "high", "rows", "effective_rows", "mean_weight", "largest_weight")
        numbers: dict[str, float | str] = {name: getattr(self, name) for name in names}
        return numbers | {"estimator": self.estimator, "interval": self.interval}


def share(successes: int, rows: int) -> Estimate:
    """A measured rate with Wilson's interval."""
    if rows == 0:
        raise DataError("a rate over no rows; nothing was measured")
    p = successes / rows
    centre = (p + Z * Z / (2 * rows)) / (1 + Z * Z / rows)
    half = Z * math.sqrt(p * (1 - p) / rows + Z * Z / (4 * rows * rows)) / (1 + Z * Z / rows)
    return Estimate(
        value=p,
        low=centre - half,
        high=centre + half,
        rows=rows,
        effective_rows=float(rows),
        estimator="rate",
        interval="wilson",
    )
