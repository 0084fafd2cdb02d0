"""Training an action oracle: P(reward | context, action), learned from logged choices.

A row of the oracle's input is a context followed by one action's own columns,
so one model serves the whole catalogue and what it learns about an issuer on
one action carries over to the actions that share a factor with it. Training
rows are the choices that were made; scoring explodes a context into one row
per action.

Rows are not weighted by the inverse of their propensity here: under a log-loss
fit the weights buy nothing where the model can express the truth, and cost
variance everywhere (docs/simulators.md, "Learning from the log").
`scorer.learn.training` lets the log decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost
from sklearn.metrics import log_loss, roc_auc_score

from scorer.learn.columns import Column, xgboost_types
from scorer.learn.errors import DataError

Rows32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
        """`[actions, action columns]`."""
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
class LoggedChoices:
    """What was chosen, and what came of it.

    Attributes:
        context: `[n, context columns]`.
        action: `[n]` position in the catalogue.
        reward: `[n]` 0 or 1.
    """

    context: Rows32
    action: Ints
    reward: Ints

    def __len__(self) -> int:
        return len(self.action)

    def digest(self) -> str:
        """`sha256:<hex>` over the columns, for lineage."""
        hasher = hashlib.sha256()
        for column in (self.context, self.action, self.reward):
            hasher.update(np.ascontiguousarray(column).data)
        return f"sha256:{hasher.hexdigest()}"

    def take(self, rows: slice | npt.NDArray[np.bool_]) -> LoggedChoices:
        """The choices at `rows`."""
        return LoggedChoices(self.context[rows], self.action[rows], self.reward[rows])


@dataclass(frozen=True)
class OraclePlan:
    """How to train; the attributes are those of `FraudPlan`."""

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


def train_oracle(
    task: OracleTask, choices: LoggedChoices, data_digest: str, plan: OraclePlan | None = None
) -> Oracle:
    """Trains on the choices in order of time; the last part is held out and judges.

    Raises:
        DataError: there are too few choices, or all ended alike.
    """
    plan = plan or OraclePlan()
    rows = np.concatenate([choices.context, task.action_rows()[choices.action]], axis=1)
    cut = len(rows) - int(len(rows) * plan.held_out)
    for name, part in (("training", choices.reward[:cut]), ("held-out", choices.reward[cut:])):
        if not 0 < int(part.sum()) < len(part):
            raise DataError(f"{task.name}: the {len(part)} {name} choices all ended alike; log more of them")
    booster = xgboost.train(
        {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "max_depth": plan.depth,
            "learning_rate": plan.learning_rate,
            # Outcomes are close to coin tosses, so leaves of few rows would learn the tosses.
            "min_child_weight": 20,
            "subsample": 0.7,
            "colsample_bytree": 0.7,
            "nthread": plan.threads,
            "seed": plan.seed,
        },
        task.matrix(rows[:cut], choices.reward[:cut]),
        plan.trees,
    )
    predicted = np.asarray(booster.predict(task.matrix(rows[cut:])), dtype=np.float64)
    reward = choices.reward[cut:]
    return Oracle(
        task=task,
        booster=booster,
        metrics={
            "rows": float(len(reward)),
            "auc": float(roc_auc_score(reward, predicted)),
            "log_loss": float(log_loss(reward, predicted)),
            "mean_reward": float(reward.mean()),
            "mean_predicted": float(predicted.mean()),
        },
        training_contexts=choices.context[:cut],
        reference_contexts=choices.context[cut:],
        plan=plan,
        data_digest=data_digest,
    )


def one_column_per_factor(
    factors: Mapping[str, Sequence[str]],
) -> tuple[Column, ...]:
    """Action columns for a catalogue made of factors: a category each, with a prefix of their own."""
    return tuple(Column(f"action_{name}", "category", tuple(values)) for name, values in factors.items())
