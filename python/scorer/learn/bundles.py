"""The bundle of a training run: lineage, reference statistics and golden cases included."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.bundle import build_action_bundle
from scorer.bundle.lineage import describe_lineage
from scorer.learn.training.generation import KEY
from scorer.learn.training.preview import schema_of

if TYPE_CHECKING:
    from scorer.learn.training.trained import Trained


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
