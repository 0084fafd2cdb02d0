"""Per-decision scores whose mean is the difference between two lanes, with the oracle's word taken off.

Augmented inverse propensity weighting over *lanes*: the propensity is the lane's planned share,
known exactly, so the scores are unbiased whatever the oracle says; the better it predicts, the less
they vary. It may even predict the same for everybody: then what is left is the mean of rewards
seen so far, each decision's from earlier ones alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scorer.learn.experience import Experience
from scorer.stats.arrays import Floats, Ints

if TYPE_CHECKING:
    from scorer.bundle import Bundle

    Shelf = Callable[[str], Bundle | None]


def expectations(shelf: Shelf, wanted: Sequence[str], experience: Experience) -> Floats | None:
    """`[n, arms]`: what the control's oracle expects of each arm's policy.

    None where a bundle is not at hand or speaks of another catalogue, or where features are withheld: nobody
    then predicts anything, and intervals are wider.

    Args:
        shelf: bundles by digest.
        wanted: digests of the arms, the control's first.
        experience: `n` decisions.
    """
    if experience.withheld:
        return None
    bundles = [shelf(digest) for digest in wanted]
    columns, reward = [], None
    for bundle in bundles:
        if (
            bundle is None
            or tuple(bundle.actions) != experience.actions
            or bundle.num_features != experience.context.shape[1]
        ):
            return None
        pmf, own = bundle.evaluate(experience.context, eligible=experience.eligible)
        reward = np.where(experience.eligible, own, 0.0) if reward is None else reward
        columns.append((pmf * reward).sum(axis=1))
    return np.stack(columns, axis=1)


def differences(arm: Ints, reward: Floats, expected: Floats, shares: Sequence[float], variant: int) -> Floats:
    """`[n]` scores whose mean estimates (reward of `variant`) - (reward of arm 0).

    Args:
        arm: `[n]` which arm decided; in order of time.
        reward: `[n]`.
        expected: `[n, arms]`, made without the reward of this or a later decision.
        shares: planned.
        variant: an arm.
    """
    n = len(arm)
    residual = reward - expected[np.arange(n), arm]
    before = np.concatenate([[0.0], np.cumsum(residual)[:-1]]) / np.maximum(np.arange(n), 1)
    centred = residual - before
    mended = np.where(arm == variant, centred / shares[variant], 0.0)
    mended -= np.where(arm == 0, centred / shares[0], 0.0)
    return np.asarray(expected[:, variant] - expected[:, 0] + mended)
