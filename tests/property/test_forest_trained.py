"""Trained models of random settings on rows at and around their thresholds, against their own library."""

from __future__ import annotations

import json
import re
from typing import Any

import lightgbm as lgb
import numpy as np
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import ensemble
from threadpoolctl import threadpool_limits

from scorer.forest import Forest

seeds = st.integers(0, 2**32 - 1)


def table(seed: int, features: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(250, features)).astype(np.float32) * rng.choice([1e-30, 1e-3, 1.0, 1e6], features)
    rows = rows.astype(np.float32)
    rows[:, 0] = np.round(rng.normal(size=250) * 3)
    rows[rng.random(rows.shape) < missing] = np.nan
    wide = rows.astype(np.float64)
    scaled = wide / (np.nanstd(wide, axis=0) + 1e-300)
    y = np.nansum(scaled, axis=1) + rng.normal(scale=0.2, size=250)
    return rows, y


def around(rows: np.ndarray, thresholds: list[float], seed: int, *, missing: bool) -> np.ndarray:
    """Generate rows of thresholds, adjacent floats and special floats in any column."""
    with np.errstate(over="ignore", under="ignore"):
        at = np.array([*thresholds, 0.0], np.float64).astype(np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    odd = [0.0, -0.0, 1e-45, -1e-45, 1e-35, -1e-36, 3e38, -3e38] + [np.nan] * missing
    pool = np.concatenate([at, np.nextafter(at, up), np.nextafter(at, down), np.array(odd, np.float32)])
    pool = pool[~np.isinf(pool)]
    rng = np.random.default_rng(seed)
    return np.where(rng.random(rows.shape) < 0.5, rng.choice(pool, rows.shape), np.nan_to_num(rows))


def assert_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    word = np.uint32 if actual.dtype == np.float32 else np.uint64
    assert actual.dtype == expected.dtype
    expected = np.ascontiguousarray(expected).reshape(actual.shape)
    np.testing.assert_array_equal(np.ascontiguousarray(actual).view(word), expected.view(word))


@settings(max_examples=25, deadline=None)
@given(
    seeds,
    st.fixed_dictionaries(
        {
            "max_depth": st.integers(1, 9),
            "objective": st.sampled_from(["reg:squarederror", "binary:logistic", "count:poisson"]),
            "tree_method": st.sampled_from(["hist", "exact", "approx"]),
            "booster": st.sampled_from(["gbtree", "gbtree", "dart"]),
            "num_parallel_tree": st.integers(1, 3),
            "subsample": st.sampled_from([0.6, 1.0]),
            "gamma": st.sampled_from([0.0, 0.5]),
            "rate_drop": st.sampled_from([0.0, 0.5]),
        }
    ),
    st.integers(1, 6),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.2]),
)
def test_trained_xgboost_models_are_equal_bit_for_bit(
    seed: int, params: dict[str, Any], features: int, rounds: int, missing: float
) -> None:
    rows, y = table(seed, features, missing)
    y = y if params["objective"].startswith("reg") else (y > 0).astype(int)
    if params["booster"] != "dart":
        del params["rate_drop"]
    booster = xgb.train({"nthread": 1, "verbosity": 0, **params}, xgb.DMatrix(rows, y), rounds)
    gbm = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
    trees = gbm.get("gbtree", gbm)["model"]["trees"]
    edges = around(rows, [t for tree in trees for t in tree["split_conditions"]], seed, missing=True)
    forest = Forest.from_xgboost(booster)
    for part in (rows, edges):
        data = xgb.DMatrix(part)
        assert_bits(forest.predict(part, margin=True), booster.predict(data, output_margin=True))
        assert_bits(forest.predict(part), booster.predict(data))


@settings(max_examples=25, deadline=None)
@given(
    seeds,
    st.fixed_dictionaries(
        {
            "objective": st.sampled_from(["regression", "binary", "poisson"]),
            "num_leaves": st.integers(2, 60),
            "min_data_in_leaf": st.integers(1, 20),
            "zero_as_missing": st.booleans(),
            "use_missing": st.booleans(),
            "extra_trees": st.booleans(),
            "boosting": st.sampled_from(["gbdt", "dart"]),
        }
    ),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
)
def test_trained_lightgbm_models_are_equal_bit_for_bit(
    seed: int, params: dict[str, Any], features: int, categorical: bool, missing: float
) -> None:
    rows, y = table(seed, features, missing)
    y = y if params["objective"] == "regression" else (y > 0).astype(int)
    categories = [0] if categorical else []
    if categorical:
        rows[:, 0] = np.abs(rows[:, 0])
    data = lgb.Dataset(rows, y, categorical_feature=categories)
    booster = lgb.train({"verbose": -1, "num_threads": 1, "min_data_per_group": 5, **params}, data, 8)
    lines = re.findall(r"^threshold=(.*)$", booster.model_to_string(), re.M)
    edges = around(rows, [float(t) for line in lines for t in line.split()], seed, missing=True)
    forest = Forest.from_lightgbm(booster)
    for part in (rows, edges):
        assert_bits(forest.predict(part, margin=True), booster.predict(part, raw_score=True))
        assert_bits(forest.predict(part), booster.predict(part))


@settings(max_examples=12, deadline=None)
@given(
    seeds,
    st.sampled_from(["RandomForestRegressor", "ExtraTreesClassifier", "GradientBoostingRegressor"]),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_trained_scikit_learn_models_are_equal_bit_for_bit(
    seed: int, name: str, features: int, depth: int | None
) -> None:
    missing = not name.startswith("Gradient")
    rows, y = table(seed, features, 0.2 if missing else 0.0)
    model = getattr(ensemble, name)(n_estimators=6, max_depth=depth, random_state=seed)
    model.fit(rows, y if "Regressor" in name else y > 0)
    trees = [estimator.tree_ for estimator in np.ravel(model.estimators_)]
    edges = around(rows, [t for tree in trees for t in tree.threshold], seed, missing=missing)
    forest = Forest.from_sklearn(model)
    for part in (rows, edges):
        # The library sums all values to check that they are finite, and the sum of finite values
        # may overflow.
        with np.errstate(invalid="ignore", over="ignore"):
            theirs = model.predict(part) if "Regressor" in name else model.predict_proba(part)
        assert_bits(forest.predict(part), theirs)


@settings(max_examples=8, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(2, 40), st.sampled_from([0.0, 0.2]))
def test_trained_histogram_gradient_boosting_models_are_equal_bit_for_bit(
    seed: int, features: int, leaf_nodes: int, missing: float
) -> None:
    rows, y = table(seed, features, missing)
    model = ensemble.HistGradientBoostingRegressor(
        max_iter=6, max_leaf_nodes=leaf_nodes, min_samples_leaf=2, random_state=seed
    )
    with threadpool_limits(1):
        model.fit(rows, y)
    nodes = [predictor.nodes for stage in model._predictors for predictor in stage]
    edges = around(rows, [t for part in nodes for t in part["num_threshold"]], seed, missing=True)
    forest = Forest.from_sklearn(model)
    for part in (rows, edges):
        assert_bits(forest.predict(part), model.predict(part))
