"""The model of `unlabelled = "modelled"`: P(the label is ever positive | features), from old decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scorer.learn.errors import DataError
from scorer.stats.arrays import Floats, Ints, Rows32

if TYPE_CHECKING:
    import xgboost

_TREES: Final = 60
_PARAMETERS: Final[dict[str, Any]] = {
    "objective": "binary:logistic",
    "tree_method": "hist",
    "max_depth": 4,
    "learning_rate": 0.1,
    "min_child_weight": 5,
    "nthread": 1,
    "seed": 0,
}
_FEWEST: Final = 20


@dataclass(frozen=True)
class LabelModel:
    """Boosted trees over the features of decisions.

    Attributes:
        booster: The trees.
        rows: Number of decisions that they were fitted on.
        positive: Of these, with a positive label.
        mean: Mean of the fitted probabilities over these decisions.
    """

    booster: xgboost.Booster
    rows: int
    positive: int
    mean: float

    def probabilities(self, context: Rows32) -> Floats:
        """Return `[n]` probabilities for features `[n, features]`."""
        import xgboost

        return np.asarray(self.booster.predict(xgboost.DMatrix(context)), np.float64)

    def notes(self) -> dict[str, Any]:
        """Return what the lineage records."""
        return {
            "trees": _TREES,
            "parameters": _PARAMETERS,
            "rows": self.rows,
            "positive": self.positive,
            "mean": round(self.mean, 9),
        }


def fit_label_model(context: Rows32, label: Ints, weight: Floats) -> LabelModel:
    """Fit the model on decisions that are old enough that hardly a label still comes.

    Args:
        context: ``[n, features]``.
        label: ``[n]`` 0 or 1.
        weight: ``[n]`` number of decisions that each stands for.

    Raises:
        DataError: There are too few decisions of one of the labels.
    """
    import xgboost

    positive = int((label == 1).sum())
    if min(positive, len(label) - positive) < _FEWEST:
        raise DataError(
            f'unlabelled = "modelled": {len(label):,} decisions are old enough, {positive:,} of them '
            f'positive, and the model needs {_FEWEST} of each label; read a longer log, or use "weighted"'
        )
    booster = xgboost.train(_PARAMETERS, xgboost.DMatrix(context, label, weight=weight), _TREES)
    fitted = np.asarray(booster.predict(xgboost.DMatrix(context)), np.float64)
    return LabelModel(booster, len(label), positive, float(np.average(fitted, weights=weight)))
