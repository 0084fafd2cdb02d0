"""The models that a candidate is chosen from, and the baselines that it must beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.fraud.settings import FraudSettings
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

if TYPE_CHECKING:
    from scorer.learn.fraud.table import FraudTable

_BASELINE_ROWS: Final = 100_000
"""Most rows of the logistic regression: all positive ones and a sample of the others, weighted."""
_BANDS: Final = 20


@dataclass(frozen=True)
class FittedScore:
    """A trained model.

    Attributes:
        algorithm: Its name.
        model: The library's booster, for a bundle; None for a baseline.
        predict: Function from encoded rows `[n, features]` to uncalibrated probabilities `[n]`.
        gain: Gain of each feature in training, by name; empty for a baseline.
    """

    algorithm: str
    model: Any
    predict: Callable[[Rows32], Floats]
    gain: Mapping[str, float]


def fit_trees(algorithm: str, table: FraudTable, rows: Ints, settings: FraudSettings) -> FittedScore:
    """Train boosted trees.

    Args:
        algorithm: "xgboost" or "lightgbm".
        table: The data.
        rows: Positions of the training rows.
        settings: Settings of the trees, class weights, constraints and seed.

    Raises:
        DataError: A constrained feature does not exist, or LightGBM is not installed.
    """
    names = [one.name for one in table.features]
    label = table.label[rows]
    weight = class_weights(label, table.weight[rows], settings)
    signs = _constraints(names, settings)
    fit = _fit_xgboost if algorithm == "xgboost" else _fit_lightgbm
    return fit(names, table.rows[rows], label, weight, signs, settings)


def class_weights(label: Bools, weight: Floats, settings: FraudSettings) -> Floats:
    """Return the training weights `[n]`: positive rows weigh `positive_weight` times theirs."""
    factor = settings.positive_weight
    if factor == "balanced":
        factor = float(weight[~label].sum() / weight[label].sum())
    return np.where(label, weight * float(factor), weight)


def fit_baseline(table: FraudTable, rows: Ints, settings: FraudSettings) -> FittedScore:
    """Train the baseline of the settings on some rows."""
    if settings.baseline == "amount":
        return _fit_amount_bands(table, rows, settings)
    return _fit_logistic(table, rows, settings)


def sample_rows(table: FraudTable, rows: Ints, most: int, seed: int) -> tuple[Ints, Floats]:
    """Return all positive rows and a random sample of the others, with the factor of their weights.

    Args:
        table: The data.
        rows: Positions to choose from.
        most: Number of rows to return, unless there are more positive ones.
        seed: Seed of the sample.

    Returns:
        Positions in ascending order, and the factor of the weight of each: above 1 for sampled rows.
    """
    positive, negative = rows[table.label[rows]], rows[~table.label[rows]]
    wanted = max(most - len(positive), 1)
    if wanted >= len(negative):
        return rows, np.ones(len(rows))
    random = np.random.default_rng(seed)
    taken = np.sort(random.choice(negative, size=wanted, replace=False))
    factor = len(negative) / wanted
    chosen = np.concatenate([positive, taken])
    order = np.argsort(chosen, kind="stable")
    return chosen[order], np.concatenate([np.ones(len(positive)), np.full(wanted, factor)])[order]


def _constraints(names: list[str], settings: FraudSettings) -> list[int]:
    signs = dict.fromkeys(settings.increasing, 1) | dict.fromkeys(settings.decreasing, -1)
    if unknown := sorted(set(signs) - set(names)):
        raise DataError(
            f'fraud.increasing and decreasing: "{unknown[0]}" is no feature; there are {", ".join(names)}'
        )
    return [signs.get(name, 0) for name in names]


def xgboost_parameters(settings: FraudSettings, signs: list[int]) -> dict[str, Any]:
    """Return the parameters of XGBoost for the settings."""
    parameters: dict[str, Any] = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": settings.depth,
        "learning_rate": settings.learning_rate,
        "min_child_weight": settings.min_child_weight,
        "subsample": settings.subsample,
        "colsample_bytree": settings.colsample,
        "reg_lambda": settings.l2,
        "nthread": settings.threads,
        "seed": settings.seed,
    }
    if any(signs):
        parameters["monotone_constraints"] = tuple(signs)
    return parameters


def _fit_xgboost(
    names: list[str], rows: Rows32, label: Bools, weight: Floats, signs: list[int], settings: FraudSettings
) -> FittedScore:
    import xgboost

    matrix = xgboost.QuantileDMatrix(rows, label, weight=weight, nthread=settings.threads)
    booster: Any = xgboost.train(xgboost_parameters(settings, signs), matrix, settings.trees)
    gain: dict[str, float] = booster.get_score(importance_type="total_gain")

    def predict(given: Rows32) -> Floats:
        return np.asarray(booster.inplace_predict(given), np.float64)

    return FittedScore(
        "xgboost", booster, predict, {name: float(gain.get(f"f{at}", 0.0)) for at, name in enumerate(names)}
    )


def _fit_lightgbm(
    names: list[str], rows: Rows32, label: Bools, weight: Floats, signs: list[int], settings: FraudSettings
) -> FittedScore:
    try:
        import lightgbm
    except ImportError:
        raise DataError(
            'fraud.algorithms: "lightgbm" is not installed; install it, or remove it from the list'
        ) from None
    parameters = {
        "objective": "binary",
        "max_depth": settings.depth,
        "num_leaves": 2**settings.depth,
        "learning_rate": settings.learning_rate,
        "min_sum_hessian_in_leaf": settings.min_child_weight,
        "bagging_fraction": settings.subsample,
        "bagging_freq": 1,
        "feature_fraction": settings.colsample,
        "lambda_l2": settings.l2,
        "num_threads": settings.threads,
        "seed": settings.seed,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    if any(signs):
        parameters["monotone_constraints"] = signs
    data = lightgbm.Dataset(rows, label.astype(np.float64), weight=weight)
    booster = lightgbm.train(parameters, data, settings.trees)
    gain = booster.feature_importance("gain")

    def predict(given: Rows32) -> Floats:
        return np.asarray(booster.predict(given, num_threads=settings.threads), np.float64)

    return FittedScore("lightgbm", booster, predict, dict(zip(names, map(float, gain), strict=True)))


def _fit_logistic(table: FraudTable, rows: Ints, settings: FraudSettings) -> FittedScore:
    """Fit logistic regression on standardised features; missing values are the mean."""
    from sklearn.linear_model import LogisticRegression

    chosen, factor = sample_rows(table, rows, _BASELINE_ROWS, settings.seed)
    given = table.rows[chosen].astype(np.float64)
    known = ~np.isnan(given)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, given, 0.0).sum(axis=0) / count
    spread = np.sqrt((np.where(known, given - mean, 0.0) ** 2).sum(axis=0) / count)
    spread[spread == 0] = 1.0

    def standard(values: Rows32 | Floats) -> Floats:
        # Far values would dominate the regression.
        scaled: Floats = np.nan_to_num((np.asarray(values, np.float64) - mean) / spread)
        return np.clip(scaled, -8.0, 8.0)

    model = LogisticRegression(C=1.0, max_iter=300, tol=1e-4)
    model.fit(standard(given), table.label[chosen], sample_weight=table.weight[chosen] * factor)

    def predict(values: Rows32) -> Floats:
        return np.asarray(model.predict_proba(standard(values))[:, 1])

    return FittedScore("logistic", None, predict, {})


def _fit_amount_bands(table: FraudTable, rows: Ints, settings: FraudSettings) -> FittedScore:
    """Return the share of positive labels per band of the amount, as the score of a row of this amount."""
    names = [one.name for one in table.features]
    if settings.columns.amount not in names:
        raise DataError('fraud.baseline: "amount" needs the amount as a feature of the model; use "logistic"')
    column = names.index(settings.columns.amount)
    amount, label, weight = table.rows[rows, column], table.label[rows], table.weight[rows]
    edges = np.unique(np.quantile(amount, np.linspace(0, 1, _BANDS + 1)[1:-1]))
    band = np.searchsorted(edges, amount, side="right")
    positive = np.bincount(band, weight * label, minlength=len(edges) + 1)
    # One row with the share of all rows is added to each band.
    rate = float((weight * label).sum() / weight.sum())
    share = (positive + rate) / (np.bincount(band, weight, minlength=len(edges) + 1) + 1)

    def predict(values: Rows32) -> Floats:
        found: Floats = share[np.searchsorted(edges, values[:, column], side="right")]
        return found

    return FittedScore("amount bands", None, predict, {})
