"""Action bundles on logged decisions: weights and doubly robust terms of each row.

The doubly robust score of a row is linear in its reward, `base + weight * reward`. Both terms are stored, and
the reward is joined later, because another record of the log reports it. The reward model is the mean of both
bundles' oracles.
"""

from __future__ import annotations

import numpy as np

from scorer.bundle.rules import within
from scorer.learn.ope.estimators import dr_scores
from scorer.learn.ope.logged import Logged, Target
from scorer.log.columns import DecisionColumns
from scorer.release.backtest.rows import Evaluator
from scorer.release.backtest.ruling import action_masks
from scorer.stats.arrays import Bools, Floats, Ints, Rows32
from scorer.stats.means import mean_of_known


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
    values = {name: np.zeros(rows) for name in (*names, "before", "after", "rules")}
    if not usable.any():
        return usable, values
    at = np.flatnonzero(usable)
    (mine, theirs), ruled = own.rules.of_actions(decisions, at, (candidate, live))
    for name, codes in ruled.items():
        values[name][at] = codes
    # The log has no draws of actions that were not eligible, so policies are compared on the eligible ones.
    # If the rules leave none of them, the fallback answers, and the whole set stands for it.
    masks = action_masks(decisions.eligible.take(at), count)
    mine, theirs = within(masks, mine), within(masks, theirs)
    pmf, reward = own.candidate.evaluate(candidate[at], eligible=mine)
    before, known = own.live.evaluate(live[at], eligible=theirs)
    action: Ints = decisions.action[at].astype(np.int64)
    model = mean_of_known(np.where(mine, reward, np.nan), np.where(theirs, known, np.nan))
    logged = Logged(action=action, reward=np.zeros(len(at)), propensity=decisions.propensity[at])
    for prefix, policy in (("", pmf), ("live_", before)):
        target = Target(logged, policy, model)
        values[f"{prefix}weight"][at] = target.weight
        values[f"{prefix}base"][at] = dr_scores(target)
    values["same"][at] = pmf.argmax(axis=1) == before.argmax(axis=1)
    return usable, values
