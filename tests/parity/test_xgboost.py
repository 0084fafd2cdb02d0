"""Margins and predictions of XGBoost models, bit for bit against XGBoost itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost as xgb

from scorer.errors import ForestError, UnsupportedModelError
from scorer.forest import Forest

SEED = {"seed": 7, "nthread": 1, "verbosity": 0}


def document(booster: xgb.Booster) -> dict[str, Any]:
    return json.loads(bytes(booster.save_raw("json")))


def trees(booster: xgb.Booster) -> list[dict[str, Any]]:
    gbm = document(booster)["learner"]["gradient_booster"]
    return gbm.get("gbtree", gbm)["model"]["trees"]


def thresholds(booster: xgb.Booster) -> list[tuple[int, float]]:
    return [
        (feature, condition)
        for tree in trees(booster)
        for feature, condition, left, kind in zip(
            tree["split_indices"],
            tree["split_conditions"],
            tree["left_children"],
            tree["split_type"],
            strict=True,
        )
        if left != -1 and kind == 0
    ]


def matrix(rows: np.ndarray, types: list[str] | None = None) -> xgb.DMatrix:
    return xgb.DMatrix(rows, feature_types=types, enable_categorical=types is not None)


@pytest.fixture
def check(assert_bits, edge_rows):
    """Check that all formats give one forest, which equals the booster on rows and special floats."""

    def run(
        booster: xgb.Booster, rows: np.ndarray, types: list[str] | None = None, dart: bool = False
    ) -> Forest:
        forest = Forest.from_xgboost(booster)
        for kind in ("ubj", "json"):
            assert Forest.from_xgboost(bytes(booster.save_raw(kind))).to_bytes() == forest.to_bytes()
        assert Forest.from_bytes(forest.to_bytes()).to_bytes() == forest.to_bytes()
        assert forest.num_features == booster.num_features()
        finite = np.isfinite
        edges = edge_rows(rows, thresholds(booster))
        for part in (rows, edges):
            # A DMatrix refuses infinities. In-place prediction accepts them, but sums DART in another order.
            plain = part[(finite(part) | np.isnan(part)).all(axis=1)]
            assert_bits(
                forest.predict(plain, margin=True), booster.predict(matrix(plain, types), output_margin=True)
            )
            assert_bits(forest.predict(plain), booster.predict(matrix(plain, types)))
            if not dart:
                predictions = forest.predict(part, margin=True)
                expected = booster.inplace_predict(part, predict_type="margin", validate_features=False)
                assert_bits(predictions, expected.reshape(predictions.shape))
        return forest

    return run


def labels(rows: np.ndarray, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.nansum(rows[:, :4], axis=1) + rng.normal(scale=0.5, size=len(rows))


OBJECTIVES = [
    ("reg:squarederror", lambda y: y),
    ("reg:squaredlogerror", np.abs),
    ("reg:pseudohubererror", lambda y: y),
    ("reg:absoluteerror", lambda y: y),
    ("reg:logistic", lambda y: 1 / (1 + np.exp(-y))),
    ("binary:logistic", lambda y: y > 0),
    ("binary:logitraw", lambda y: y > 0),
    ("binary:hinge", lambda y: y > 0),
    ("count:poisson", lambda y: np.floor(np.abs(y) * 2)),
    ("reg:gamma", lambda y: np.abs(y) + 0.1),
    ("reg:tweedie", lambda y: np.maximum(y, 0)),
    ("survival:cox", lambda y: np.where(y > -1, np.abs(y) + 0.1, -np.abs(y) - 0.1)),
]


@pytest.mark.parametrize(("objective", "label"), OBJECTIVES, ids=[name for name, _ in OBJECTIVES])
@pytest.mark.parametrize("base", [None, 0.3], ids=["fitted base", "given base"])
def test_scalar_objectives_give_the_same_bits(objective, label, base, table, check) -> None:
    rows = table(1)
    params = {"objective": objective, "max_depth": 5, **SEED} | ({} if base is None else {"base_score": base})
    booster = xgb.train(params, xgb.DMatrix(rows, label(labels(rows))), 25)
    forest = check(booster, rows)
    assert forest.num_trees == 25
    assert forest.num_outputs == 1


@pytest.mark.parametrize("objective", ["multi:softprob", "multi:softmax"])
def test_multi_class_models_give_the_same_bits(objective, table, check) -> None:
    rows = table(2)
    y = np.digitize(labels(rows), [-1.0, 0.0, 1.0])
    booster = xgb.train(
        {"objective": objective, "num_class": 4, "max_depth": 4, **SEED}, xgb.DMatrix(rows, y), 12
    )
    forest = check(booster, rows)
    assert (forest.num_outputs, forest.num_trees) == (4, 48)
    assert forest.predict(rows).ndim == (2 if objective == "multi:softprob" else 1)


@pytest.mark.parametrize("objective", ["rank:pairwise", "rank:ndcg", "rank:map"])
def test_ranking_models_give_the_same_bits(objective, table, check) -> None:
    rows = table(3)
    y = (labels(rows) > 0).astype(int)
    data = xgb.DMatrix(rows, y, qid=np.repeat(np.arange(80), 10))
    check(xgb.train({"objective": objective, "max_depth": 4, **SEED}, data, 15), rows)


def test_accelerated_failure_time_models_give_the_same_bits(table, check) -> None:
    rows = table(4)
    time = np.exp(labels(rows) / 3)
    data = xgb.DMatrix(rows)
    data.set_float_info("label_lower_bound", time)
    data.set_float_info("label_upper_bound", np.where(np.arange(len(rows)) % 3, time, np.inf))
    check(xgb.train({"objective": "survival:aft", "max_depth": 4, **SEED}, data, 15), rows)


@pytest.mark.parametrize("alphas", [0.4, [0.1, 0.5, 0.9]], ids=["one", "three"])
def test_quantile_models_give_the_same_bits(alphas, table, check) -> None:
    rows = table(5)
    params = {"objective": "reg:quantileerror", "quantile_alpha": alphas, "max_depth": 4, **SEED}
    forest = check(xgb.train(params, xgb.QuantileDMatrix(rows, labels(rows)), 12), rows)
    assert forest.num_outputs == np.size(alphas)


@pytest.mark.parametrize("depth", range(1, 15))
def test_all_depths_give_the_same_bits(depth, table, check) -> None:
    rows = table(depth, rows=1500)
    params = {"max_depth": depth, "min_child_weight": 0, "objective": "binary:logistic", "eta": 0.1, **SEED}
    forest = check(xgb.train(params, xgb.DMatrix(rows, labels(rows) > 0), 11), rows)
    assert forest.max_depth == depth


def test_leaf_wise_growth_gives_the_same_bits(table, check) -> None:
    rows = table(6, rows=1500)
    params = {"grow_policy": "lossguide", "max_leaves": 40, "max_depth": 0, "min_child_weight": 0, **SEED}
    assert check(xgb.train(params, xgb.DMatrix(rows, labels(rows)), 12), rows).max_depth > 8


@pytest.mark.parametrize("method", ["exact", "approx", "hist"])
def test_pruned_nodes_are_ignored(method, table, check) -> None:
    rows = table(7)
    params = {"tree_method": method, "max_depth": 7, "gamma": 3.0, **SEED}
    booster = xgb.train(params, xgb.DMatrix(rows, labels(rows)), 15)
    if method == "exact":
        assert any(int(tree["tree_param"]["num_deleted"]) for tree in trees(booster))
    check(booster, rows)


@pytest.mark.parametrize("classes", [0, 3])
def test_parallel_trees_give_the_same_bits(classes, table, check) -> None:
    rows = table(8)
    y = np.digitize(labels(rows), [-0.7, 0.7]) if classes else labels(rows)
    params = {"num_parallel_tree": 5, "subsample": 0.7, "colsample_bynode": 0.6, "max_depth": 5, **SEED}
    params |= {"objective": "multi:softprob", "num_class": 3} if classes else {}
    forest = check(xgb.train(params, xgb.DMatrix(rows, y), 4), rows)
    assert forest.num_trees == 4 * 5 * max(classes, 1)


@pytest.mark.parametrize("classes", [0, 3])
def test_dart_models_give_the_same_bits(classes, table, check) -> None:
    rows = table(9)
    y = np.digitize(labels(rows), [-0.7, 0.7]) if classes else labels(rows) > 0
    params = {"booster": "dart", "rate_drop": 0.3, "skip_drop": 0.2, "max_depth": 5, **SEED}
    params |= {"objective": "multi:softprob", "num_class": 3} if classes else {"objective": "binary:logistic"}
    booster = xgb.train(params, xgb.DMatrix(rows, y), 20)
    weights = document(booster)["learner"]["gradient_booster"]["weight_drop"]
    assert len({*weights}) > 3
    check(booster, rows, dart=True)


def test_dart_weights_are_read_at_the_place_of_later_versions(table, assert_bits) -> None:
    """From 3.3 on, the weights are in the model of a gbtree."""
    rows = table(9)
    params = {"booster": "dart", "rate_drop": 0.3, "max_depth": 4, **SEED}
    booster = xgb.train(params, xgb.DMatrix(rows, labels(rows)), 12)
    old = document(booster)
    gbm = old["learner"]["gradient_booster"]
    new = json.loads(json.dumps(old))
    model = new["learner"]["gradient_booster"]["gbtree"]["model"] | {"weight_drop": gbm["weight_drop"]}
    new["learner"]["gradient_booster"] = {"name": "gbtree", "model": model}
    new["version"] = [3, 3, 0]
    result = Forest.from_xgboost(json.dumps(new).encode())
    assert_bits(result.predict(rows, margin=True), booster.predict(matrix(rows), output_margin=True))
    assert result.to_bytes() == Forest.from_xgboost(booster).to_bytes()


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
@pytest.mark.parametrize("depth", [3, 10])
def test_several_targets_give_the_same_bits(strategy, depth, table, check) -> None:
    rows = table(10)
    y = np.stack([labels(rows, seed) for seed in (1, 2, 3)], axis=1) + np.array([5.0, -2.0, 0.0])
    params = {"multi_strategy": strategy, "max_depth": depth, "tree_method": "hist", **SEED}
    forest = check(xgb.train(params, xgb.DMatrix(rows, y), 9), rows)
    assert (forest.num_outputs, forest.num_trees) == (3, 9 if strategy == "multi_output_tree" else 27)


def test_vector_leaves_are_read_in_the_layout_of_earlier_versions(table, assert_bits) -> None:
    """Up to 3.1, every node had a row of base_weights, which leaves used."""
    rows = table(11)
    y = np.stack([labels(rows, 1), labels(rows, 2)], axis=1)
    params = {"multi_strategy": "multi_output_tree", "max_depth": 4, "tree_method": "hist", **SEED}
    booster = xgb.train(params, xgb.DMatrix(rows, y), 6)
    old = document(booster)
    for tree in old["learner"]["gradient_booster"]["model"]["trees"]:
        leaf_weights = np.array(tree.pop("leaf_weights")).reshape(-1, 2)
        base_weights = np.array(tree["base_weights"]).reshape(-1, 2)
        for node, left in enumerate(tree["left_children"]):
            if left == -1:
                base_weights[node] = leaf_weights[tree["right_children"][node]]
                tree["right_children"][node] = -1
        tree["base_weights"] = base_weights.ravel().tolist()
    old["version"] = [3, 0, 2]
    result = Forest.from_xgboost(json.dumps(old).encode())
    assert_bits(result.predict(rows, margin=True), booster.predict(matrix(rows), output_margin=True))


CATEGORIES = ["q", "q", "q", "c", "c", "q", "q", "q"]


def categorical(table, seed: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = table(seed, rows=1500)
    for column, count in ((3, 6), (4, 90)):
        codes = rng.integers(0, count, len(rows)).astype(np.float32)
        rows[:, column] = np.where(np.isnan(rows[:, column]), np.nan, codes)
    effect = rng.normal(size=100)
    y = np.nansum(rows[:, :3], axis=1) + effect[np.nan_to_num(rows[:, 4]).astype(int)]
    return rows, y + np.nan_to_num(rows[:, 3]) % 3


@pytest.mark.parametrize("max_cat_to_onehot", [1, 1000], ids=["partition", "one-hot"])
@pytest.mark.parametrize("depth", [4, 9])
def test_categories_give_the_same_bits(max_cat_to_onehot, depth, table, check, assert_bits) -> None:
    rows, y = categorical(table)
    params = {
        "max_depth": depth,
        "max_cat_to_onehot": max_cat_to_onehot,
        "objective": "binary:logistic",
        **SEED,
    }
    data = xgb.DMatrix(rows, y > 0.5, feature_types=CATEGORIES, enable_categorical=True)
    booster = xgb.train(params, data, 12)
    assert any(1 in tree["split_type"] for tree in trees(booster))
    forest = check(booster, rows, CATEGORIES)
    odd = [-1.0, -0.5, -0.0, 0.5, 5.99, 6.0, 89.0, 90.0, 5000.0, 16777215.0, 16777216.0, 3e9, 1e38, 1e-45]
    odd += [np.nan, np.inf, -np.inf]
    strange = np.repeat(rows[:40], len(odd), axis=0)
    for column in (3, 4):
        strange[:, column] = np.tile(np.array(odd, np.float32), 40)
    assert_bits(
        forest.predict(strange, margin=True),
        booster.inplace_predict(strange, predict_type="margin", validate_features=False),
    )


def test_categories_of_a_data_frame_are_numbered_as_in_training(table, assert_bits) -> None:
    """The model contains the category names of the data frame. Rows contain their numbers, as for XGBoost."""
    rows, y = categorical(table)
    words = [f"w{i * 37 % 100:02}" for i in range(90)]
    codes = np.nan_to_num(rows[:, 4]).astype(int)
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(words))
    frame = pa.table({"x": rows[:, 0], "word": column})
    data = xgb.DMatrix(frame, label=y, enable_categorical=True)
    booster = xgb.train({"max_depth": 5, "max_cat_to_onehot": 1, **SEED}, data, 10)
    cats = document(booster)["learner"]["gradient_booster"]["model"]["cats"]
    assert cats["enc"][1]["values"]
    plain = np.stack([rows[:, 0], codes.astype(np.float32)], axis=1)
    expected = booster.predict(data, output_margin=True)
    assert_bits(Forest.from_xgboost(booster).predict(plain, margin=True), expected)
    assert_bits(Forest.from_xgboost(bytes(booster.save_raw("json"))).predict(plain, margin=True), expected)


def as_2x(booster: xgb.Booster, base_score: str) -> dict[str, Any]:
    """Return the document in the form of XGBoost 2.1."""
    doc = document(booster)
    doc["version"] = [2, 1, 4]
    doc["learner"]["learner_model_param"]["base_score"] = base_score
    del doc["learner"]["gradient_booster"]["model"]["cats"]
    return doc


@pytest.mark.parametrize(
    ("objective", "score"),
    [
        ("binary:logistic", "5E-1"),
        ("binary:logistic", "1.2345679E-1"),
        ("reg:squarederror", "-7.25E0"),
        ("count:poisson", "3.3E-1"),
        ("multi:softprob", "5E-1"),
    ],
)
def test_base_scores_of_2x_are_read(objective, score, table, assert_bits) -> None:
    rows = table(13)
    y = np.digitize(labels(rows), [-0.7, 0.7]) if "multi" in objective else labels(rows) > 0
    params = {"objective": objective, "max_depth": 4, **SEED} | (
        {"num_class": 3} if "multi" in objective else {}
    )
    text = json.dumps(as_2x(xgb.train(params, xgb.DMatrix(rows, y), 8), score)).encode()
    booster = xgb.Booster(model_file=bytearray(text))
    forest = Forest.from_xgboost(text)
    assert_bits(forest.predict(rows, margin=True), booster.predict(matrix(rows), output_margin=True))
    assert_bits(forest.predict(rows), booster.predict(matrix(rows)))


@pytest.mark.parametrize("score", ["[0E0]", "[1E0]", "[1E-7]", "[9.999999E-1]", "[5E-1]", "5E-1"])
def test_base_scores_of_3x_are_read(score, table, assert_bits) -> None:
    """From 3.2 on, probabilities are clamped, so that all labels may be equal."""
    rows = table(14)
    doc = document(
        xgb.train({"objective": "binary:logistic", **SEED}, xgb.DMatrix(rows, labels(rows) > 0), 5)
    )
    doc["learner"]["learner_model_param"]["base_score"] = score
    text = json.dumps(doc).encode()
    booster = xgb.Booster(model_file=bytearray(text))
    assert_bits(
        Forest.from_xgboost(text).predict(rows, margin=True),
        booster.predict(matrix(rows), output_margin=True),
    )


def test_constant_labels_give_the_same_bits(table, check) -> None:
    rows = table(15)
    check(
        xgb.train({"objective": "binary:logistic", **SEED}, xgb.DMatrix(rows, np.zeros(len(rows))), 3), rows
    )


def test_a_model_without_rounds_gives_the_same_bits(table, check) -> None:
    rows = table(16)
    forest = check(xgb.train({"base_score": 0.25, **SEED}, xgb.DMatrix(rows, labels(rows)), 0), rows)
    assert forest.num_trees == 0


def test_a_model_that_was_never_fitted_is_refused(table) -> None:
    """For such a model, XGBoost predicts a placeholder as a margin, with any objective."""
    rows = table(16)
    booster = xgb.train({"objective": "binary:logistic", **SEED}, xgb.DMatrix(rows, labels(rows) > 0), 0)
    with pytest.raises(UnsupportedModelError, match=r"without trees.*placeholder.*one round"):
        Forest.from_xgboost(booster)


def test_a_large_model_gives_the_same_bits(table, check) -> None:
    rows = table(17, rows=2000, features=40)
    params = {"objective": "binary:logistic", "max_depth": 6, **SEED}
    booster = xgb.train(params, xgb.DMatrix(rows, labels(rows) > 0), 500)
    forest = check(booster, rows)
    assert forest.nbytes <= 2 * len(booster.save_raw("ubj"))


def test_estimators_end_at_their_best_round(table, assert_bits) -> None:
    rows = table(18)
    y = (labels(rows) > 0).astype(int)
    model = xgb.XGBClassifier(
        n_estimators=80, max_depth=5, learning_rate=0.8, early_stopping_rounds=5, n_jobs=1, random_state=1
    )
    model.fit(rows[:500], y[:500], eval_set=[(rows[500:], y[500:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    forest = Forest.from_xgboost(model)
    assert forest.num_trees == model.best_iteration + 1
    assert_bits(forest.predict(rows), model.predict_proba(rows)[:, 1])
    # A booster uses all of its rounds, as in its predict().
    everything = Forest.from_xgboost(model.get_booster())
    assert_bits(everything.predict(rows), model.get_booster().predict(matrix(rows)))


def test_files_of_every_format_are_read(table, tmp_path) -> None:
    rows = table(19)
    booster = xgb.train(SEED, xgb.DMatrix(rows, labels(rows)), 3)
    for name in ("m.ubj", "m.json"):
        booster.save_model(tmp_path / name)
        assert Forest.from_xgboost(tmp_path / name).to_bytes() == Forest.from_xgboost(booster).to_bytes()


@pytest.fixture(scope="module")
def doc(table) -> dict[str, Any]:
    rows = table(20)
    return document(xgb.train({"max_depth": 3, **SEED}, xgb.DMatrix(rows, labels(rows)), 2))


class TestRefusals:
    def edited(self, doc: dict[str, Any], *path: Any, value: Any) -> bytes:
        doc = json.loads(json.dumps(doc))
        part = doc
        for key in path[:-1]:
            part = part[key]
        if value is None:
            del part[path[-1]]
        else:
            part[path[-1]] = value
        return json.dumps(doc).encode()

    def test_linear_boosters_are_refused(self, table) -> None:
        rows = table(20, missing=0)
        booster = xgb.train({"booster": "gblinear", **SEED}, xgb.DMatrix(rows, labels(rows)), 2)
        with pytest.raises(UnsupportedModelError, match=r'"gblinear".*linear model.*gbtree'):
            Forest.from_xgboost(booster)

    def test_unknown_objectives_are_refused(self, doc) -> None:
        data = self.edited(doc, "learner", "objective", "name", value="reg:expectileerror")
        with pytest.raises(UnsupportedModelError, match=r'objective "reg:expectileerror"'):
            Forest.from_xgboost(data)

    TREE = ("learner", "gradient_booster", "model", "trees", 0)

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            (("version",), None, "version: it is missing"),
            (("version",), [0, 90, 0], "from 1.0.0"),
            (("learner", "learner_model_param", "base_score"), "[nan]", "finite number"),
            (("learner", "learner_model_param", "num_feature"), "9999999999", "limit"),
            (("learner", "gradient_booster", "model", "tree_info"), [0], "one element per tree"),
            (("learner", "gradient_booster", "model", "tree_info"), [0, 5], "output is not below"),
            ((*TREE, "id"), 1, "its id 1"),
            ((*TREE, "left_children", 0), 0, "two links lead to it"),
            ((*TREE, "left_children", 0), 10_000, "leads out of the tree"),
            ((*TREE, "right_children", 0), -7, "leads out of the tree"),
            ((*TREE, "split_indices", 0), 8, "its feature"),
            ((*TREE, "default_left", 0), 2, "0 or 1"),
            ((*TREE, "split_type", 0), 1, "disagree"),
            ((*TREE, "split_conditions"), [0.5], "one element per node"),
            ((*TREE, "tree_param", "num_nodes"), "3", "num_nodes"),
        ],
    )
    def test_contradictions_are_reported(self, doc, path, value, message) -> None:
        with pytest.raises(ForestError, match=message):
            Forest.from_xgboost(self.edited(doc, *path, value=value))

    def test_leaves_that_are_not_numbers_are_refused(self, doc) -> None:
        tree = doc["learner"]["gradient_booster"]["model"]["trees"][0]
        leaf = tree["left_children"].index(-1)
        data = self.edited(doc, *self.TREE, "split_conditions", leaf, value=float("nan"))
        with pytest.raises(ForestError, match=r"tree 0.*finite"):
            Forest.from_xgboost(data)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "value is expected"),
            (b'{"version": [3, 2, 0], "version": [3, 2, 0]}', "appears twice"),
            (b'{"version": [3, 2, 0]} x', "left over"),
            (b"[" * 100, "nested too deeply"),
            (b"binf\x00\xff\x00", "only .ubj and .json"),
            (b"{L\x7f\xff\xff\xff\xff\xff\xff\xff", "length"),
            (b'{"a": 1e}', "malformed"),
            (b"{}", "version: it is missing"),
        ],
    )
    def test_other_bytes_are_refused(self, data, message) -> None:
        with pytest.raises(ForestError, match=message):
            Forest.from_xgboost(data)

    def test_other_objects_are_refused(self, tmp_path) -> None:
        with pytest.raises(ForestError, match=r"no-such-file.*cannot be read"):
            Forest.from_xgboost(tmp_path / "no-such-file.ubj")
        with pytest.raises(ForestError, match=r"int is no Booster"):
            Forest.from_xgboost(3)
        with pytest.raises(ForestError, match=r"fit the model first"):
            Forest.from_xgboost(xgb.XGBClassifier())
