"""A small model world: schema, actions, data, and the parts of a trained bundle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from scorer.bundle import Action, Band, Bundle, Feature, Lineage, SchemaFile

CREATED = datetime(2026, 1, 2, tzinfo=UTC)
LINEAGE = Lineage(data_digest="sha256:of-the-test", code_version="test", run_id="run-1", metrics={"auc": 0.5})
SALT = "000102030405060708090a0b0c0d0e0f"
BANDS = [Band(start=0, label="approve"), Band(start=0.5, label="review"), Band(start=0.9, label="decline")]
CONTEXT = [
    Feature(name="amount", missing="refuse", minimum=0, maximum=50_000),
    Feature(name="hour", minimum=0, maximum=23),
    Feature(name="country", type="category", categories=["NL", "DE", "FR"], unknown_category="missing"),
    Feature(name="night", type="flag"),
]
ACTION_FEATURES = [
    Feature(name="three_ds", type="flag"),
    Feature(name="exemption", type="category", categories=["none", "tra", "low"]),
]
ACTIONS = [
    Action(
        id=f"3ds={three_ds}|exemption={exemption}",
        factors={"three_ds": three_ds, "exemption": exemption},
        features=[float(uses), float(code)],
        attributes={"three_ds": float(uses)},
    )
    for uses, three_ds in enumerate(["none", "challenge"])
    for code, exemption in enumerate(["none", "tra", "low"])
]


@dataclass(frozen=True)
class Trained:
    """A model, its training data, and its bundle."""

    path: Path
    bundle: Bundle
    model: Any
    schema: SchemaFile
    rows: np.ndarray
    labels: np.ndarray


def contexts(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    columns = [
        np.exp(random.normal(3, 1, count)).clip(0, 50_000),
        random.integers(0, 24, count),
        random.integers(0, 3, count),
        random.integers(0, 2, count),
    ]
    rows = np.stack(columns, axis=1).astype(np.float32)
    rows[random.random(count) < 0.1, 1] = np.nan
    rows[random.random(count) < 0.1, 2] = np.nan
    return rows


def labels_of(rows: np.ndarray, seed: int = 1) -> np.ndarray:
    logit = np.log1p(rows[:, 0]) - 3 + np.nan_to_num(rows[:, 2]) * 0.5 + rows[:, -1] * 0.5
    return (np.random.default_rng(seed).random(len(rows)) < 1 / (1 + np.exp(-logit))).astype(np.float32)


def train(rows: np.ndarray, labels: np.ndarray, names: list[str], **parameters: Any) -> Any:
    import xgboost

    settings = {"objective": "binary:logistic", "max_depth": 4, "nthread": 1, **parameters}
    return xgboost.train(settings, xgboost.DMatrix(rows, labels, feature_names=names), 20)
