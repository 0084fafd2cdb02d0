"""From trained models to bundles: with lineage, reference statistics and golden cases."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.bundle import (
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
from scorer.learn.training.generation import KEY
from scorer.learn.training.preview import actions_of, schema_of

if TYPE_CHECKING:
    from scorer.learn.training.trained import Trained


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
        schema=schema_of(task),
        actions=actions_of(task),
        policy=policy,
        training=oracle.training_contexts,
        validation=oracle.reference_contexts,
        lineage=_lineage(oracle.data_digest, run_id, oracle.lineage()),
    )
    return Built(task.name, built.path, built.digest)


def build_candidate(
    trained: Trained, output: Path, run_id: str, *, created_at: datetime | None = None
) -> Built:
    """Builds the bundle of a generation: oracle, calibration, policy, members, and all that decided.

    Args:
        trained: the generation.
        output: the directory to make.
        run_id: the training run, for lineage.
        created_at: default: now. The same generation, run and time give the same digest.
    """
    task, oracle = trained.task, trained.oracle
    built = build_action_bundle(
        output,
        name=task.name,
        model=oracle.booster,
        schema=schema_of(task),
        actions=actions_of(task),
        policy=trained.policy,
        training=oracle.training_contexts,
        validation=oracle.reference_contexts,
        voters=trained.voters,
        calibration=trained.calibration,
        lineage=_lineage(oracle.data_digest, run_id, {KEY: dict(trained.lineage)}),
        created_at=created_at,
        seed=trained.plan.seed,
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
