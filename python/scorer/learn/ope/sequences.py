"""Confidence sequences: intervals that hold at every row at once, so they may be read every day and acted on.

`asymptotic` is cheap and needs some hundred rows before it may be believed; `bernstein_lower` and
`betting_lower` hold for every n, and only need values that are not negative. The upper side of a value
between 0 and 1 comes from the lower side of its complement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.learn.ope.logged import Target

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sequence:
    """Bounds after each row.

    Attributes:
        value: `[..., n]` running estimate.
        low: `[..., n]` lower bounds; minus infinity where none is known yet.
        high: `[..., n]` upper bounds.
    """

    value: Floats
    low: Floats
    high: Floats

    def at(self, rows: int) -> tuple[float, float, float]:
        """Value, low and high after so many rows of a single sequence."""
        return float(self.value[rows - 1]), float(self.low[rows - 1]), float(self.high[rows - 1])


def tune(alpha: float, variance: float) -> float:
    """The square of `p` at which `asymptotic` is tightest once the summed variance is `variance`.

    Section 2.5 of the same paper. In units of one row's variance that is a number of rows.
    """
    return (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / variance


def asymptotic(
    pseudo: npt.ArrayLike,
    *,
    alpha: float = 0.05,
    best_at: int = 5_000,
    first: int = 500,
    side: Literal["both", "lower"] = "both",
) -> Sequence:
    """The asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2024).

    `mean +- s sqrt(2 (n p^2 + 1) / (n^2 p^2) log(sqrt(n p^2 + 1) / alpha))`, with `p` chosen so that it is
    tightest after `best_at` rows; one-sided, the logarithm is of `1 + sqrt(n p^2 + 1) / (2 alpha)`.

    Args:
        pseudo: `[..., n]` values in order of time; sequences are along the last axis.
        alpha: how often it may ever be wrong.
        best_at: rows at which it is to be tightest; fix it before looking.
        first: before so many rows nothing is claimed.
        side: "lower": only a lower bound, which is tighter.
    """
    values = np.asarray(pseudo, dtype=np.float64)
    n = np.arange(1, values.shape[-1] + 1, dtype=np.float64)
    # Shifted by the first value: sums of squares of values far from 0 would lose digits.
    shift = values[..., :1]
    total = np.cumsum(values - shift, axis=-1)
    square = np.cumsum((values - shift) ** 2, axis=-1)
    mean = total / n
    spread = np.sqrt(np.maximum(square / n - mean**2, 0.0))
    level = alpha if side == "both" else 2 * alpha
    tight = tune(level, best_at)
    grown = n * tight + 1
    inside = np.log(np.sqrt(grown) / alpha) if side == "both" else np.log1p(np.sqrt(grown) / (2 * alpha))
    half = spread * np.sqrt(2 * grown / (n * n * tight) * inside)
    half = np.where(n < first, np.inf, half)
    mean = mean + shift
    return Sequence(mean, mean - half, mean + half if side == "both" else np.full_like(mean, np.inf))


def bernstein_lower(values: npt.ArrayLike, *, alpha: float = 0.05, largest_bet: float = 0.1) -> Floats:
    """Predictable plug-in empirical-Bernstein lower bounds for the mean of values that are never negative.

    From Fan's inequality, `exp(l y - (-log(1 - l) - l) y^2) <= 1 + l y` for `y >= -1`, with
    `y = x_i - mean_(i-1)` and the running mean held within 0 to 1 (Howard et al., 2021; Waudby-Smith et
    al., 2022): no upper bound on the values is needed.

    Args:
        values: `[..., n]` in order of time, none below 0.
        alpha: how often the bounds may ever be above the mean.
        largest_bet: the largest `l`; small, as an early loss from one heavy value is never won back.

    Returns:
        `[..., n]` running maximum of the bounds.
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
    """Lower bounds by betting (Waudby-Smith and Ramdas, 2024) for the mean of values that are never negative.

    Against each candidate mean `m` a gambler holds `prod(1 + l_i (x_i - m))` with a predictable stake
    `l_i = min(plug-in, part / m)`. Under `m` that wealth exceeds 1 / alpha with probability at most
    alpha, ever. Wealth falls with `m`, so all candidates below a refuted one are refuted too.

    Args:
        values: `[n]` in order of time, none below 0; no upper bound is needed.
        alpha: how often the bounds may ever be above the mean.
        part: how much of what may be staked is.
        highest: greatest mean that is asked about.
        steps: candidates, evenly spread; the bound is the greatest refuted one.

    Returns:
        `[n]` bounds; 0 while nothing is refuted.
    """
    x = _never_negative(values)
    if x.ndim != 1:
        raise DataError(f"betting takes one sequence at a time, not shape {x.shape}")
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
        # What refutes a candidate refutes all smaller ones, so times only grow.
        last = int(reached.argmax())
        low[last:] = candidate
    return low


def value_bounds(
    target: Target,
    *,
    alpha: float = 0.05,
    method: Literal["betting", "bernstein"] = "betting",
    cut: float = 1.0,
) -> Sequence:
    """Bounds on a policy's value after each row, valid for every n and whatever the weights.

    Rewards are between 0 and 1. Lower: from `w (r - c) + sum pi c`, which with a predictable control
    `c = min(q, cut / w)` is never below `-cut` (Waudby-Smith et al., 2022, arXiv 2210.10768). Upper: one
    minus the lower bound of the complement `1 - r` with the control of `1 - q`. Target mass where the log
    could not go is counted as lost on the lower side and as won on the upper.

    Args:
        target: weights of every action are needed for the control; without a model there is none,
            and propensities alone will do. The model must not have learned from the row or any later
            one: `cross_fit(..., forward=True)`.
        alpha: how often the bounds may ever be wrong, both sides together.
        method: "bernstein" is faster, "betting" tighter.
        cut: how far a pseudo-outcome may go below 0.
    """
    sides = [_bounded(target, complement, cut) for complement in (False, True)]
    lows = []
    for pseudo, floor in sides:
        moved = (pseudo + floor) / (1 + floor)
        found = (
            betting_lower(moved, alpha=alpha / 2)
            if method == "betting"
            else bernstein_lower(moved, alpha=alpha / 2)
        )
        lows.append(found * (1 + floor) - floor)
    n = np.arange(1, len(target.logged) + 1)
    low, high = np.clip(lows[0], 0.0, 1.0), np.clip(1 - lows[1], 0.0, 1.0)
    return Sequence(np.cumsum(sides[0][0]) / n, low, high)


def _bounded(target: Target, complement: bool, cut: float) -> tuple[Floats, float]:
    """Pseudo-outcomes and how far below 0 they may go."""
    reward = target.logged.reward
    if ((reward < 0) | (reward > 1)).any():
        raise DataError("bounds on a value need rewards between 0 and 1")
    if (target.weight < 0).any():
        raise DataError("bounds on a value need weights that are not negative")
    reward = 1 - reward if complement else reward
    if target.model is None:
        return np.asarray(target.weight * reward), 0.0
    model = np.clip(1 - target.model if complement else target.model, 0.0, 1.0)
    weights = target.weights(slice(None))
    control = np.minimum(model, np.divide(cut, weights, out=np.ones_like(weights), where=weights > 0))
    taken = control[np.arange(len(reward)), target.logged.action]
    # What the log could not have taken has no weight, so its control must not be counted either.
    direct = np.where(weights > 0, target.pmf * control, 0.0).sum(axis=1)
    return np.asarray(direct + target.weight * (reward - taken)), cut


def _never_negative(values: npt.ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.shape[-1] == 0:
        raise DataError("a sequence over no rows")
    if not (x >= -1e-9).all():
        raise DataError(f"{int((~(x >= -1e-9)).sum())} values of a sequence are negative or missing")
    return np.maximum(x, 0.0)


def _predictable(x: Floats) -> tuple[Floats, Floats]:
    """Mean and variance before each row, each with a row of prior belief."""
    n = np.arange(1, x.shape[-1] + 1)
    mean = (0.5 + np.cumsum(x, axis=-1)) / (n + 1)
    before = np.minimum(_shifted(mean, 0.5), 1.0)
    variance = (0.25 + np.cumsum((x - mean) ** 2, axis=-1)) / (n + 1)
    return before, _shifted(variance, 0.25)


def _shifted(values: Floats, start: float) -> Floats:
    return np.concatenate([np.full_like(values[..., :1], start), values[..., :-1]], axis=-1)
