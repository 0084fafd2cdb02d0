"""The shortest way to an action oracle: one unweighted fit on logged choices, and its bundle.

Rows are not weighted by the inverse of their propensity: under a log-loss fit the weights gain nothing where
the model can express the truth and cost variance everywhere (docs/simulators.md, "Learning from the log").
`scorer learn train` chooses weights, calibrates out of fold and measures its own error.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost
from sklearn.metrics import log_loss, roc_auc_score

from scorer.bundle import PolicySpec, build_action_bundle
from scorer.bundle.lineage import describe_lineage
from scorer.learn.errors import DataError
from scorer.learn.oracle import Oracle, OracleTask
from scorer.learn.training.preview import schema_of
from scorer.learn.training.trained import Built

Rows32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


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
class SimpleOracle(Oracle):
    """An oracle with the plan that it was trained by."""

    plan: OraclePlan

    def predict(self, context: Rows32) -> Rows32:
        """`[n, actions]` P(reward) for every action of every context."""
        per_action = self.task.action_rows()
        exploded = np.concatenate(
            [np.repeat(context, len(per_action), axis=0), np.tile(per_action, (len(context), 1))], axis=1
        )
        flat = self.booster.predict(self.task.matrix(exploded))
        return np.asarray(flat, dtype=np.float32).reshape(len(context), len(per_action))

    def lineage(self) -> dict[str, Any]:
        """For the bundle: what it was made from, and how good it is."""
        return {"plan": asdict(self.plan), "test": dict(self.metrics)}


def train_oracle(
    task: OracleTask, choices: LoggedChoices, data_digest: str, plan: OraclePlan | None = None
) -> SimpleOracle:
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
    return SimpleOracle(
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


def build_oracle(oracle: SimpleOracle, policy: PolicySpec, output: Path, run_id: str) -> Built:
    """Builds the bundle of an action oracle with a policy on top.

    Args:
        oracle: trained; its catalogue becomes the bundle's.
        policy: from scores to probabilities.
        output: the directory to make.
        run_id: the training run, for lineage.
    """
    task = oracle.task
    built = build_action_bundle(
        output,
        name=task.name,
        model=oracle.booster,
        schema=schema_of(task),
        actions=task.actions,
        policy=policy,
        training=oracle.training_contexts,
        validation=oracle.reference_contexts,
        lineage=describe_lineage(data_digest=oracle.data_digest, run_id=run_id, metrics=oracle.lineage()),
    )
    return Built(task.name, built.path, built.digest)


def near_greedy(epsilon: float, salt_from: str) -> PolicySpec:
    """The default policy: the best eligible action, and with probability epsilon any eligible one.

    Every eligible action has at least epsilon / K, so the log supports off-policy estimates of any
    other policy.

    Args:
        epsilon: 0 to 1.
        salt_from: what the key of the draw is derived from; two policies with the
            same salt would draw alike.
    """
    salt = hashlib.sha256(salt_from.encode()).hexdigest()[:32]
    return PolicySpec(rule="epsilon_greedy", epsilon=epsilon, salt=salt)
