"""Contributions of features, against XGBoost's and LightGBM's own and a naive one on sklearn's trees."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from math import factorial
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb

from scorer.errors import ForestError
from scorer.forest import Forest

SEED = {"seed": 7, "nthread": 1, "verbosity": 0}


def labels(rows: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(3)
    effect = np.nansum(rows[:, :4], axis=1) + np.nan_to_num(rows[:, 0] * rows[:, 2] * 1e3)
    return effect + random.normal(scale=0.5, size=len(rows))


def check(booster: xgb.Booster, rows: np.ndarray, types: list[str] | None = None) -> Forest:
    """Compare both methods with XGBoost's, and the sum with the margin."""
    matrix = xgb.DMatrix(rows, feature_types=types, enable_categorical=types is not None)
    forest = Forest.from_xgboost(booster)
    margins = booster.predict(matrix, output_margin=True)
    for exact in (True, False):
        found = forest.contributions(rows, exact=exact)
        expected = booster.predict(matrix, pred_contribs=True, approx_contribs=not exact)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.sum(axis=-1), margins, rtol=1e-5, atol=1e-5)
    return forest


def test_xgboost_binary_with_missing_values(table: Callable[..., np.ndarray]) -> None:
    rows = table(1)
    params = {"objective": "binary:logistic", "max_depth": 6, **SEED}
    booster = xgb.train(params, xgb.DMatrix(rows, labels(rows) > 0), 40)
    forest = check(booster, rows[:200])
    both = [forest.contributions(rows[:200], exact=exact) for exact in (True, False)]
    assert np.abs(both[0] - both[1]).max() > 0.05, "the two methods are not the same"


def test_xgboost_features_that_repeat_on_a_path(table: Callable[..., np.ndarray]) -> None:
    rows = table(2, features=3)
    params = {"max_depth": 10, "eta": 0.5, **SEED}
    check(xgb.train(params, xgb.DMatrix(rows, np.nansum(rows, axis=1)), 8), rows[:100])


def test_xgboost_paths_with_more_features_than_four_points_suffice_for() -> None:
    random = np.random.default_rng(5)
    rows = random.normal(size=(3000, 40)).astype(np.float32)
    target = (rows > 0).sum(axis=1) % 2 + rows.sum(axis=1) / 10
    params = {"max_depth": 14, "eta": 0.7, "min_child_weight": 1, **SEED}
    booster = xgb.train(params, xgb.DMatrix(rows, target), 4)
    check(booster, rows[:40])


def test_xgboost_classes(table: Callable[..., np.ndarray]) -> None:
    rows = table(3)
    target = np.digitize(labels(rows), [-1, 1])
    params = {"objective": "multi:softprob", "num_class": 3, "max_depth": 4, **SEED}
    forest = check(xgb.train(params, xgb.DMatrix(rows, target), 10), rows[:100])
    assert forest.contributions(rows[:5]).shape == (5, 3, rows.shape[1] + 1)


@pytest.mark.parametrize("one_hot", [1, 100])
def test_xgboost_categories(one_hot: int) -> None:
    random = np.random.default_rng(4)
    rows = random.normal(size=(1500, 4)).astype(np.float32)
    rows[:, 1] = random.integers(0, 12, 1500)
    rows[:, 3] = random.integers(0, 40, 1500)
    rows[random.random(rows.shape) < 0.05] = np.nan
    effect = random.normal(size=40)
    target = np.nan_to_num(rows[:, 0]) + effect[np.nan_to_num(rows[:, 3]).astype(int)] + (rows[:, 1] == 3)
    types = ["float", "c", "float", "c"]
    data = xgb.DMatrix(rows, target, feature_types=types, enable_categorical=True)
    params = {"max_depth": 5, "max_cat_to_onehot": one_hot, "tree_method": "hist", **SEED}
    booster = xgb.train(params, data, 20)
    if one_hot > 1:
        assert '"split_type":[1' in json.dumps(
            json.loads(bytes(booster.save_raw("json"))), separators=(",", ":")
        )
    check(booster, rows[:150], types)


def test_xgboost_dart_and_parallel_trees(table: Callable[..., np.ndarray]) -> None:
    rows = table(6)
    data = xgb.DMatrix(rows, labels(rows))
    check(xgb.train({"booster": "dart", "rate_drop": 0.5, "max_depth": 4, **SEED}, data, 12), rows[:80])
    forest = {"num_parallel_tree": 5, "subsample": 0.6, "colsample_bynode": 0.5, "max_depth": 5, **SEED}
    check(xgb.train(forest, data, 4), rows[:80])


def test_one_row_alone_is_one_row_of_many(table: Callable[..., np.ndarray]) -> None:
    rows = table(7)
    booster = xgb.train({"max_depth": 6, **SEED}, xgb.DMatrix(rows, labels(rows)), 30)
    forest = Forest.from_xgboost(booster)
    for exact in (True, False):
        whole = forest.contributions(rows[:50], exact=exact)
        alone = [forest.contributions(row[None, :], exact=exact)[0] for row in rows[:50]]
        np.testing.assert_array_equal(whole, alone)


QUIET = {"verbose": -1, "num_threads": 1, "seed": 5, "deterministic": True}


def lightgbm_rows() -> np.ndarray:
    random = np.random.default_rng(8)
    rows = random.normal(size=(1200, 5)).astype(np.float32)
    rows[:, 1] = np.round(rows[:, 1])
    rows[:, 4] = random.integers(0, 30, len(rows))
    rows[random.random(rows.shape) < 0.1] = np.nan
    return rows


@pytest.mark.parametrize(
    ("params", "classes"),
    [
        ({"objective": "binary", "num_leaves": 31}, 1),
        ({"objective": "regression", "zero_as_missing": True, "num_leaves": 15}, 1),
        ({"objective": "regression", "use_missing": False, "max_depth": 4}, 1),
        ({"objective": "multiclass", "num_class": 3, "num_leaves": 8}, 3),
    ],
)
def test_lightgbm(params: dict[str, Any], classes: int) -> None:
    rows = lightgbm_rows()
    random = np.random.default_rng(1)
    effect = random.normal(size=30)
    target = np.nansum(rows[:, :3], axis=1) + effect[np.nan_to_num(rows[:, 4]).astype(int)]
    if params["objective"] != "regression":
        target = np.digitize(target, [0.0] if classes == 1 else [-1.0, 1.0])
    data = lgb.Dataset(rows, target, categorical_feature=[4])
    booster = lgb.train({**QUIET, **params}, data, 25)
    forest = Forest.from_lightgbm(booster)
    found = forest.contributions(rows[:120])
    expected = np.asarray(booster.predict(rows[:120], pred_contrib=True)).reshape(found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    margins = booster.predict(rows[:120], raw_score=True)
    np.testing.assert_allclose(found.sum(axis=-1), margins, rtol=1e-9, atol=1e-9)
    approximate = forest.contributions(rows[:120], exact=False)
    np.testing.assert_allclose(approximate.sum(axis=-1), margins, rtol=1e-5, atol=1e-5)


def game(tree: Any, node: int, row: np.ndarray, known: frozenset[int]) -> np.ndarray:
    """Return the mean of a tree's leaves, where known features follow the row and the others the weights."""
    left, right = tree.children_left[node], tree.children_right[node]
    if left < 0:
        return tree.value[node].ravel()
    feature = int(tree.feature[node])
    if feature in known:
        goes_left = (
            bool(tree.missing_go_to_left[node])
            if np.isnan(row[feature])
            else row[feature] <= tree.threshold[node]
        )
        return game(tree, left if goes_left else right, row, known)
    weights = tree.weighted_n_node_samples
    share = weights[left] / (weights[left] + weights[right])
    return share * game(tree, left, row, known) + (1 - share) * game(tree, right, row, known)


def shapley(trees: list[Any], row: np.ndarray) -> np.ndarray:
    """Return Shapley values by the definition, ``[outputs, features]``."""
    count = len(row)
    sets = [frozenset(s) for size in range(count + 1) for s in combinations(range(count), size)]
    value = {s: sum(game(tree, 0, row, s) for tree in trees) for s in sets}
    found = np.zeros((len(value[sets[0]]), count))
    for feature in range(count):
        for coalition in (s for s in sets if feature not in s):
            weight = factorial(len(coalition)) * factorial(count - len(coalition) - 1) / factorial(count)
            found[:, feature] += weight * (value[coalition | {feature}] - value[coalition])
    return found


def sklearn_rows() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(9)
    rows = random.normal(size=(400, 4)).astype(np.float32)
    return rows, rows[:, 0] * rows[:, 1] + rows[:, 2] + random.normal(scale=0.2, size=len(rows))


def test_sklearn_random_forest_of_classes() -> None:
    from sklearn.ensemble import RandomForestClassifier

    rows, target = sklearn_rows()
    rows[::9, 2] = np.nan
    weights = np.random.default_rng(2).random(len(rows))
    model = RandomForestClassifier(4, max_depth=6, random_state=1)
    model.fit(rows, np.digitize(target, [-0.5, 0.5]), sample_weight=weights)
    found = Forest.from_sklearn(model).contributions(rows[:12])
    for row, own in zip(rows[:12], found, strict=True):
        expected = shapley([estimator.tree_ for estimator in model.estimators_], row) / 4
        np.testing.assert_allclose(own[:, :-1], expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), model.predict_proba(rows[:12]), atol=1e-12)


def test_sklearn_gradient_boosting() -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    rows, target = sklearn_rows()
    model = GradientBoostingRegressor(n_estimators=6, max_depth=3, random_state=1).fit(rows, target)
    found = Forest.from_sklearn(model).contributions(rows[:12])
    for row, own in zip(rows[:12], found, strict=True):
        expected = model.learning_rate * shapley([e.tree_ for e in model.estimators_[:, 0]], row)
        np.testing.assert_allclose(own[:-1], expected[0], atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), model.predict(rows[:12]), atol=1e-10)


def test_sklearn_histogram_boosting_adds_up_to_its_prediction() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows, target = sklearn_rows()
    rows[::7, 3] = np.nan
    model = HistGradientBoostingRegressor(max_iter=15, max_leaf_nodes=12, random_state=1).fit(rows, target)
    for exact in (True, False):
        found = Forest.from_sklearn(model).contributions(rows[:60], exact=exact)
        np.testing.assert_allclose(found.sum(axis=-1), model.predict(rows[:60]), atol=1e-5)


def test_treelite_has_the_covers_of_the_library(table: Callable[..., np.ndarray]) -> None:
    import treelite

    rows = table(11)
    booster = xgb.train({"max_depth": 5, "base_score": 0.0, **SEED}, xgb.DMatrix(rows, labels(rows)), 15)
    found = Forest.from_treelite(treelite.frontend.from_xgboost(booster)).contributions(rows[:50])
    expected = booster.predict(xgb.DMatrix(rows[:50]), pred_contribs=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_forest_from_a_file_has_no_covers(table: Callable[..., np.ndarray]) -> None:
    rows = table(12)
    booster = xgb.train({"max_depth": 3, **SEED}, xgb.DMatrix(rows, labels(rows)), 3)
    forest = Forest.from_xgboost(booster)
    assert forest.covers() is not None
    packed = Forest.from_bytes(forest.to_bytes())
    assert packed.covers() is None
    with pytest.raises(ForestError, match="the forest has no covers; convert it from the model"):
        packed.contributions(rows)
    document = json.loads(bytes(booster.save_raw("json")))
    for tree in document["learner"]["gradient_booster"]["model"]["trees"]:
        del tree["sum_hessian"]
    assert Forest.from_xgboost(json.dumps(document).encode()).covers() is None
    for tree in json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]["trees"]:
        assert len(tree["sum_hessian"]) == len(tree["left_children"])


def test_covers_that_break_a_rule_are_dropped(table: Callable[..., np.ndarray]) -> None:
    rows = table(13)
    booster = xgb.train({"max_depth": 3, **SEED}, xgb.DMatrix(rows, labels(rows)), 2)
    document = json.loads(bytes(booster.save_raw("json")))
    document["learner"]["gradient_booster"]["model"]["trees"][1]["sum_hessian"][0] = -1.0
    forest = Forest.from_xgboost(json.dumps(document).encode())
    assert forest.covers() is None
    assert forest.to_bytes() == Forest.from_xgboost(booster).to_bytes(), "the packed forest has no covers"
