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
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from scorer.learn.columns import Column, xgboost_types

Rows32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OracleAction:
    """One action as the oracle sees it.

    Attributes:
        id: unique.
        factors: name to value, for people.
        features: the action's own columns.
        attributes: quantities that a policy may cap.
    """

    id: str
    factors: Mapping[str, str]
    features: tuple[float, ...]
    attributes: Mapping[str, float]


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
    context: tuple[Column, ...]
    action: tuple[Column, ...]
    actions: tuple[OracleAction, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The forest's input: context, then action."""
        return self.context + self.action

    def action_rows(self) -> Rows32:
        """Return the features of the actions, `[actions, action columns]`."""
        return np.array([action.features for action in self.actions], dtype=np.float32)

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
class OraclePlan:
    """How to train an oracle.

    Attributes:
        trees: boosting rounds.
        depth: of each tree.
        learning_rate: of each round.
        held_out: share of the rows, at the end of the log, that measure the oracle.
        threads: of XGBoost.
        seed: of row and column sampling.
    """

    trees: int = 500
    depth: int = 6
    learning_rate: float = 0.03
    held_out: float = 0.1
    threads: int = 2
    seed: int = 0


@dataclass(frozen=True)
class Oracle:
    """A trained oracle.

    Attributes:
        task: what it is for.
        booster: the trees; their sigmoid is the probability.
        metrics: on the last part of the log, which did not train.
        training_contexts: `[n, context columns]` that taught it.
        reference_contexts: `[n, context columns]` that judged it.
        plan: how it was trained.
        data_digest: of the choices.
    """

    task: OracleTask
    booster: xgboost.Booster
    metrics: Mapping[str, float]
    training_contexts: Rows32
    reference_contexts: Rows32
    plan: OraclePlan
    data_digest: str

    def predict(self, context: Rows32) -> Rows32:
        """`[n, actions]` P(reward) for every action of every context."""
        per_action = self.task.action_rows()
        exploded = np.concatenate(
            [
                np.repeat(context, len(per_action), axis=0),
                np.tile(per_action, (len(context), 1)),
            ],
            axis=1,
        )
        flat = self.booster.predict(self.task.matrix(exploded))
        return np.asarray(flat, dtype=np.float32).reshape(len(context), len(per_action))

    def lineage(self) -> dict[str, Any]:
        """For the bundle: what it was made from, and how good it is."""
        return {"plan": asdict(self.plan), "test": dict(self.metrics)}


def one_column_per_factor(
    factors: Mapping[str, Sequence[str]],
) -> tuple[Column, ...]:
    """Action columns for a catalogue made of factors: a category each, with a prefix of their own."""
    return tuple(Column(f"action_{name}", "category", tuple(values)) for name, values in factors.items())
