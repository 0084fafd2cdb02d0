"""The oracle's trees: one call of XGBoost under the plan's settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from scorer.learn.experience import Experience
from scorer.learn.oracle import OracleTask
from scorer.learn.training.settings import TrainSettings

Rows32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


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
