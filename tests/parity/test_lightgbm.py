"""LightGBM models against LightGBM's own float64 results on float32 rows: equal in every bit.

One difference is LightGBM's own: ``raw_score`` of a model with ``boosting=rf`` is the sum of its trees,
while its predictions start from their average. Margins here are the average.
"""

from __future__ import annotations

import re

import lightgbm as lgb
import numpy as np
import pytest

from scorer.errors import ForestError, UnsupportedModelError
from scorer.forest import Forest

QUIET = {"verbose": -1, "num_threads": 1, "seed": 5, "deterministic": True}
MISSING = {
    "NaN": {},
    "zero": {"zero_as_missing": True},
    "none": {"use_missing": False},
}


def table(seed: int, count: int = 1000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 6)).astype(np.float32)
    rows[:, 1] = np.round(rows[:, 1])
    rows[rng.random(rows.shape) < 0.15] = 0.0
    rows[:, 4] = rng.integers(0, 5, count)
    rows[:, 5] = rng.integers(0, 70, count)
    rows[rng.random(rows.shape) < 0.08] = np.nan
    return rows


def labels(rows: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(1)
    effect = rng.normal(size=70)
    present = np.isnan(rows[:, 0]) * 1.5 + (rows[:, 2] == 0) * 2.0
    many = effect[np.nan_to_num(rows[:, 5]).astype(int)]
    return np.nansum(rows[:, :3], axis=1) + present + many + 3 * (rows[:, 4] == 2)


def thresholds(booster: lgb.Booster) -> list[tuple[int, float]]:
    text = booster.model_to_string()
    features = [int(v) for line in re.findall(r"^split_feature=(.*)$", text, re.M) for v in line.split()]
    values = [float(v) for line in re.findall(r"^threshold=(.*)$", text, re.M) for v in line.split()]
    return list(zip(features, values, strict=True))


@pytest.fixture
def check(assert_bits, edge_rows):
    def run(booster: lgb.Booster, rows: np.ndarray) -> Forest:
        forest = Forest.from_lightgbm(booster)
        assert Forest.from_bytes(forest.to_bytes()).to_bytes() == forest.to_bytes()
        odd = np.repeat(rows[:20], 14, axis=0)
        for column in (4, 5):
            values = [-3, -1, -0.5, -0.0, 0.5, 4.99, 69, 70, 1e6, 2**31, 3e9, np.nan, np.inf, -np.inf]
            odd[:, column] = np.tile(np.array(values, np.float32), 20)
        for part in (rows, odd, edge_rows(rows, thresholds(booster))):
            assert_bits(forest.predict(part, margin=True), booster.predict(part, raw_score=True))
            assert_bits(forest.predict(part), booster.predict(part))
        return forest

    return run


OBJECTIVES = {
    "regression": lambda y: y,
    "regression_l1": lambda y: y,
    "huber": lambda y: y,
    "fair": lambda y: y,
    "quantile": lambda y: y,
    "mape": lambda y: y,
    "poisson": lambda y: np.floor(np.abs(y)),
    "gamma": lambda y: np.abs(y) + 0.1,
    "tweedie": lambda y: np.maximum(y, 0),
    "binary": lambda y: y > 0,
    "cross_entropy": lambda y: 1 / (1 + np.exp(-y)),
    "cross_entropy_lambda": lambda y: 1 / (1 + np.exp(-y)),
    "multiclass": lambda y: np.digitize(y, [-1, 1]),
    "multiclassova": lambda y: np.digitize(y, [-1, 1]),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objectives_give_the_same_bits(objective, check) -> None:
    rows = table(1)
    params = {"objective": objective, **QUIET} | ({"num_class": 3} if "multi" in objective else {})
    data = lgb.Dataset(rows, OBJECTIVES[objective](labels(rows)), categorical_feature=[4])
    forest = check(lgb.train(params, data, 12), rows)
    assert forest.num_outputs == params.get("num_class", 1)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("categories", [[], [4], [4, 5]], ids=["numbers", "one-hot", "sets"])
def test_missing_types_give_the_same_bits(missing, categories, check) -> None:
    rows = table(2)
    params = {
        "objective": "regression",
        "min_data_in_leaf": 3,
        "min_data_per_group": 3,
        **QUIET,
        **MISSING[missing],
    }
    booster = lgb.train(params, lgb.Dataset(rows, labels(rows), categorical_feature=categories), 15)
    kinds = {
        int(v)
        for line in re.findall(r"^decision_type=(.*)$", booster.model_to_string(), re.M)
        for v in line.split()
    }
    assert {"NaN": 2, "zero": 1, "none": 0}[missing] in {kind >> 2 for kind in kinds}
    assert any(kind & 1 for kind in kinds) == bool(categories)
    check(booster, rows)


@pytest.mark.parametrize("kind", [0, 2, 4, 6, 8, 10])
@pytest.mark.parametrize("sign", [1, -1])
def test_every_decision_type_is_equal_on_both_sides_of_zero(kind, sign, assert_bits, edge_rows) -> None:
    """The test writes every default direction and missing type (none, zero, NaN) to the text of a model."""
    rows = table(3)
    booster = lgb.train({"objective": "regression", **QUIET}, lgb.Dataset(rows, labels(rows)), 4)

    def decisions(match: re.Match[str]) -> str:
        return "decision_type=" + " ".join(str(kind) for _ in match[1].split())

    def signs(match: re.Match[str]) -> str:
        return "threshold=" + " ".join(repr(sign * abs(float(v))) for v in match[1].split())

    text = re.sub(r"^decision_type=(.*)$", decisions, booster.model_to_string(), flags=re.M)
    text = re.sub(r"^threshold=(.*)$", signs, text, flags=re.M)
    text = re.sub(r"^tree_sizes=.*\n", "", text, flags=re.M)
    edited = lgb.Booster(model_str=text)
    part = np.concatenate([rows, edge_rows(rows, thresholds(edited))])
    assert_bits(Forest.from_lightgbm(text).predict(part, margin=True), edited.predict(part, raw_score=True))


@pytest.mark.parametrize("kind", [0, 2, 4, 6, 8, 10])
@pytest.mark.parametrize("threshold", [0.0, 4e-36, -4e-36, 1e-35, -1e-35, 1e-45])
def test_tiny_values_are_read_as_zero(kind, threshold, assert_bits) -> None:
    """LightGBM reads |x| <= 1e-35 as zero, with any missing type."""
    rows = table(13)
    text = lgb.train(
        {"objective": "regression", **QUIET}, lgb.Dataset(rows, labels(rows)), 2
    ).model_to_string()
    for key, value in (("decision_type", str(kind)), ("threshold", repr(threshold))):
        text = re.sub(
            rf"^{key}=(.*)$",
            lambda m, k=key, v=value: f"{k}=" + " ".join(v for _ in m[1].split()),
            text,
            flags=re.M,
        )
    text = re.sub(r"^tree_sizes=.*\n", "", text, flags=re.M)
    edited = lgb.Booster(model_str=text)
    tiny = np.array([0.0, -0.0, 1e-45, 3e-36, 5e-36, 1e-35, 1.0000001e-35, 2e-35, 1.0, np.nan], np.float32)
    part = np.random.default_rng(1).choice(np.concatenate([tiny, -tiny]), (400, 6))
    assert_bits(Forest.from_lightgbm(text).predict(part, margin=True), edited.predict(part, raw_score=True))


@pytest.mark.parametrize(
    "params",
    [
        {"boosting": "dart", "drop_rate": 0.4},
        {"data_sample_strategy": "goss"},
        {"objective": "regression", "reg_sqrt": True},
        {"objective": "binary", "sigmoid": 2.5},
        {"num_leaves": 255, "min_data_in_leaf": 1, "min_sum_hessian_in_leaf": 0},
        {"num_leaves": 2},
        {"extra_trees": True},
        {"max_bin": 1023},
    ],
    ids=lambda params: "-".join(map(str, params)),
)
def test_boosters_give_the_same_bits(params, check) -> None:
    rows = table(4)
    y = labels(rows)
    y = y > 0 if params.get("objective") == "binary" else y
    check(lgb.train({"objective": "regression", **QUIET, **params}, lgb.Dataset(rows, y), 12), rows)


def test_ranking_models_give_the_same_bits(check) -> None:
    rows = table(5)
    data = lgb.Dataset(rows, (labels(rows) > 0).astype(int), group=[10] * 100)
    check(lgb.train({"objective": "lambdarank", **QUIET}, data, 8), rows)


@pytest.mark.parametrize("objective", ["regression", "binary"])
def test_random_forests_are_averaged(objective, assert_bits) -> None:
    rows = table(6)
    y = labels(rows) if objective == "regression" else labels(rows) > 0
    params = {"objective": objective, "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5, **QUIET}
    booster = lgb.train(params, lgb.Dataset(rows, y), 9)
    forest = Forest.from_lightgbm(booster)
    assert_bits(forest.predict(rows), booster.predict(rows))
    assert_bits(forest.predict(rows, margin=True), booster.predict(rows, raw_score=True) / 9)


def test_custom_objectives_have_no_link(check) -> None:
    rows = table(7)
    y = labels(rows)
    params = {"objective": lambda predictions, data: (predictions - y, np.ones_like(y)), **QUIET}
    check(lgb.train(params, lgb.Dataset(rows, y), 6), rows)


def test_trees_without_splits_give_the_same_bits(check) -> None:
    rows = table(8)
    check(
        lgb.train({"objective": "regression", **QUIET}, lgb.Dataset(rows, np.full(len(rows), 3.25)), 4), rows
    )


def test_a_stopped_booster_ends_at_its_best_round(assert_bits) -> None:
    rows = table(9)
    data = lgb.Dataset(rows[:600], labels(rows)[:600])
    booster = lgb.train(
        {"objective": "regression", "learning_rate": 0.9, **QUIET},
        data,
        60,
        valid_sets=[data.create_valid(rows[600:], labels(rows)[600:])],
        callbacks=[lgb.early_stopping(3, verbose=False)],
        keep_training_booster=True,
    )
    forest = Forest.from_lightgbm(booster)
    assert forest.num_trees == booster.best_iteration < booster.current_iteration()
    assert_bits(forest.predict(rows), booster.predict(rows))


def test_estimators_and_files_give_the_same_forest(tmp_path, assert_bits) -> None:
    rows = table(10)
    model = lgb.LGBMClassifier(n_estimators=8, n_jobs=1, verbose=-1).fit(rows, labels(rows) > 0)
    forest = Forest.from_lightgbm(model)
    assert_bits(forest.predict(rows), model.booster_.predict(rows))
    model.booster_.save_model(tmp_path / "model.txt")
    assert Forest.from_lightgbm(tmp_path / "model.txt").to_bytes() == forest.to_bytes()
    assert Forest.from_lightgbm(model.booster_.model_to_string()).to_bytes() == forest.to_bytes()


class TestRefusals:
    def test_linear_trees_are_refused(self) -> None:
        rows = np.nan_to_num(table(11))
        params = {"objective": "regression", "linear_tree": True, **QUIET}
        booster = lgb.train(params, lgb.Dataset(rows, labels(rows)), 3)
        with pytest.raises(UnsupportedModelError, match=r"linear_tree.*linear_tree=False"):
            Forest.from_lightgbm(booster)

    def test_malformed_text_is_refused(self) -> None:
        rows = table(12)
        text = lgb.train(
            {"objective": "regression", **QUIET}, lgb.Dataset(rows, labels(rows)), 2
        ).model_to_string()
        with pytest.raises(ForestError, match=r"tree 0 is malformed"):
            Forest.from_lightgbm(re.sub(r"^left_child=\S+ ", "left_child=", text, flags=re.M))
        with pytest.raises(ForestError, match=r"tree 0 is malformed.*leaf_value"):
            Forest.from_lightgbm(re.sub(r"^leaf_value=.*\n", "", text, flags=re.M))
        with pytest.raises(ForestError, match=r"two links|leads out"):
            Forest.from_lightgbm(re.sub(r"^left_child=\S+ ", "left_child=999999 ", text, flags=re.M))
        with pytest.raises(UnsupportedModelError, match=r"objective 'wonderful'"):
            Forest.from_lightgbm(text.replace("objective=regression", "objective=wonderful"))
        with pytest.raises(ForestError, match=r"does not start"):
            Forest.from_lightgbm("no\nmodel")

    def test_other_objects_are_refused(self, tmp_path) -> None:
        with pytest.raises(ForestError, match=r"no-such-file.*cannot be read"):
            Forest.from_lightgbm(tmp_path / "no-such-file.txt")
        with pytest.raises(ForestError, match=r"int is no Booster"):
            Forest.from_lightgbm(3)
        with pytest.raises(ForestError, match=r"fit the model first"):
            Forest.from_lightgbm(lgb.LGBMRegressor())
