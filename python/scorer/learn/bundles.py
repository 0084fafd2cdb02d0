"""From trained models to bundles: with lineage, reference statistics and golden cases."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scorer.bundle import (
    Action,
    Band,
    Feature,
    IsotonicMap,
    Lineage,
    PolicySpec,
    SchemaFile,
    build_action_bundle,
    build_score_bundle,
)
from scorer.bundle.lineage import describe_lineage
from scorer.learn.columns import Column
from scorer.learn.fraud import FraudModel, fraud_columns
from scorer.learn.oracle import Oracle


@dataclass(frozen=True)
class Built:
    """A bundle on disk."""

    name: str
    path: Path
    digest: str


def build_fraud(model: FraudModel, output: Path, run_id: str, name: str = "fraud-checkout") -> Built:
    """Builds the bundle of a fraud model.

    Args:
        model: trained and calibrated.
        output: the directory to make.
        run_id: the training run, for lineage.
        name: the bundle's.
    """
    built = build_score_bundle(
        output,
        name=name,
        model=model.booster,
        schema=SchemaFile(features=_features(fraud_columns())),
        bands=[Band.model_validate({"from": start, "label": label}) for start, label in model.thresholds],
        training=model.training_rows,
        validation=model.reference_rows,
        lineage=_lineage(model.data_digest, run_id, model.lineage()),
        calibration=IsotonicMap(
            x=model.calibration.outputs.tolist(), y=model.calibration.probabilities.tolist()
        ),
    )
    return Built(name, built.path, built.digest)


def build_oracle(oracle: Oracle, policy: PolicySpec, output: Path, run_id: str) -> Built:
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
        schema=SchemaFile(features=_features(task.context), action_features=_features(task.action)),
        actions=[
            Action(
                id=action.id,
                factors=dict(action.factors),
                features=list(action.features),
                attributes=dict(action.attributes),
            )
            for action in task.actions
        ],
        policy=policy,
        training=oracle.training_contexts,
        validation=oracle.reference_contexts,
        lineage=_lineage(oracle.data_digest, run_id, oracle.lineage()),
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


def _features(columns: tuple[Column, ...]) -> list[Feature]:
    return [Feature.model_validate(column.as_feature()) for column in columns]


def _lineage(data_digest: str, run_id: str, metrics: dict[str, Any]) -> Lineage:
    return describe_lineage(data_digest=data_digest, run_id=run_id, metrics=metrics)
