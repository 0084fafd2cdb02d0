"""The oracle's trees under the plan's settings, from rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xgboost

from scorer.learn.decisions import DecisionBlock
from scorer.learn.experience import Experience
from scorer.learn.oracle import OracleTask
from scorer.learn.training.settings import TrainSettings
from scorer.stats.arrays import Floats, Rows32


def exploded(task: OracleTask, experience: Experience | DecisionBlock) -> Rows32:
    """`[n, context + action columns]` each context beside the columns of the action that it got."""
    return np.concatenate([experience.context, task.action_rows()[experience.action]], axis=1)


def booster_settings(plan: TrainSettings, seed: int | None = None) -> dict[str, Any]:
    """Return XGBoost's parameters.

    Args:
        plan: trees and their shape.
        seed: in place of the plan's.
    """
    return {
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


class TreeProgress(xgboost.callback.TrainingCallback):
    """Reports each tree of a training."""

    def __init__(self, trees: int, report: Callable[[int, int], None]) -> None:
        self._trees = trees
        self._report = report

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Report the number of trees so far, and of all trees."""
        self._report(epoch + 1, self._trees)
        return False


def boost(
    task: OracleTask,
    rows: Rows32,
    reward: Floats,
    weights: Floats,
    plan: TrainSettings,
    seed: int | None = None,
    *,
    callbacks: Sequence[xgboost.callback.TrainingCallback] = (),
) -> xgboost.Booster:
    """Trains on `[n]` rows with log loss.

    Args:
        task: what the columns are.
        rows: `[n, columns]`.
        reward: `[n]` 0 or 1.
        weights: `[n]`, mean 1: `min_child_weight` and the regularisation count in them.
        plan: trees and their shape.
        seed: in place of the plan's.
        callbacks: called during training.
    """
    matrix = task.matrix(rows, reward, weights)
    return xgboost.train(booster_settings(plan, seed), matrix, plan.trees, callbacks=list(callbacks))


def margins(task: OracleTask, booster: xgboost.Booster, rows: Rows32) -> Floats:
    """`[n]` log-odds, before any calibration."""
    return np.asarray(booster.predict(task.matrix(rows), output_margin=True), dtype=np.float64)


def repetitions(rows: int, member: int, plan: TrainSettings) -> Floats:
    """`[rows]` how often a member sees each row; from 1 on, each member draws its own."""
    random = np.random.default_rng([plan.seed, member])
    if plan.member_weights == "poisson":
        return random.poisson(1.0, rows).astype(np.float64)
    return 2.0 * random.integers(0, 2, rows).astype(np.float64)
