"""Forests of the shapes that have evaluators of their own, bit for bit against the library that trained them.

Every row is scored alone and in blocks of several lengths, because both have different evaluators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb

from scorer.forest import Forest

ROWS = 3000
# Numbers of categories of the first columns of categorical shapes.
CATEGORIES = (5, 30, 200, 600)


@dataclass(frozen=True)
class Shape:
    """A model: its parameters, its number of rounds, and its table."""

    params: dict[str, Any]
    rounds: int
    features: int = 12
    missing: float = 0.06
    categorical: bool = False
    classes: int = 0
    at_least: dict[str, int] = field(default_factory=dict)


XGBOOST = {
    "deep": Shape({"max_depth": 12, "min_child_weight": 0.01}, 20, at_least={"max_depth": 12}),
    "exact": Shape({"max_depth": 8, "tree_method": "exact", "min_child_weight": 0.1}, 40),
    "wide": Shape({"max_depth": 6}, 30, features=300),
    "lossguide": Shape({"max_depth": 0, "max_leaves": 255, "grow_policy": "lossguide"}, 20),
    "larger than a program": Shape(
        {"max_depth": 0, "max_leaves": 600, "grow_policy": "lossguide", "min_child_weight": 0.01}, 10
    ),
    "categorical": Shape({"max_depth": 6, "max_cat_to_onehot": 1}, 30, categorical=True),
    "deep and categorical": Shape(
        {"max_depth": 14, "max_cat_to_onehot": 1, "min_child_weight": 0.01}, 10, categorical=True
    ),
    "random forest": Shape(
        {"max_depth": 16, "num_parallel_tree": 30, "eta": 1, "subsample": 0.6, "colsample_bynode": 0.5}, 1
    ),
    "sparse": Shape({"max_depth": 6}, 30, features=1000, missing=0.95),
    "classes": Shape({"max_depth": 7, "tree_method": "exact"}, 8, classes=5),
    "vector leaves": Shape(
        {"max_depth": 9, "multi_strategy": "multi_output_tree", "tree_method": "hist"}, 10, classes=4
    ),
}
LIGHTGBM = {
    "255 leaves": Shape({"num_leaves": 255, "min_data_in_leaf": 3}, 30),
    "500 leaves": Shape({"num_leaves": 500, "min_data_in_leaf": 1}, 10),
    "categories": Shape(
        {"num_leaves": 255, "min_data_in_leaf": 3, "min_data_per_group": 5}, 20, categorical=True
    ),
    "classes": Shape({"num_leaves": 63, "min_data_in_leaf": 3}, 5, classes=4),
}


def table(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and labels."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(ROWS, shape.features)).astype(np.float32)
    effect = rows[:, 4] * rows[:, 5] + np.sin(3 * rows[:, 6]) + rows[:, 7]
    for column, count in enumerate(CATEGORIES if shape.categorical else ()):
        rows[:, column] = rng.integers(count, size=ROWS)
        effect += rng.normal(size=count)[rows[:, column].astype(int)]
    effect += rng.normal(size=ROWS)
    rows[rng.random(rows.shape) < shape.missing] = np.nan
    if shape.classes:
        cuts = np.quantile(effect, np.arange(1, shape.classes) / shape.classes)
        return rows, np.searchsorted(cuts, effect)
    return rows, effect > 0


def odd_categories(shape: Shape, rows: np.ndarray) -> np.ndarray:
    """Return rows with values that name no category, or none that was trained."""
    values = np.array([-3, -0.5, -0.0, 0.5, 4.99, 599, 600, 1e6, np.nan], np.float32)
    odd = np.repeat(rows[:8], len(values), axis=0)
    for column in range(len(CATEGORIES) if shape.categorical else 0):
        odd[:, column] = np.tile(values, 8)
    return odd


@pytest.fixture
def check(assert_bits, edge_rows) -> Callable[..., None]:
    def run(
        forest: Forest,
        expected: Callable[[np.ndarray], np.ndarray],
        rows: np.ndarray,
        cuts: Any,
        shape: Shape,
    ) -> None:
        edges = edge_rows(rows, cuts, limit=120)
        edges = edges[(np.isfinite(edges) | np.isnan(edges)).all(axis=1)]
        every = np.concatenate([rows[:300], odd_categories(shape, rows), edges]).astype(np.float32)
        wanted = expected(every)
        assert_bits(forest.predict(every, margin=True), wanted)
        singles = [forest.predict(every[at : at + 1], margin=True) for at in range(len(every))]
        assert_bits(np.concatenate(singles), wanted)
        for length in lengths():
            parts = [
                forest.predict(every[at : at + length], margin=True) for at in range(0, len(every), length)
            ]
            assert_bits(np.concatenate(parts), wanted)

    return run


def lengths() -> Iterator[int]:
    """Return lengths of calls on both sides of those from which rows are evaluated as blocks."""
    yield from (7, 33, 63, 64, 65)


@pytest.mark.parametrize("name", XGBOOST)
def test_xgboost_models_of_every_shape_give_the_same_bits(name, check) -> None:
    shape = XGBOOST[name]
    rows, labels = table(shape)
    kinds = ["c" if shape.categorical and at < len(CATEGORIES) else "q" for at in range(shape.features)]

    def matrix(values: np.ndarray, targets: np.ndarray | None = None) -> xgb.DMatrix:
        return xgb.DMatrix(values, targets, feature_types=kinds, enable_categorical=True)

    objective: dict[str, Any] = {"objective": "binary:logistic"}
    if shape.classes:
        objective = {"objective": "multi:softprob", "num_class": shape.classes}
    params = {"eta": 0.1, "nthread": 1, "seed": 3, "verbosity": 0} | objective | shape.params
    booster = xgb.train(params, matrix(rows, labels), shape.rounds)
    forest = Forest.from_xgboost(booster)
    for what, least in shape.at_least.items():
        assert getattr(forest, what) >= least
    cuts = [
        (int(feature), float(value))
        for feature, value in re.findall(r"\[f(\d+)<([-+.e\d]+)\]", "".join(booster.get_dump()))
    ]
    check(forest, lambda values: booster.predict(matrix(values), output_margin=True), rows, cuts, shape)


@pytest.mark.parametrize("name", LIGHTGBM)
def test_lightgbm_models_of_every_shape_give_the_same_bits(name, check) -> None:
    shape = LIGHTGBM[name]
    rows, labels = table(shape)
    columns = list(range(len(CATEGORIES))) if shape.categorical else []
    data = lgb.Dataset(rows, labels, categorical_feature=columns)
    objective: dict[str, Any] = {"objective": "binary"}
    if shape.classes:
        objective = {"objective": "multiclass", "num_class": shape.classes}
    params = {"verbose": -1, "num_threads": 1, "seed": 5, "deterministic": True} | objective | shape.params
    booster = lgb.train(params, data, shape.rounds)
    text = booster.model_to_string()
    features = [int(v) for line in re.findall(r"^split_feature=(.*)$", text, re.M) for v in line.split()]
    values = [float(v) for line in re.findall(r"^threshold=(.*)$", text, re.M) for v in line.split()]
    cuts = [
        (feature, value) for feature, value in zip(features, values, strict=True) if feature not in columns
    ]
    check(
        Forest.from_lightgbm(booster), lambda part: booster.predict(part, raw_score=True), rows, cuts, shape
    )
