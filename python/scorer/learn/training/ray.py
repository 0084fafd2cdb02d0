"""Training on Ray, by Ray Train's XGBoost trainer. Each worker uses XGBoost's external memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from scorer.clusters import ray_cluster
from scorer.learn.decisions import DecisionRows
from scorer.learn.experience_store import RowGroup
from scorer.learn.oracle import OracleTask
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.shards import Shards, predict_shards, read_shards, shards_of
from scorer.learn.training.trainers import Page, train_pages
from scorer.stats.arrays import Floats, Ints

_TRAINED = "trained.ubj"


@contextmanager
def ray_trainer(task: OracleTask, plan: TrainSettings, work: Path) -> Iterator[RayTrainer]:
    """Provide a trainer on the cluster of the settings, or on the one that is connected, which stays so.

    Args:
        task: what the columns are.
        plan: the settings.
        work: directory that all machines share.
    """
    with ray_cluster(plan.cluster, plan.cluster_options):
        yield RayTrainer(task, plan, work)


@dataclass(frozen=True)
class RayTrainer:
    """Workers read the row groups, and train and predict.

    Attributes:
        task: what the columns are.
        plan: trees and their shape, and how many workers train.
        work: directory that all machines share.
    """

    task: OracleTask
    plan: TrainSettings
    work: Path

    def train(self, known: DecisionRows, weights: Floats, seed: int | None = None) -> xgboost.Booster:
        """Train on the workers; see `scorer.learn.training.trainers.Trainer.train`."""
        from ray.train import RunConfig, ScalingConfig
        from ray.train.xgboost import XGBoostTrainer

        with shards_of(self.task, known, weights, self.work) as (shards, groups):
            # A worker without rows could not take part in the training.
            workers = min(self.plan.workers, len(groups))
            trainer = XGBoostTrainer(
                partial(_train, shards, self.plan, groups, seed),
                scaling_config=ScalingConfig(
                    num_workers=workers, resources_per_worker={"CPU": self.plan.threads}
                ),
                run_config=RunConfig(name="forest", storage_path=str(shards.folder / "ray")),
            )
            trainer.fit()
            return xgboost.Booster(model_file=shards.folder / _TRAINED)

    def margins(self, booster: xgboost.Booster, unseen: DecisionRows) -> Floats:
        """Return the log-odds of the actions taken, `[n]`."""
        import ray

        with shards_of(self.task, unseen, np.ones(len(unseen)), self.work, booster) as (shards, groups):
            predict = ray.remote(_predict)
            found = ray.get([predict.remote(shards, group) for group in groups])
        if not found:
            return np.empty(0)
        # Row groups, and the rows in them, are in order.
        return np.concatenate([margin for _, margin in found])


def _train(shards: Shards, plan: TrainSettings, groups: Sequence[RowGroup], seed: int | None) -> None:
    """Train on this worker's row groups, together with the other workers."""
    from ray.train import get_context

    context: Any = get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()

    def pages() -> Iterator[Page]:
        for block in read_shards(shards, groups[rank::workers]):
            yield block.features, block.reward, block.weight

    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        booster = train_pages(shards.task, plan, seed, pages, Path(folder))
    if rank == 0:
        booster.save_model(shards.folder / _TRAINED)


def _predict(shards: Shards, group: RowGroup) -> tuple[Ints, Floats]:
    found = list(predict_shards(shards, (group,)))
    return np.concatenate([row for row, _ in found]), np.concatenate([margin for _, margin in found])
