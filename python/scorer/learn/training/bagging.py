"""The ensemble for Thompson sampling: members that saw the rows with random weights.

Each member votes for its best action; an action's probability is its share of
the votes, counted by the policy, so the propensity is exact. The weights imitate
drawing the log again: Poisson(1) is the bootstrap for a stream; 0 or 2 with even
chances has the same mean and variance with half the rows to train on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import xgboost

from scorer.learn.experience import Experience
from scorer.learn.oracle import OracleTask
from scorer.learn.training.boosting import boost, exploded
from scorer.learn.training.settings import TrainSettings

Floats = npt.NDArray[np.float64]


def repetitions(rows: int, member: int, plan: TrainSettings) -> Floats:
    """`[rows]` how often a member sees each row; from 1 on, each member draws its own."""
    random = np.random.default_rng([plan.seed, member])
    if plan.member_weights == "poisson":
        return random.poisson(1.0, rows).astype(np.float64)
    return 2.0 * random.integers(0, 2, rows).astype(np.float64)


def train_members(
    task: OracleTask,
    settled: Experience,
    weights: Floats,
    plan: TrainSettings,
    advance: Callable[[str], None] = lambda _: None,
) -> tuple[xgboost.Booster, ...]:
    """Trains the plan's members on their own draws of the rows."""
    rows = exploded(task, settled)
    members = []
    for member in range(1, plan.members + 1):
        drawn = weights * repetitions(len(rows), member, plan)
        seen = drawn > 0
        drawn = drawn[seen] / drawn[seen].mean()
        seed = plan.seed + 1_000_003 * member
        members.append(boost(task, rows[seen], settled.reward[seen], drawn, plan, seed % 2**31))
        advance(f"member {member} of {plan.members}")
    return tuple(members)
