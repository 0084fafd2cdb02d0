"""Small trained models and the bundles made of them; built once per session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scorer.bundle import Action, Band, Bundle, Feature, HeldOut, Lineage, PolicySpec, SchemaFile, verify

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
    """A model, the data it was trained on, and its bundle."""

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


@pytest.fixture(scope="session")
def score_bundle(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    from scorer.bundle import build_score_bundle

    rows = contexts(3000)
    labels = labels_of(rows)
    schema = SchemaFile(features=CONTEXT)
    model = train(rows[:2000], labels[:2000], [feature.name for feature in CONTEXT])
    path = tmp_path_factory.mktemp("bundles") / "fraud"
    build_score_bundle(
        path,
        name="fraud-checkout",
        model=model,
        schema=schema,
        bands=BANDS,
        training=rows[:2000],
        validation=rows[2000:],
        calibration=HeldOut(rows[2000:], labels[2000:]),
        lineage=LINEAGE,
        created_at=CREATED,
    )
    return Trained(path, verify(path), model, schema, rows, labels)


@pytest.fixture(scope="session")
def action_bundle(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    from scorer.bundle import build_action_bundle

    rows = contexts(3000)
    taken = np.random.default_rng(3).integers(0, len(ACTIONS), len(rows))
    own = np.array([action.features for action in ACTIONS], dtype=np.float32)
    whole = np.concatenate([rows, own[taken]], axis=1)
    labels = labels_of(whole)
    schema = SchemaFile(features=CONTEXT, action_features=ACTION_FEATURES)
    model = train(whole[:2000], labels[:2000], [feature.name for feature in schema.columns])
    path = tmp_path_factory.mktemp("bundles") / "authorise"
    build_action_bundle(
        path,
        name="authorise",
        model=model,
        schema=schema,
        actions=ACTIONS,
        policy=PolicySpec(rule="squarecb", gamma=50, floor=0.06, salt=SALT),
        training=rows[:2000],
        validation=rows[2000:],
        calibration=HeldOut(rows[2000:], labels[2000:], taken[2000:], "sigmoid"),
        lineage=LINEAGE,
        created_at=CREATED,
    )
    return Trained(path, verify(path), model, schema, rows, labels)
