"""The oracle's trees under the plan's settings, and the ensemble for Thompson sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xgboost

from scorer.learn.experience import Experience
from scorer.learn.oracle import OracleTask
from scorer.learn.training.settings import TrainSettings
from scorer.stats.arrays import Floats, Rows32


def exploded(task: OracleTask, experience: Experience) -> Rows32:
    """`[n, context + action columns]` each context beside the columns of the action that it got."""
    return np.concatenate([experience.context, task.action_rows()[experience.action]], axis=1)


def boost(
    task: OracleTask,
    rows: Rows32,
    reward: Floats,
    weights: Floats,
    plan: TrainSettings,
    seed: int | None = None,
) -> xgboost.Booster:
    """Trains on `[n]` rows with log loss.

    Args:
        task: what the columns are.
        rows: `[n, columns]`.
        reward: `[n]` 0 or 1.
        weights: `[n]`, mean 1: `min_child_weight` and the regularisation count in them.
        plan: trees and their shape.
        seed: in place of the plan's.
    """
    settings: dict[str, Any] = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": plan.depth,
        "learning_rate": plan.learning_rate,
        # Outcomes are close to coin tosses, so leaves of few rows would learn the tosses.
        "min_child_weight": plan.min_child_weight,
        "subsample": plan.subsample,
        "colsample_bytree": plan.colsample,
        "nthread": plan.threads,
        "seed": plan.seed if seed is None else seed,
    }
    return xgboost.train(settings, task.matrix(rows, reward, weights), plan.trees)


def margins(task: OracleTask, booster: xgboost.Booster, rows: Rows32) -> Floats:
    """`[n]` log-odds, before any calibration."""
    return np.asarray(booster.predict(task.matrix(rows), output_margin=True), dtype=np.float64)


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
    """Trains the plan's members, each on rows with random weights that imitate drawing the log again.

    Poisson(1) is the bootstrap for a stream; 0 or 2 with even chances has the same mean and variance with
    half the rows to train on. Each member votes for its best action; an action's probability is its share
    of the votes, counted by the policy, so the propensity is exact.
    """
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
