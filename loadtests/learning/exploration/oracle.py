"""The oracle of every exploration rule: XGBoost on context and action, as in the product."""

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
    """The training settings of an oracle, and its catalogue of actions.

    Attributes:
        context: XGBoost's type of each context column, `q` or `c`.
        action: XGBoost's type of each action column.
        actions: `[K, action columns]` features of the actions.
        trees: Number of trees.
        depth: Depth of each tree.
        learning_rate: Learning rate of the boosting.
        min_child_weight: Least Hessian of a leaf.
        sampled: Share of rows, and of columns, on which a tree is trained.
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
        """Convert rows of context and action to XGBoost's format."""
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
        """Train an oracle on logged `[n, d]` contexts, `[n]` actions and `[n]` rewards."""
        rows = np.concatenate([context, self.actions[action]], axis=1)
        settings = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "max_depth": self.depth,
            "learning_rate": self.learning_rate,
            "min_child_weight": self.min_child_weight,
            "subsample": self.sampled,
            "colsample_bytree": self.sampled,
            # Categories are split by sets, so few splits can separate a group of actions.
            "max_cat_to_onehot": 1,
            "max_bin": 64,
            "nthread": 1,
            "seed": seed,
        }
        return Trained(self, xgboost.train(settings, self.matrix(rows, reward, weights), self.trees))


@dataclass(frozen=True)
class Trained:
    """The oracle of one generation."""

    recipe: Recipe
    booster: xgboost.Booster = field(repr=False)

    def chosen(self, context: Rows32, action: Ints) -> Floats:
        """Return `[n]` P(reward) of one action for each row."""
        rows = np.concatenate([context, self.recipe.actions[action]], axis=1)
        return np.asarray(self.booster.predict(self.recipe.matrix(rows)), dtype=np.float64)

    def every(self, context: Rows32) -> Floats:
        """Return `[n, K]` P(reward) of every action."""
        flat = self.booster.predict(self.recipe.matrix(self._exploded(context)))
        return np.asarray(flat, dtype=np.float64).reshape(len(context), -1)

    def sensitivity(self, context: Rows32, eligible: Bools) -> Floats:
        """Return `[n, K]` the sum over trees of learning rate / (leaf Hessian + lambda), where eligible.

        It is the change of a row's log-odds by one more outcome, per unit of gradient.
        """
        rows = self._exploded(context)[eligible.reshape(-1)]
        leaves = self.booster.predict(self.recipe.matrix(rows), pred_leaf=True)
        model = json.loads(bytes(self.booster.save_raw("json")))
        trees = model["learner"]["gradient_booster"]["model"]["trees"]
        moved, out = np.zeros(len(leaves)), np.zeros(eligible.shape)
        for tree, leaf in zip(trees, leaves.astype(np.int64).T, strict=True):
            # XGBoost's default of lambda is 1.
            moved += self.recipe.learning_rate / (np.array(tree["sum_hessian"])[leaf] + 1.0)
        out[eligible] = moved
        return out

    def _exploded(self, context: Rows32) -> Rows32:
        actions = self.recipe.actions
        left = np.repeat(context, len(actions), axis=0)
        return np.concatenate([left, np.tile(actions, (len(context), 1))], axis=1)
