"""Action bundles on logged decisions: weights and doubly robust terms of each row.

The doubly robust score of a row is linear in its reward, `base + weight * reward`. Both terms are stored, and
the reward is joined later, because another record of the log reports it. The reward model is the mean of both
bundles' oracles.
"""

from __future__ import annotations

import numpy as np

from scorer.ids import eligible_actions
from scorer.learn.ope.estimators import dr_scores
from scorer.learn.ope.logged import Logged, Target
from scorer.log.columns import DecisionColumns
from scorer.release.backtest.rows import Evaluator
from scorer.stats.arrays import Bools, Floats, Ints, Rows32


def choices(
    own: Evaluator, decisions: DecisionColumns, candidate: Rows32, live: Rows32
) -> tuple[Bools, dict[str, Floats]]:
    """Return which decisions are usable, and the terms of both bundles for these.

    A decision is usable if a model drew its action, with its propensity, from the catalogue of both bundles.
    """
    count, rows = len(own.live.actions), len(decisions)
    usable = (decisions.pmf.counts == count) & ~decisions.fallback & (decisions.action < count)
    usable &= (decisions.propensity > 0) & (list(own.live.actions) == list(own.candidate.actions))
    names = ("weight", "live_weight", "base", "live_base", "same")
    values = {name: np.zeros(rows) for name in names}
    if not usable.any():
        return usable, values
    at = np.flatnonzero(usable)
    masks = _masks(decisions, at, count)
    pmf, reward = own.candidate.evaluate(candidate[at], eligible=masks)
    before, known = own.live.evaluate(live[at], eligible=masks)
    action: Ints = decisions.action[at].astype(np.int64)
    model = np.where(masks, (reward + known) / 2, 0.0)
    logged = Logged(action=action, reward=np.zeros(len(at)), propensity=decisions.propensity[at])
    for prefix, policy in (("", pmf), ("live_", before)):
        target = Target(logged, policy, model)
        values[f"{prefix}weight"][at] = target.weight
        values[f"{prefix}base"][at] = dr_scores(target)
    values["same"][at] = pmf.argmax(axis=1) == before.argmax(axis=1)
    return usable, values


def _masks(decisions: DecisionColumns, at: Ints, count: int) -> Bools:
    """Return the eligible actions of decisions, `[n, count]`. Each distinct mask is decoded once."""
    eligible = decisions.eligible.take(at)
    ends = np.cumsum(eligible.counts)
    whole = eligible.values.tobytes()
    masks = [whole[end - size : end] for end, size in zip(ends, eligible.counts, strict=True)]
    known = {mask: eligible_actions(mask, count) for mask in set(masks)}
    return np.stack([known[mask] for mask in masks])
