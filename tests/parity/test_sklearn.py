"""scikit-learn models against scikit-learn's own float64 results.

Margins are equal in every bit (with n_jobs=1: threads would add trees in the order in which they finish).
Predictions that go through NumPy's exp or power may differ in the last place, as NumPy has its own.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import ensemble, tree
from sklearn.linear_model import LinearRegression

from scorer.errors import ForestError, UnsupportedModelError
from scorer.forest import Forest

# Two units in the last place of a float64.
LAST_PLACES = {"rtol": 5e-16, "atol": 0}


def thresholds(model) -> list[tuple[int, float]]:
    if hasattr(model, "_predictors"):
        nodes = [predictor.nodes for stage in model._predictors for predictor in stage]
        return [
            (int(n["feature_idx"]), float(n["num_threshold"]))
            for part in nodes
            for n in part
            if not n["is_leaf"]
        ]
    estimators = np.ravel(getattr(model, "estimators_", [model]))
    trees = [estimator.tree_ for estimator in estimators]
    return [
        (int(f), float(t))
        for part in trees
        for f, t in zip(part.feature, part.threshold, strict=True)
        if f >= 0
    ]


@pytest.fixture
def rows(table) -> np.ndarray:
    return table(1, rows=600)


@pytest.fixture
def y(rows) -> np.ndarray:
    return np.nansum(rows[:, :4], axis=1) + np.random.default_rng(2).normal(scale=0.3, size=len(rows))


def finite(rows: np.ndarray) -> np.ndarray:
    return rows[np.isfinite(rows).all(axis=1)]


def valid(rows: np.ndarray) -> np.ndarray:
    """Return rows without infinities, which scikit-learn refuses."""
    return rows[~np.isinf(rows).any(axis=1)]


REGRESSORS = [
    tree.DecisionTreeRegressor(random_state=1),
    tree.DecisionTreeRegressor(random_state=1, max_depth=5, criterion="absolute_error"),
    tree.ExtraTreeRegressor(random_state=1),
    ensemble.RandomForestRegressor(12, random_state=1, n_jobs=1),
    ensemble.RandomForestRegressor(12, random_state=1, n_jobs=1, max_depth=6, criterion="poisson"),
    ensemble.ExtraTreesRegressor(12, random_state=1, n_jobs=1),
]


@pytest.mark.parametrize("model", REGRESSORS, ids=str)
@pytest.mark.parametrize("outputs", [1, 3])
def test_forests_of_regressors_give_the_same_bits(model, outputs, rows, y, assert_bits, edge_rows) -> None:
    y = np.abs(y)
    model.fit(rows, y if outputs == 1 else np.stack([y, y**2, rows[:, 1] > 0], axis=1))
    forest = Forest.from_sklearn(model)
    assert Forest.from_bytes(forest.to_bytes()).to_bytes() == forest.to_bytes()
    for part in (rows, valid(edge_rows(rows, thresholds(model)))):
        assert_bits(forest.predict(part, margin=True), model.predict(part))
        assert_bits(forest.predict(part), model.predict(part))


CLASSIFIERS = [
    tree.DecisionTreeClassifier(random_state=1),
    tree.ExtraTreeClassifier(random_state=1),
    ensemble.RandomForestClassifier(12, random_state=1, n_jobs=1, max_depth=7),
    ensemble.RandomForestClassifier(
        12, random_state=1, n_jobs=1, class_weight="balanced", criterion="log_loss"
    ),
    ensemble.ExtraTreesClassifier(12, random_state=1, n_jobs=1),
]


@pytest.mark.parametrize("model", CLASSIFIERS, ids=str)
@pytest.mark.parametrize("classes", [2, 4, (2, 4)], ids=["two", "four", "two outputs"])
def test_forests_of_classifiers_give_the_same_bits(model, classes, rows, y, assert_bits, edge_rows) -> None:
    few, many = y > 0, np.digitize(y, [-1, 0, 1])
    model.set_params(class_weight=None)
    model.fit(rows, {2: few, 4: many}.get(classes, np.stack([few, many], axis=1)))
    forest = Forest.from_sklearn(model)
    for part in (rows, valid(edge_rows(rows, thresholds(model)))):
        expected = model.predict_proba(part)
        expected = np.concatenate(expected, axis=1) if isinstance(expected, list) else expected
        assert_bits(forest.predict(part), np.ascontiguousarray(expected))


BOOSTED = [
    {},
    {"init": "zero"},
    {"learning_rate": 0.3, "subsample": 0.7, "max_features": 3},
    {"max_leaf_nodes": 20, "max_depth": None},
]


@pytest.mark.parametrize("params", BOOSTED, ids=str)
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber", "quantile"])
def test_gradient_boosting_regressors_give_the_same_scores(
    params, loss, rows, y, assert_bits, edge_rows
) -> None:
    rows = np.nan_to_num(rows)
    model = ensemble.GradientBoostingRegressor(n_estimators=15, loss=loss, random_state=1, **params).fit(
        rows, y
    )
    forest = Forest.from_sklearn(model)
    for part in (rows, finite(edge_rows(rows, thresholds(model)))):
        assert_bits(forest.predict(part, margin=True), model.predict(part))
        assert_bits(forest.predict(part), model.predict(part))


@pytest.mark.parametrize("params", BOOSTED, ids=str)
@pytest.mark.parametrize(("loss", "classes"), [("log_loss", 2), ("log_loss", 4), ("exponential", 2)])
def test_gradient_boosting_classifiers_give_the_same_scores(
    params, loss, classes, rows, y, assert_bits, edge_rows
) -> None:
    rows = np.nan_to_num(rows)
    y = y > 0 if classes == 2 else np.digitize(y, [-1, 0, 1])
    model = ensemble.GradientBoostingClassifier(n_estimators=15, loss=loss, random_state=1, **params).fit(
        rows, y
    )
    forest = Forest.from_sklearn(model)
    for part in (rows, finite(edge_rows(rows, thresholds(model)))):
        assert_bits(forest.predict(part, margin=True), model.decision_function(part))
        expected = model.predict_proba(part)
        if classes == 2:
            assert_bits(forest.predict(part), np.ascontiguousarray(expected[:, 1]))
        else:
            np.testing.assert_allclose(forest.predict(part), expected, **LAST_PLACES)


def categorical(rows: np.ndarray, values: list[int]) -> np.ndarray:
    rng = np.random.default_rng(5)
    rows = rows.copy()
    rows[:, 2] = rng.choice(values, len(rows))
    rows[:, 6] = rng.integers(0, 40, len(rows))
    rows[rng.random(rows.shape) < 0.05] = np.nan
    return rows


@pytest.mark.parametrize(
    "values", [None, [0, 1, 2, 3], [7, 2, 300, 16_000_000]], ids=["numbers", "codes", "others"]
)
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "poisson", "gamma", "quantile"])
def test_histogram_regressors_give_the_same_scores(values, loss, rows, y, assert_bits, edge_rows) -> None:
    columns = None if values is None else [2, 6]
    rows = rows if values is None else categorical(rows, values)
    y = np.abs(y) + 0.1 + np.nan_to_num(rows[:, 6]) % 3
    model = ensemble.HistGradientBoostingRegressor(
        loss=loss, max_iter=12, categorical_features=columns, quantile=0.6, random_state=1
    ).fit(rows, y)
    forest = Forest.from_sklearn(model)
    for part in histogram_rows(rows, columns, thresholds(model), edge_rows):
        margins = forest.predict(part, margin=True)
        assert_bits(margins, model._raw_predict(part.astype(np.float64))[:, 0])
        np.testing.assert_allclose(forest.predict(part), model.predict(part), **LAST_PLACES)


def histogram_rows(rows, columns, bounds, edge_rows) -> list[np.ndarray]:
    parts = [rows]
    if columns is None:
        parts.append(edge_rows(rows, bounds))
    else:
        strange = [-1, -0.5, 0.5, 2.0001, 41, 250, 256, 300, 1e6, 3e9, np.nan, np.inf, -np.inf, -0.0]
        odd = np.repeat(rows[:30], len(strange), axis=0)
        for column in columns:
            odd[:, column] = np.tile(np.array(strange, np.float32), 30)
        # The encoder of scikit-learn refuses infinities.
        parts.append(valid(odd))
    return parts


@pytest.mark.parametrize(
    "values", [None, [0, 1, 2, 3], [7, 2, 300, 16_000_000]], ids=["numbers", "codes", "others"]
)
@pytest.mark.parametrize("classes", [2, 4])
def test_histogram_classifiers_give_the_same_scores(values, classes, rows, y, assert_bits, edge_rows) -> None:
    columns = None if values is None else [2, 6]
    rows = rows if values is None else categorical(rows, values)
    y = y > 0 if classes == 2 else np.digitize(y, [-1, 0, 1])
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=12, categorical_features=columns, random_state=1, max_leaf_nodes=40, min_samples_leaf=3
    ).fit(rows, y)
    forest = Forest.from_sklearn(model)
    for part in histogram_rows(rows, columns, thresholds(model), edge_rows):
        assert_bits(forest.predict(part, margin=True), model.decision_function(part))
        expected = model.predict_proba(part)
        if classes == 2:
            assert_bits(forest.predict(part), np.ascontiguousarray(expected[:, 1]))
        else:
            np.testing.assert_allclose(forest.predict(part), expected, **LAST_PLACES)


@pytest.mark.parametrize(
    "params", [{}, {"max_features": 0.5}, {"max_samples": 64, "contamination": 0.1}], ids=str
)
def test_isolation_forests_give_the_same_scores(params, rows, assert_bits, edge_rows) -> None:
    model = ensemble.IsolationForest(n_estimators=30, random_state=1, n_jobs=1, **params).fit(rows)
    forest = Forest.from_sklearn(model)
    for part in (rows, valid(edge_rows(rows, []))):
        depths = np.zeros(len(part))
        parts = zip(model.estimators_, model.estimators_features_, strict=True)
        for i, (estimator, features) in enumerate(parts):
            leaves = estimator.tree_.apply(np.ascontiguousarray(part[:, features]))
            depths += (
                model._decision_path_lengths[i][leaves] + model._average_path_length_per_tree[i][leaves] - 1.0
            )
        assert_bits(forest.predict(part, margin=True), depths)
        np.testing.assert_allclose(forest.predict(part), -model.score_samples(part), **LAST_PLACES)


class TestRefusals:
    def test_other_models_are_refused(self) -> None:
        with pytest.raises(UnsupportedModelError, match=r"LinearRegression.*RandomForestRegressor"):
            Forest.from_sklearn(LinearRegression())
        with pytest.raises(UnsupportedModelError, match=r"AdaBoostClassifier"):
            Forest.from_sklearn(ensemble.AdaBoostClassifier())

    @pytest.mark.parametrize(
        "name", ["RandomForestClassifier", "GradientBoostingRegressor", "IsolationForest"]
    )
    def test_models_that_are_not_fitted_are_refused(self, name) -> None:
        with pytest.raises(ForestError, match=f"{name}.*fit the model first"):
            Forest.from_sklearn(getattr(ensemble, name)())

    def test_initial_estimates_that_depend_on_the_row_are_refused(self, rows, y) -> None:
        rows = np.nan_to_num(rows)
        model = ensemble.GradientBoostingRegressor(n_estimators=2, init=LinearRegression()).fit(rows, y)
        with pytest.raises(UnsupportedModelError, match=r"init=LinearRegression.*depends on the row"):
            Forest.from_sklearn(model)

    def test_categories_that_are_not_integers_are_refused(self, rows, y) -> None:
        rows = rows.copy()
        rows[:, 2] = np.random.default_rng(1).choice([0.5, 1.5], len(rows))
        model = ensemble.HistGradientBoostingRegressor(max_iter=2, categorical_features=[2]).fit(rows, y)
        with pytest.raises(UnsupportedModelError, match=r"categorical feature 2.*whole numbers"):
            Forest.from_sklearn(model)
