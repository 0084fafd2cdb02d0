"""Small real bundles, built by the project's own builder from small real models.

``tiny_score_bundle(directory, variant=1)`` and ``tiny_action_bundle`` make a bundle in well
under a second; two variants differ in their trees, hence in digest and scores.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

FEATURES = ("amount", "hour", "count_24h", "distance")
"""The context features of every tiny bundle. All are numbers and may be missing."""

ACTIONS = tuple(
    f"3ds={three_ds}|exemption={exemption}"
    for three_ds in ("off", "frictionless")
    for exemption in ("none", "tra", "low")
)
"""The catalogue of every tiny action bundle."""

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
SALT = "00112233445566778899aabbccddeeff"


def rows(count: int, *, seed: int = 0) -> Any:
    """Return random contexts, float32 ``[count, 4]``."""
    random = np.random.default_rng(seed)
    return np.stack(
        [
            random.gamma(2.0, 40.0, count),
            random.integers(0, 24, count),
            random.poisson(2.0, count),
            random.exponential(10.0, count),
        ],
        axis=1,
    ).astype(np.float32)


def tiny_score_bundle(
    directory: Path,
    *,
    variant: int = 1,
    name: str = "fraud-checkout",
    trees: int = 8,
    depth: int = 3,
    lineage: dict[str, Any] | None = None,
    model: Any = None,
    **parts: Any,
) -> str:
    """Build a bundle of kind "score" and return its digest. The labels are approve, review and decline.

    `lineage` replaces fields of the lineage, and `model` the model of the variant; `parts` are other
    arguments of the builder, such as `rules`, `computed`, `steps` and `functions`.
    """
    from scorer.bundle import Band, Feature, Lineage, SchemaFile, build_score_bundle

    data = rows(2000)
    built = build_score_bundle(
        directory,
        name=name,
        model=_fraud_model(variant, trees, depth) if model is None else model,
        schema=SchemaFile(features=[Feature(name=feature) for feature in FEATURES]),
        bands=[
            Band(start=start, label=label)
            for label, start in (("approve", 0.0), ("review", 0.4), ("decline", 0.8))
        ],
        training=data[:1500],
        validation=data[1500:],
        lineage=Lineage(
            **{
                "data_digest": "sha256:" + "0" * 64,
                "code_version": "test",
                "run_id": f"variant-{variant}",
                **(lineage or {}),
            }
        ),
        golden_cases=256,
        created_at=CREATED,
        **parts,
    )
    return built.digest


def tiny_action_bundle(
    directory: Path,
    *,
    variant: int = 1,
    name: str = "action-authorise",
    policy: dict[str, Any] | None = None,
    trees: int = 8,
    depth: int = 3,
    model: Any = None,
    **parts: Any,
) -> str:
    """Build a bundle of kind "action" over `ACTIONS` and return its digest.

    The default policy is epsilon-greedy. `model` and `parts` are as in `tiny_score_bundle`.
    """
    from scorer.bundle import Action, Feature, Lineage, PolicySpec, SchemaFile, build_action_bundle

    data = rows(1000)
    built = build_action_bundle(
        directory,
        name=name,
        model=_oracle(variant, trees, depth) if model is None else model,
        schema=SchemaFile(
            features=[Feature(name=feature) for feature in FEATURES],
            action_features=[Feature(name="three_ds"), Feature(name="exemption")],
        ),
        actions=[
            Action(
                id=action,
                factors=dict(part.split("=") for part in action.split("|")),
                features=action_features(index),
            )
            for index, action in enumerate(ACTIONS)
        ],
        policy=PolicySpec(
            **(policy or {"rule": "epsilon_greedy", "epsilon": 0.2, "floor": 0.01, "salt": SALT})
        ),
        training=data[:750],
        validation=data[750:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="test", run_id=f"variant-{variant}"),
        golden_cases=256,
        created_at=CREATED,
        **parts,
    )
    return built.digest


def score_bundle_of(
    directory: Path,
    features: Sequence[Any],
    *,
    name: str = "fraud-checkout",
    bands: Sequence[tuple[float, str]] = ((0.0, "approve"), (0.8, "decline")),
) -> str:
    """Build a bundle of kind "score" with other features and return its digest.

    Args:
        directory: Directory that the bundle is written to.
        features: `scorer.bundle.Feature` of each input, in order.
        name: Name of the bundle.
        bands: Start and label of each band.
    """
    from scorer.bundle import Band, Lineage, SchemaFile, build_score_bundle

    data = np.tile(rows(2000), (1, len(features)))[:, : len(features)]
    for column, feature in enumerate(features):
        levels = {"category": len(feature.categories), "flag": 2}.get(feature.type)
        if levels is not None:
            data[:, column] = np.arange(len(data)) % levels
    names = [feature.name for feature in features]
    built = build_score_bundle(
        directory,
        name=name,
        model=train(data, data[:, 0] / 100 - 1, names, len(features), 8, 3),
        schema=SchemaFile(features=list(features)),
        bands=[Band(start=start, label=label) for start, label in bands],
        training=data[:1500],
        validation=data[1500:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="test", run_id="others"),
        golden_cases=256,
        created_at=CREATED,
    )
    return built.digest


def fraud_model(variant: int) -> Any:
    """Return the XGBoost model of `tiny_score_bundle`."""
    return _fraud_model(variant, 8, 3)


def oracle_model(variant: int) -> Any:
    """Return the XGBoost model of `tiny_action_bundle`."""
    return _oracle(variant, 8, 3)


def action_features(index: int) -> list[float]:
    """Return the features of the action at a position of `ACTIONS`."""
    return [float(index // 3), float(index % 3)]


@functools.cache
def _fraud_model(variant: int, trees: int, depth: int) -> Any:
    data = rows(2000, seed=variant)
    odds = data[:, 0] / 100 + data[:, 2] / 2 - 2.5 + 0.1 * variant
    return train(data, odds, list(FEATURES), variant, trees, depth)


@functools.cache
def _oracle(variant: int, trees: int, depth: int) -> Any:
    random = np.random.default_rng(variant)
    data = rows(3000, seed=variant)
    action = random.integers(0, len(ACTIONS), len(data))
    own = np.array([action_features(index) for index in action], dtype=np.float32)
    odds = 0.5 + own[:, 0] - 0.4 * own[:, 1] * (data[:, 0] > 80) - data[:, 3] / 30
    return train(
        np.concatenate([data, own], axis=1), odds, [*FEATURES, "three_ds", "exemption"], variant, trees, depth
    )


def train(data: Any, odds: Any, names: list[str], seed: int, trees: int = 8, depth: int = 3) -> Any:
    """Return an XGBoost model of outcomes that are drawn with these log-odds."""
    import xgboost as xgb

    labels = np.random.default_rng(seed).random(len(data)) < 1 / (1 + np.exp(-odds))
    matrix = xgb.DMatrix(data, labels.astype(np.float32), feature_names=names)
    settings = {
        "objective": "binary:logistic",
        "max_depth": depth,
        "eta": 0.3,
        "nthread": 1,
        "seed": seed,
        "tree_method": "hist",
    }
    return xgb.train(settings, matrix, trees)
