"""Reward predictions for every action that no row has taught itself."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.stats.arrays import Floats, Ints, Rows32

Predict = Callable[[Rows32], Floats]

_BLOCK_CELLS = 1 << 20


class Learner(Protocol):
    """Learns rewards; what it returns predicts them for rows of context and action columns."""

    def __call__(self, rows: Rows32, reward: Floats) -> Predict:
        """Learns from `[n, columns]` rows and their rewards."""
        ...


@dataclass(frozen=True)
class Trees:
    """The learner by default: XGBoost with log loss, small and slow-learning.

    Attributes:
        types: XGBoost's column types ("q", "c", "i"), context then action; None: all numbers.
        trees: how many.
        depth: of each.
        learning_rate: of each.
        min_child_weight: rewards are close to coin tosses; leaves of few rows would learn the tosses.
        threads: for training and prediction.
        seed: of the rows each tree sees.
    """

    types: tuple[str, ...] | None = None
    trees: int = 100
    depth: int = 4
    learning_rate: float = 0.1
    min_child_weight: float = 10.0
    threads: int = 1
    seed: int = 0

    def __call__(self, rows: Rows32, reward: Floats) -> Predict:
        """Trains; a training set whose rewards are all alike predicts a share a little inside."""
        import xgboost

        if not 0 < reward.sum() < len(reward):
            constant = (float(reward.sum()) + 0.5) / (len(reward) + 1)
            return lambda given: np.full(len(given), constant)

        def matrix(given: Rows32, label: Floats | None = None) -> xgboost.DMatrix:
            types = None if self.types is None else list(self.types)
            return xgboost.DMatrix(
                given, label, feature_types=types, enable_categorical=True, nthread=self.threads
            )

        settings: dict[str, Any] = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "max_depth": self.depth,
            "learning_rate": self.learning_rate,
            "min_child_weight": self.min_child_weight,
            "subsample": 0.8,
            "nthread": self.threads,
            "seed": self.seed,
        }
        booster = xgboost.train(settings, matrix(rows, reward), self.trees)
        return lambda given: np.asarray(booster.predict(matrix(given)), dtype=np.float64)


def cross_fit(
    context: Rows32,
    action: Ints,
    reward: Floats,
    action_rows: Rows32,
    *,
    fold: Ints,
    learner: Learner | None = None,
    forward: bool = False,
) -> Floats:
    """`[n, K]` predicted rewards of every action for every row, by models that the row did not teach.

    Args:
        context: `[n, context columns]`.
        action: `[n]` what was taken.
        reward: `[n]`.
        action_rows: `[K, action columns]` what the model sees of each action.
        fold: `[n]` from 0, as `folds_by_name` or `folds_by_time` make them.
        learner: in place of `Trees()`.
        forward: learn each fold from earlier folds only, as sequences need it (the first one is
            predicted 0.5, knowing nothing); else from all others.

    Raises:
        DataError: there is one fold only.
    """
    learner = learner or Trees()
    names = np.unique(fold)
    if len(names) < 2:
        raise DataError("cross-fitting needs two folds or more; there is one")
    taught = np.concatenate([context, action_rows[action]], axis=1).astype(np.float32, copy=False)
    found = np.full((len(action), len(action_rows)), 0.5)
    for held in names:
        out = np.flatnonzero(fold == held)
        others = fold < held if forward else fold != held
        if not others.any():
            continue
        predict = learner(taught[others], reward[others])
        found[out] = _every_action(predict, context[out], action_rows)
    return found


def folds_by_name(names: npt.NDArray[np.str_], folds: int, *, seed: int = 0) -> Ints:
    """`[n]` a fold for every row by a hash of its name: all rows of one shopper share one."""
    salt = f"fold {seed} ".encode()
    return np.array([zlib.crc32(salt + str(name).encode()) % folds for name in names], dtype=np.int64)


def folds_by_time(time_ms: Ints, folds: int) -> Ints:
    """`[n]` consecutive blocks of equal size."""
    rank = np.argsort(np.argsort(time_ms, kind="stable"), kind="stable")
    return np.asarray(rank * folds // max(len(time_ms), 1), dtype=np.int64)


def estimated_pmf(chosen: Ints, cell: Ints, actions: int) -> Floats:
    """Return how often each action was taken in a row's cell, `[n, actions]`, for logs without propensities.

    Valid if, within a cell, the choice depended on nothing that also moves the reward.

    Args:
        chosen: `[n]` position of the action taken.
        cell: `[n]` codes from 0.
        actions: size of the catalogue.
    """
    counts = np.zeros((int(cell.max()) + 1, actions))
    np.add.at(counts, (cell, chosen), 1)
    return np.asarray((counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))[cell])


def _every_action(predict: Predict, context: Rows32, action_rows: Rows32) -> Floats:
    count = len(action_rows)
    out = np.empty((len(context), count))
    step = max(1, _BLOCK_CELLS // count)
    for start in range(0, len(context), step):
        part = context[start : start + step]
        rows = np.concatenate(
            [np.repeat(part, count, axis=0), np.tile(action_rows, (len(part), 1))], axis=1
        ).astype(np.float32, copy=False)
        out[start : start + step] = predict(rows).reshape(len(part), count)
    return out
