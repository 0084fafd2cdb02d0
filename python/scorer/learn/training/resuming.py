"""Continues an interrupted training: a forest that was finished is read and not trained again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xgboost

from scorer.durable import write_atomically
from scorer.learn.decisions import DecisionRows
from scorer.learn.experience_store import StoredExperience
from scorer.learn.training.boosting import booster_settings
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.trainers import Trainer
from scorer.stats.arrays import Floats


@dataclass(frozen=True)
class ResumingTrainer:
    """Stores each forest under a digest of all that determines it.

    Attributes:
        trainer: trains the forests that are not stored.
        plan: trees and their shape.
        data_digest: of the experience's files.
        folder: directory of the forests.
    """

    trainer: Trainer
    plan: TrainSettings
    data_digest: str
    folder: Path

    def train(self, known: DecisionRows, weights: Floats, seed: int | None = None) -> xgboost.Booster:
        """Train, or read the forest that an earlier run trained; see `Trainer.train`."""
        path = self.folder / f"{self._key(known, weights, seed)}.ubj"
        if path.is_file():
            return xgboost.Booster(model_file=path)
        booster = self.trainer.train(known, weights, seed)
        write_atomically(path, bytes(booster.save_raw("ubj")))
        return booster

    def margins(self, booster: xgboost.Booster, unseen: DecisionRows) -> Floats:
        """Return the log-odds of the actions taken, `[n]`."""
        return self.trainer.margins(booster, unseen)

    def _key(self, known: DecisionRows, weights: Floats, seed: int | None) -> str:
        about = {
            "data": self.data_digest,
            "trees": self.plan.trees,
            "settings": booster_settings(self.plan, seed),
            "where": [self.plan.engine, self.plan.storage, self.plan.workers],
            "xgboost": xgboost.__version__,
        }
        hasher = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        rows = known.row if isinstance(known, StoredExperience) else np.arange(len(known))
        hasher.update(np.ascontiguousarray(rows).data)
        hasher.update(np.ascontiguousarray(weights).data)
        return hasher.hexdigest()
