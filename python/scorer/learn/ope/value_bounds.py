"""Bounds on the value of a policy that hold after every row, whatever the weights."""

from __future__ import annotations

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.ope.logged import Target
from scorer.stats.arrays import Floats
from scorer.stats.sequences import ConfidenceSequence, betting_lower


def value_bounds(target: Target, *, alpha: float = 0.05, cut: float = 1.0) -> ConfidenceSequence:
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
        cut: how far a pseudo-outcome may go below 0.
    """
    sides = [_bounded(target, complement, cut) for complement in (False, True)]
    lows = []
    for pseudo, floor in sides:
        found = betting_lower((pseudo + floor) / (1 + floor), alpha=alpha / 2)
        lows.append(found * (1 + floor) - floor)
    n = np.arange(1, len(target.logged) + 1)
    low, high = np.clip(lows[0], 0.0, 1.0), np.clip(1 - lows[1], 0.0, 1.0)
    return ConfidenceSequence(np.cumsum(sides[0][0]) / n, low, high)


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
