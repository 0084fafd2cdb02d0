"""An action oracle: P(reward | context, action).

A row of the oracle's input is a context followed by one action's own columns,
so one model serves the whole catalogue and what it learns about an issuer on
one action carries over to the actions that share a factor with it. Training
rows are the choices that were made; scoring explodes a context into one row
per action.

`scorer.learn.training` trains one from logged decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from scorer.bundle import Action, Feature
from scorer.stats.arrays import Floats, Rows32


@dataclass(frozen=True)
class OracleTask:
    """What is chosen, given what.

    Attributes:
        name: of the bundle.
        context: columns that requests carry.
        action: columns that the catalogue fills in.
        actions: the catalogue.
    """

    name: str
    context: tuple[Feature, ...]
    action: tuple[Feature, ...]
    actions: tuple[Action, ...]

    @property
    def columns(self) -> tuple[Feature, ...]:
        """The forest's input: context, then action."""
        return self.context + self.action

    def action_rows(self) -> Rows32:
        """Return the features of the actions, `[actions, action columns]`."""
        # A missing value (None) becomes NaN.
        return np.array([action.features for action in self.actions], dtype=np.float32).reshape(
            len(self.actions), -1
        )

    def matrix(
        self, rows: Rows32, rewards: npt.NDArray[Any] | None = None, weights: Floats | None = None
    ) -> xgboost.DMatrix:
        """Rows as XGBoost wants them."""
        return xgboost.DMatrix(
            rows,
            rewards,
            weight=weights,
            feature_types=xgboost_types(self.columns),
            enable_categorical=True,
        )


@dataclass(frozen=True)
class Oracle:
    """A trained oracle.

    Attributes:
        task: what it is for.
        booster: the trees; their sigmoid is the probability.
        metrics: on the last part of the log, which did not train.
        training_contexts: `[n, context columns]` that taught it.
        reference_contexts: `[n, context columns]` that judged it.
        data_digest: of the choices.
    """

    task: OracleTask
    booster: xgboost.Booster
    metrics: Mapping[str, float]
    training_contexts: Rows32
    reference_contexts: Rows32
    data_digest: str


def xgboost_types(columns: Sequence[Feature]) -> list[str]:
    """XGBoost's `feature_types` for these columns."""
    return ["c" if column.type == "category" else "q" for column in columns]
