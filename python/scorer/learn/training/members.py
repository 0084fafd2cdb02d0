"""The ensemble for Thompson sampling by bagging."""

from __future__ import annotations

from collections.abc import Callable

import xgboost

from scorer.learn.decisions import DecisionRows
from scorer.learn.training.boosting import repetitions
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.trainers import Trainer
from scorer.stats.arrays import Floats


def train_members(
    settled: DecisionRows,
    weights: Floats,
    plan: TrainSettings,
    trainer: Trainer,
    advance: Callable[[str], None] = lambda _: None,
) -> tuple[xgboost.Booster, ...]:
    """Trains the plan's members, each on rows with random weights that imitate drawing the log again.

    Poisson(1) is the bootstrap for a stream; 0 or 2 with even chances has the same mean and variance with
    half the rows to train on. Each member votes for its best action; an action's probability is its share
    of the votes, counted by the policy, so the propensity is exact.
    """
    members = []
    for member in range(1, plan.members + 1):
        drawn = weights * repetitions(len(settled), member, plan)
        seen = drawn > 0
        drawn = drawn[seen] / drawn[seen].mean()
        seed = plan.seed + 1_000_003 * member
        members.append(trainer.train(settled.take(seen), drawn, seed % 2**31))
        advance(f"member {member} of {plan.members}")
    return tuple(members)
