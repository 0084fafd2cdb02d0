"""One generation, trained: everything that its bundle will hold, and everything that decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import xgboost

from scorer.bundle import Bundle, PolicySpec, SigmoidMap, build_action_bundle
from scorer.bundle.lineage import describe_lineage
from scorer.learn.oracle import Oracle, OracleTask
from scorer.learn.training.comparison import Compared
from scorer.learn.training.generation import KEY
from scorer.learn.training.out_of_fold import OutOfFold
from scorer.learn.training.policies import GammaChoice
from scorer.learn.training.preview import preview, schema_of
from scorer.learn.training.progressive import WeightChoice
from scorer.learn.training.settings import TrainSettings
from scorer.stats.arrays import Bools, Floats, Rows32


@dataclass(frozen=True)
class Trained:
    """What `fit` returns.

    Attributes:
        task: what is chosen, given what.
        oracle: trained on every settled decision.
        calibration: of its margin; None: its own sigmoid is the probability.
        policy: from calibrated scores to probabilities.
        weights: the sample weights that were chosen, and why.
        gamma: of the inverse-gap rules, measured whatever the rule is.
        members: the ensemble of the bagging rule.
        comparison: the oracle beside its peers; empty where it was not asked for.
        metrics: out of fold, on the actions taken.
        out_of_fold: of every settled decision, in their order.
        plan: the settings.
        generation: 1 for the first.
        lineage: all that decided, as the bundle keeps it.
    """

    task: OracleTask
    oracle: Oracle
    calibration: SigmoidMap | None
    policy: PolicySpec
    weights: WeightChoice
    gamma: GammaChoice
    members: tuple[xgboost.Booster, ...]
    comparison: tuple[Compared, ...]
    metrics: Mapping[str, float]
    out_of_fold: OutOfFold
    plan: TrainSettings
    generation: int
    lineage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def voters(self) -> tuple[xgboost.Booster, ...]:
        """The members, where the policy asks them."""
        return self.members if self.policy.rule == "bagging" else ()

    @cached_property
    def bundle(self) -> Bundle:
        """What the built bundle computes, in memory: for evaluation, never to be deployed."""
        return preview(self.task, self.oracle.booster, self.policy, self.calibration, self.voters)

    def evaluate(self, context: Rows32, eligible: Bools | None = None) -> tuple[Floats, Floats]:
        """Probabilities and expected rewards, `[n, actions]` each; rewards are NaN where not eligible."""
        return self.bundle.evaluate(context, eligible=eligible)


@dataclass(frozen=True)
class Built:
    """Paths and digest of a candidate bundle on disk."""

    name: str
    path: Path
    digest: str


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
        actions=task.actions,
        policy=trained.policy,
        training=oracle.training_contexts,
        validation=oracle.reference_contexts,
        voters=trained.voters,
        calibration=trained.calibration,
        lineage=describe_lineage(
            data_digest=oracle.data_digest, run_id=run_id, metrics={KEY: dict(trained.lineage)}
        ),
        created_at=created_at,
        seed=trained.plan.seed,
    )
    return Built(task.name, built.path, built.digest)
