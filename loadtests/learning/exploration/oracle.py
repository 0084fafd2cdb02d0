"""The oracle that every exploration rule is given: XGBoost on context and action, as the product has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xgboost

from loadtests.learning.exploration.view import Bools, Floats, Ints

Rows32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Recipe:
    """How to train, and over which catalogue.

    Attributes:
        context: XGBoost's type of each context column, `q` or `c`.
        action: the same of each action column.
        actions: `[K, action columns]`.
        trees: how many.
        depth: of each.
        learning_rate: of boosting.
        min_child_weight: least Hessian of a leaf.
        sampled: share of rows, and of columns, that a tree sees.
    """

    context: Sequence[str]
    action: Sequence[str]
    actions: Rows32
    trees: int = 60
    depth: int = 6
    learning_rate: float = 0.3
    min_child_weight: float = 0.2
    sampled: float = 1.0

    def matrix(
        self, rows: Rows32, rewards: Floats | None = None, weights: Floats | None = None
    ) -> xgboost.DMatrix:
        """Rows of context and action as XGBoost wants them."""
        return xgboost.DMatrix(
            rows,
            rewards,
            weight=weights,
            feature_types=[*self.context, *self.action],
            enable_categorical=True,
            nthread=1,
        )

    def train(
        self, context: Rows32, action: Ints, reward: Floats, *, seed: int, weights: Floats | None = None
    ) -> Trained:
        """An oracle from what was logged: `[n, d]`, `[n]` and `[n]`."""
        rows = np.concatenate([context, self.actions[action]], axis=1)
        settings = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "max_depth": self.depth,
            "learning_rate": self.learning_rate,
            "min_child_weight": self.min_child_weight,
            "subsample": self.sampled,
            "colsample_bytree": self.sampled,
            # Categories are split by sets: few splits then tell a group of actions from the rest.
            "max_cat_to_onehot": 1,
            "max_bin": 64,
            "nthread": 1,
            "seed": seed,
        }
        return Trained(self, xgboost.train(settings, self.matrix(rows, reward, weights), self.trees))


@dataclass(frozen=True)
class Trained:
    """An oracle of one generation."""

    recipe: Recipe
    booster: xgboost.Booster = field(repr=False)

    def chosen(self, context: Rows32, action: Ints) -> Floats:
        """`[n]` P(reward) of one action each."""
        rows = np.concatenate([context, self.recipe.actions[action]], axis=1)
        return np.asarray(self.booster.predict(self.recipe.matrix(rows)), dtype=np.float64)

    def every(self, context: Rows32) -> Floats:
        """`[n, K]` P(reward) of every action."""
        flat = self.booster.predict(self.recipe.matrix(self._exploded(context)))
        return np.asarray(flat, dtype=np.float64).reshape(len(context), -1)

    def sensitivity(self, context: Rows32, eligible: Bools) -> Floats:
        """`[n, K]`: sum over trees of learning rate / (the leaf's Hessian + lambda), where eligible.

        How far one more outcome at this row would move its log-odds, per unit of gradient.
        """
        rows = self._exploded(context)[eligible.reshape(-1)]
        leaves = self.booster.predict(self.recipe.matrix(rows), pred_leaf=True)
        model = json.loads(bytes(self.booster.save_raw("json")))
        trees = model["learner"]["gradient_booster"]["model"]["trees"]
        moved, out = np.zeros(len(leaves)), np.zeros(eligible.shape)
        for tree, leaf in zip(trees, leaves.astype(np.int64).T, strict=True):
            # XGBoost's own default of lambda is 1.
            moved += self.recipe.learning_rate / (np.array(tree["sum_hessian"])[leaf] + 1.0)
        out[eligible] = moved
        return out

    def _exploded(self, context: Rows32) -> Rows32:
        actions = self.recipe.actions
        left = np.repeat(context, len(actions), axis=0)
        return np.concatenate([left, np.tile(actions, (len(context), 1))], axis=1)
