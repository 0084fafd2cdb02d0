"""Training on Spark, by XGBoost's estimator (`xgboost.spark`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xgboost

from scorer.clusters import spark_session
from scorer.learn.decisions import DecisionRows
from scorer.learn.experience_store import RowGroup
from scorer.learn.oracle import OracleTask, xgboost_types
from scorer.learn.training.boosting import booster_settings
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.shards import Shards, predict_shards, read_shards, shards_of
from scorer.stats.arrays import Floats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = "features array<float>, label double, weight double"
_MARGINS = "row long, margin double"
_GROUPS = "file string, position int, first long, rows long"


@contextmanager
def spark_trainer(task: OracleTask, plan: TrainSettings, work: Path) -> Iterator[SparkTrainer]:
    """Provide a trainer on the session of the settings, or on the active one, which is not stopped.

    Args:
        task: what the columns are.
        plan: the settings.
        work: directory that all machines share.
    """
    with spark_session(f"scorer learn train {task.name}", plan.cluster, plan.cluster_options) as session:
        yield SparkTrainer(task, plan, work, session)


@dataclass(frozen=True)
class SparkTrainer:
    """Executors read the row groups, and train and predict.

    Attributes:
        task: what the columns are.
        plan: trees and their shape, and how many workers train.
        work: directory that all machines share.
        session: the session.
    """

    task: OracleTask
    plan: TrainSettings
    work: Path
    session: SparkSession

    def train(self, known: DecisionRows, weights: Floats, seed: int | None = None) -> xgboost.Booster:
        """Train on the workers; see `scorer.learn.training.trainers.Trainer.train`."""
        from xgboost.spark import SparkXGBClassifier

        settings = booster_settings(self.plan, seed)
        # The estimator sets the objective, and Spark the threads of a task.
        for name in ("objective", "nthread"):
            del settings[name]
        classifier = SparkXGBClassifier(
            features_col="features",
            label_col="label",
            weight_col="weight",
            num_workers=self.plan.workers,
            n_estimators=self.plan.trees,
            random_state=settings.pop("seed"),
            feature_types=xgboost_types(self.task.columns),
            **settings,
        )
        with shards_of(self.task, known, weights, self.work) as (shards, groups):
            rows = self._groups(groups).mapInArrow(partial(_read, shards), _ROWS)
            booster = classifier.fit(rows).get_booster()
        return xgboost.Booster(model_file=bytearray(booster.save_raw("ubj")))

    def margins(self, booster: xgboost.Booster, unseen: DecisionRows) -> Floats:
        """Return the log-odds of the actions taken, `[n]`."""
        with shards_of(self.task, unseen, np.ones(len(unseen)), self.work, booster) as (shards, groups):
            found = self._groups(groups).mapInArrow(partial(_predict, shards), _MARGINS).toArrow()
        order = np.argsort(found["row"].to_numpy(), kind="stable")
        return np.asarray(found["margin"].to_numpy()[order], dtype=np.float64)

    def _groups(self, groups: Sequence[RowGroup]) -> DataFrame:
        """Return a data frame of row groups, each in a partition of its own."""
        given = [(str(group.file), group.group, group.first, group.rows) for group in groups]
        context = self.session.sparkContext
        return self.session.createDataFrame(context.parallelize(given, max(len(given), 1)), _GROUPS)


def _of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[RowGroup]:
    for batch in batches:
        for row in batch.to_pylist():
            yield RowGroup(Path(row["file"]), row["position"], row["first"], row["rows"])


def _read(shards: Shards, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for group in _of_batches(batches):
        for block in read_shards(shards, (group,)):
            columns = len(shards.task.columns)
            ends = np.arange(0, block.features.size + 1, columns, dtype=np.int32)
            features: Any = pa.ListArray.from_arrays(pa.array(ends), pa.array(block.features.ravel()))
            yield pa.record_batch({"features": features, "label": block.reward, "weight": block.weight})


def _predict(shards: Shards, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for group in _of_batches(batches):
        for row, margin in predict_shards(shards, (group,)):
            yield pa.record_batch({"row": row, "margin": margin})
