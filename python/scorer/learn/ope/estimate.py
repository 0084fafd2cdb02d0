"""An estimated value with its interval, the difference of two, and the choice among several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import stats

from scorer.learn.errors import DataError
from scorer.learn.ope import intervals
from scorer.learn.ope.intervals import PseudoOutcomeDesign
from scorer.stats.arrays import Floats, Ints
from scorer.stats.means import student

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


def paired(candidate: Estimate, baseline: Estimate, *, alpha: float = 0.05) -> Estimate:
    """`candidate - baseline`, row by row, with an interval of its own.

    Args:
        candidate: of one policy, on some rows.
        baseline: of another one, on the very same rows; may be `logged_value`.
        alpha: one minus the confidence.

    Raises:
        DataError: they are not over the same rows.
    """
    if len(candidate.pseudo) != len(baseline.pseudo) or not len(candidate.pseudo):
        raise DataError(
            f"a paired difference needs the same rows; these are {len(candidate.pseudo)} "
            f"and {len(baseline.pseudo)}"
        )
    pseudo = candidate.pseudo - baseline.pseudo
    effective = min(candidate.effective_rows, baseline.effective_rows)
    ours, theirs = candidate.design, baseline.design
    if ours is not None and theirs is not None:
        first, second = ours, theirs

        def design(rows: slice) -> PseudoOutcomeDesign:
            return first(rows).minus(second(rows))

        low, high = intervals.score(pseudo, effective, design, alpha=alpha)
        kind = "score"
    else:
        low, high = intervals.student_by_size(pseudo, effective, alpha=alpha, clusters=candidate.clusters)
        kind = "t"
    return Estimate(
        value=float(pseudo.mean()),
        low=low,
        high=high,
        rows=len(pseudo),
        effective_rows=effective,
        mean_weight=candidate.mean_weight,
        largest_weight=max(candidate.largest_weight, baseline.largest_weight),
        estimator=f"{candidate.estimator} - {baseline.estimator}",
        interval=kind,
        pseudo=pseudo,
        clusters=candidate.clusters,
    )


def paired_difference(ours: npt.ArrayLike, theirs: npt.ArrayLike, *, alpha: float = 0.05) -> Estimate:
    """The mean difference of two outcomes of the same payments, with Student's interval."""
    difference = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    n = len(difference)
    low, high = student(difference, confidence=1 - alpha / 2)
    return Estimate(
        float(difference.mean()),
        low,
        high,
        n,
        float(n),
        estimator="difference",
        interval="t",
        pseudo=difference,
    )


_FACTOR = math.sqrt(6) - 1


@dataclass(frozen=True)
class Choice:
    """What SLOPE chose.

    Attributes:
        estimate: the one to believe.
        index: its position among the candidates.
        order: positions from the widest to the narrowest.
        considered: how many of `order` agreed with all wider ones.
    """

    estimate: Estimate
    index: int
    order: tuple[int, ...]
    considered: int


def slope(candidates: Sequence[Estimate], *, delta: float = 0.1) -> Choice:
    """The narrowest estimate that agrees with every wider one (Su et al., 2020; Tucker and Lee, 2021).

    From the widest on, estimate i is taken while `|V_i - V_j| <= c_i + (sqrt 6 - 1) c_j` for all j
    before it, `c` the one-sided t width at `delta`. Biases need not be ordered. An unbiased estimate
    should be among the candidates; it is then usually the widest.

    Raises:
        DataError: there is nothing to choose from.
    """
    if not candidates:
        raise DataError("SLOPE: no candidates")
    widths = [_width(candidate, delta) for candidate in candidates]
    order = tuple(int(i) for i in np.argsort(widths, kind="stable")[::-1])
    taken = 1
    for i in order[1:]:
        agrees = all(
            abs(candidates[i].value - candidates[j].value) <= widths[i] + _FACTOR * widths[j]
            for j in order[:taken]
        )
        if not agrees:
            break
        taken += 1
    index = order[taken - 1]
    return Choice(candidates[index], index, order, taken)


def _width(estimate: Estimate, delta: float) -> float:
    n = len(estimate.pseudo)
    if n < 2:
        raise DataError(f"SLOPE: {estimate.estimator} rests on {n} rows")
    return float(np.sqrt(estimate.pseudo.var() / (n - 1)) * stats.t.ppf(1 - delta, n - 1))
