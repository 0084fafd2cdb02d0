"""SLOPE: which of several estimates to believe, without knowing their biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from scorer.learn.errors import DataError
from scorer.learn.ope.estimate import Estimate

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
