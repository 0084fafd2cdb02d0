"""Treelite models against Treelite's own reference, GTIL."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest
import treelite
import xgboost as xgb
from sklearn import ensemble
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

from scorer.errors import ForestError, UnsupportedModelError
from scorer.forest import Forest

NEAR = {"rtol": 3e-7, "atol": 0}


def reference(model: treelite.Model, rows: np.ndarray, pred_margin: bool) -> np.ndarray:
    rows = rows.astype(model.input_type)
    result = treelite.gtil.predict(model, rows, nthread=1, pred_margin=pred_margin)
    result = result.reshape(len(rows), -1)
    return np.ascontiguousarray(result[:, 0]) if result.shape[1] == 1 else result


def build(operator: str, **metadata) -> treelite.Model:
    """Build three stumps and a category test, with every default direction."""
    defaults = {
        "num_feature": 3,
        "task_type": "kRegressor",
        "average_tree_output": False,
        "num_target": 1,
        "num_class": [1],
        "leaf_vector_shape": (1, 1),
    }
    builder = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(**defaults),
        tree_annotation=TreeAnnotation(num_tree=3, target_id=[0] * 3, class_id=[0] * 3),
        postprocessor=PostProcessorFunc(name=metadata.pop("postprocessor", "identity")),
        base_scores=[0.1],
    )
    for tree in range(3):
        builder.start_tree()
        builder.start_node(0)
        builder.numerical_test(
            feature_id=tree,
            threshold=0.5 * tree,
            default_left=tree % 2 == 0,
            opname=operator,
            left_child_key=1,
            right_child_key=2,
        )
        builder.end_node()
        builder.start_node(1)
        builder.categorical_test(
            feature_id=2,
            category_list=[0, 2, 5],
            default_left=tree % 2 == 1,
            category_list_right_child=tree == 2,
            left_child_key=3,
            right_child_key=4,
        )
        builder.end_node()
        for key, value in ((2, 0.3), (3, -1.7), (4, 2.9)):
            builder.start_node(key)
            builder.leaf(value * (tree + 1))
            builder.end_node()
        builder.end_tree()
    return builder.commit()


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">="])
@pytest.mark.parametrize(
    "postprocessor",
    ["identity", "signed_square", "hinge", "sigmoid", "exponential", "logarithm_one_plus_exp"],
)
def test_built_models_give_the_same_bits(operator, postprocessor, assert_bits, edge_rows) -> None:
    model = build(operator, postprocessor=postprocessor)
    base = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32) * 4
    rows = edge_rows(base, [(0, 0.0), (1, 0.5), (2, 1.0), (2, 5.0), (2, 6.0)])
    rows = np.concatenate([base, np.round(base), rows])
    forest = Forest.from_treelite(model)
    assert_bits(forest.predict(rows, margin=True), reference(model, rows, pred_margin=True))
    np.testing.assert_allclose(forest.predict(rows), reference(model, rows, pred_margin=False), **NEAR)


def test_equality_tests_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tree 0.*operator"):
        Forest.from_treelite(build("=="))


def xgboost_models(rows, y):
    def train(**params):
        label = np.digitize(y, [-1, 1]) if "num_class" in params else y
        if params.get("multi_strategy"):
            label = np.stack([y, -y, y**2], axis=1)
        return xgb.train({"nthread": 1, "max_depth": 5, **params}, xgb.DMatrix(rows, label), 10)

    yield train()
    yield train(objective="multi:softprob", num_class=3)
    yield train(multi_strategy="multi_output_tree", tree_method="hist")
    yield train(num_parallel_tree=3, subsample=0.5)


def test_models_of_xgboost_give_the_same_bits(table, assert_bits) -> None:
    """The sums are those of Treelite, which adds the base last, unlike XGBoost."""
    rows = table(1)
    y = np.nansum(rows[:, :4], axis=1)
    for booster in xgboost_models(rows, y):
        model = treelite.frontend.from_xgboost(booster)
        forest = Forest.from_treelite(model)
        assert_bits(forest.predict(rows, margin=True), reference(model, rows, pred_margin=True))
        np.testing.assert_allclose(forest.predict(rows), reference(model, rows, pred_margin=False), **NEAR)


def test_models_of_lightgbm_give_the_same_bits(table, assert_bits) -> None:
    rows = table(2)
    rows[:, 3] = np.random.default_rng(1).integers(0, 30, len(rows))
    y = np.nansum(rows[:, :3], axis=1) + rows[:, 3] % 3
    for params in ({"objective": "regression"}, {"objective": "multiclass", "num_class": 3}):
        label = np.digitize(y, [0, 2]) if "num_class" in params else y
        data = lgb.Dataset(rows, label, categorical_feature=[3])
        model = treelite.frontend.from_lightgbm(
            lgb.train({"verbose": -1, "num_threads": 1, **params}, data, 10)
        )
        assert_bits(
            Forest.from_treelite(model).predict(rows, margin=True), reference(model, rows, pred_margin=True)
        )


@pytest.mark.parametrize(
    ("estimator", "outputs"),
    [
        (ensemble.RandomForestRegressor(8, random_state=1), "one"),
        (ensemble.RandomForestRegressor(8, random_state=1), "two"),
        (ensemble.RandomForestClassifier(8, random_state=1), "one"),
        (ensemble.RandomForestClassifier(8, random_state=1), "two"),
        (ensemble.GradientBoostingClassifier(n_estimators=8, random_state=1), "one"),
        (ensemble.IsolationForest(n_estimators=8, random_state=1), "one"),
    ],
    ids=str,
)
def test_models_of_sklearn_give_the_same_scores(estimator, outputs, table, assert_bits) -> None:
    rows = np.nan_to_num(table(3))
    y = np.digitize(np.nansum(rows[:, :3], axis=1), [-1, 1])
    if outputs == "two":
        y = np.stack([y, y > 0], axis=1)
    model = treelite.sklearn.import_model(estimator.fit(rows, y))
    forest = Forest.from_treelite(model)
    assert_bits(forest.predict(rows, margin=True), reference(model, rows, pred_margin=True))
    np.testing.assert_allclose(forest.predict(rows), reference(model, rows, pred_margin=False), **NEAR)


def test_a_checkpoint_file_gives_the_same_forest(tmp_path) -> None:
    model = build("<")
    expected = Forest.from_treelite(model).to_bytes()
    model.serialize(tmp_path / "model.tl")
    assert Forest.from_treelite(tmp_path / "model.tl").to_bytes() == expected
    assert Forest.from_treelite(model.serialize_bytes()).to_bytes() == expected


def test_other_objects_are_refused(tmp_path) -> None:
    with pytest.raises(ForestError, match=r"int is no model"):
        Forest.from_treelite(3)
    with pytest.raises(ForestError, match=r"Treelite checkpoint"):
        Forest.from_treelite(tmp_path / "no-such-file.tl")
