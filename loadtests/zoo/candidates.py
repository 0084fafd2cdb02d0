"""Candidates for one live model: useless, broken, equivalent and better ones, and other algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loadtests.zoo.payments import Payments, Rows

Floats = npt.NDArray[np.float64]
Score = Callable[[Rows], Floats]

REVIEW: Final = 0.02
"""Share of the payments that the live model flags on its validation set."""
DECLINE: Final = 0.005
_BASE: Final = {"depth": 4, "trees": 80, "rate": 0.2}


@dataclass(frozen=True)
class Candidate:
    """One candidate, scored on the judged payments.

    Attributes:
        name: What distinguishes it from the live model.
        scores: `[n]` scores that it serves for the judged payments.
        reference: Scores of its validation set, whose distribution its bundle contains.
        thresholds: The starts of its bands review and decline.
        is_fault: Whether it must be stopped even if it ranks well.
        slower: Its delay: (slower - 1) times the SLA is added to each latency.
        is_sound: Whether it was trained and served without a fault.
    """

    name: str
    scores: Floats
    reference: Floats
    thresholds: tuple[float, float]
    is_fault: bool = False
    slower: float = 1.0
    is_sound: bool = False


@dataclass(frozen=True)
class Fit:
    """A way to train a candidate: rows, features, labels and algorithm.

    Attributes:
        name: Name in the table.
        learn: Trains on payments with a seed, and returns the scoring function.
        served: Changes the features in serving only, not in training.
        after: Changes the scores.
        keeps_thresholds: Whether its bands are the live model's instead of chosen for its own scores.
        is_fault: Whether it must be stopped even if it ranks well.
        slower: Its delay: (slower - 1) times the SLA is added to each latency.
        seed: Seed of the training.
    """

    name: str
    learn: Callable[[Payments, int], Score]
    served: Callable[[Rows], Rows] | None = None
    after: Callable[[Floats], Floats] | None = None
    keeps_thresholds: bool = False
    is_fault: bool = False
    slower: float = 1.0
    seed: int = 0


def thresholds(reference: Floats) -> tuple[float, float]:
    """Choose bands that flag the same shares as the live model. Equal scores are flagged together."""
    review, decline = np.quantile(reference, (1 - REVIEW, 1 - DECLINE), method="higher")
    return float(review), float(max(decline, np.nextafter(review, np.inf)))


def live(payments: Payments) -> tuple[Candidate, Score]:
    """Train the live model.

    Returns:
        The live model, scored on the judged payments, and its scoring function.
    """
    score = _xgboost()(payments, 0)
    reference = score(payments.rows[payments.validation])
    return Candidate("live", score(payments.rows[payments.judged]), reference, thresholds(reference)), score


def make(fit: Fit, payments: Payments, before: Candidate, live_score: Score) -> Candidate:
    """Train one candidate and score the judged payments.

    Args:
        fit: How to train it.
        payments: All payments.
        before: The live model.
        live_score: The live model's scoring function.
    """
    score = live_score if fit.learn is _same else fit.learn(payments, fit.seed)
    after = fit.after or (lambda values: values)
    reference = after(score(payments.rows[payments.validation]))
    rows = payments.rows[payments.judged]
    served = after(score(fit.served(rows) if fit.served else rows))
    bands = before.thresholds if fit.keeps_thresholds else thresholds(reference)
    return Candidate(fit.name, served, reference, bands, fit.is_fault, fit.slower, fit in SOUND)


# --- training ---


def _same(_payments: Payments, _seed: int) -> Score:
    raise NotImplementedError


def _xgboost(
    *,
    days: int | None = None,
    earlier: int = 0,
    share: float = 1.0,
    rows: Callable[[Payments], Rows] | None = None,
    change: Callable[[Rows], Rows] | None = None,
    label: Callable[[Payments, Any], Any] | None = None,
    keep: Callable[[Payments, Any], Any] | None = None,
    weight: Callable[[Any], Any] | None = None,
    **parameters: Any,
) -> Callable[[Payments, int], Score]:
    def learn(payments: Payments, seed: int) -> Score:
        import xgboost

        at = _chosen(payments, seed, days, earlier, share, keep)
        source = (rows(payments) if rows else payments.rows)[at]
        source = change(source) if change else source
        target = payments.fraud[at] if label is None else label(payments, at)
        own = _BASE | parameters
        booster = xgboost.train(
            {
                "objective": "binary:logistic",
                "tree_method": "hist",
                "max_depth": own["depth"],
                "learning_rate": own["rate"],
                "min_child_weight": own.get("least", 2),
                "subsample": own.get("subsample", 0.8),
                "colsample_bytree": own.get("columns", 0.8),
                "nthread": 1,
                "seed": seed,
            },
            xgboost.DMatrix(source, target, weight=weight(target) if weight else None),
            own["trees"],
        )
        return lambda wanted: booster.predict(xgboost.DMatrix(wanted)).astype(np.float64)

    return learn


def _chosen(
    payments: Payments, seed: int, days: int | None, earlier: int, share: float, keep: Any
) -> npt.NDArray[np.intp]:
    at = payments.training(days, earlier=earlier)
    if keep is not None:
        at = at[keep(payments, at)]
    if share < 1:
        random = np.random.default_rng(seed)
        fraud = payments.fraud[at]
        # Training needs at least two frauds.
        chosen = random.random(len(at)) < share
        chosen[random.choice(np.flatnonzero(fraud), 2, replace=False)] = True
        at = at[chosen]
    return at


def _sklearn(kind: str, **parameters: Any) -> Callable[[Payments, int], Score]:
    def learn(payments: Payments, seed: int) -> Score:
        from sklearn import ensemble, linear_model, pipeline, preprocessing

        at = payments.training()
        models: dict[str, Callable[[], Any]] = {
            "hist": lambda: ensemble.HistGradientBoostingClassifier(random_state=seed, **parameters),
            "forest": lambda: ensemble.RandomForestClassifier(random_state=seed, n_jobs=1, **parameters),
            "extra": lambda: ensemble.ExtraTreesClassifier(random_state=seed, n_jobs=1, **parameters),
            "linear": lambda: pipeline.make_pipeline(
                preprocessing.StandardScaler(), linear_model.LogisticRegression(max_iter=200, **parameters)
            ),
        }
        model = models[kind]().fit(payments.rows[at], payments.fraud[at])
        return lambda wanted: model.predict_proba(wanted)[:, 1]

    return learn


def _lightgbm(**parameters: Any) -> Callable[[Payments, int], Score]:
    def learn(payments: Payments, seed: int) -> Score:
        import lightgbm

        at = payments.training()
        model = lightgbm.train(
            {"objective": "binary", "verbose": -1, "num_threads": 1, "seed": seed, **parameters},
            lightgbm.Dataset(payments.rows[at], payments.fraud[at]),
            parameters.get("num_iterations", 80),
        )
        return lambda wanted: np.asarray(model.predict(wanted))

    return learn


def _together(*parts: Callable[[Payments, int], Score]) -> Callable[[Payments, int], Score]:
    def learn(payments: Payments, seed: int) -> Score:
        models = [part(payments, seed + place) for place, part in enumerate(parts)]
        return lambda wanted: np.asarray(np.mean([model(wanted) for model in models], axis=0))

    return learn


def _of(value: Callable[[Rows], Floats]) -> Callable[[Payments, int], Score]:
    return lambda _payments, _seed: value


# --- changes of features, labels and scores ---

_at = Payments.column


def _with(names: Sequence[str], value: float) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        out = rows.copy()
        out[:, [_at(name) for name in names]] = value
        return out

    return change


def _times(name: str, factor: float) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        out = rows.copy()
        out[:, _at(name)] *= factor
        return out

    return change


def _swapped(one: str, other: str) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        out = rows.copy()
        out[:, [_at(one), _at(other)]] = rows[:, [_at(other), _at(one)]]
        return out

    return change


def _turned(rows: Rows) -> Rows:
    """Shift the columns, so that their order differs from that in training."""
    return np.roll(rows, 1, axis=1)


def _of_others(names: Sequence[str]) -> Callable[[Rows], Rows]:
    """Replace features by those of the payment 500 rows earlier, as a cache with a wrong key would."""

    def change(rows: Rows) -> Rows:
        out = rows.copy()
        columns = [_at(name) for name in names]
        out[:, columns] = np.roll(rows[:, columns], 500, axis=0)
        return out

    return change


_BANDS: Final = np.array([0.0, 1e-9, 0.1, 0.3, 0.6], dtype=np.float32)


def _coded(order: Sequence[int]) -> Callable[[Rows], Rows]:
    """Encode the terminal's risks as categories by a dictionary."""

    def change(rows: Rows) -> Rows:
        out = rows.copy()
        for name in _RISKS:
            band = np.searchsorted(_BANDS, rows[:, _at(name)], side="right") - 1
            out[:, _at(name)] = np.asarray(order, dtype=np.float32)[np.maximum(band, 0)]
        return out

    return change


def _permuted(payments: Payments, at: Any) -> Any:
    return np.random.default_rng(1).permutation(payments.fraud[at])


def _immature(payments: Payments, at: Any) -> Any:
    """Return labels in which frauds of the last week are not known yet."""
    return payments.fraud[at] & (payments.day[at] < payments.day[at].max() - 7)


def _half_lost(payments: Payments, at: Any) -> Any:
    return payments.fraud[at] & (np.random.default_rng(2).random(len(at)) < 0.5)


def _scenario(kind: int) -> Callable[[Payments, Any], Any]:
    return lambda payments, at: payments.scenario[at] == kind


def _noise(share: float) -> Callable[[Payments, Any], Any]:
    def label(payments: Payments, at: Any) -> Any:
        return payments.fraud[at] ^ (np.random.default_rng(3).random(len(at)) < share)

    return label


def _not_a_number(scores: Floats) -> Floats:
    out = scores.copy()
    out[np.random.default_rng(4).random(len(out)) < 0.01] = np.nan
    return out


def _random(rows: Rows) -> Floats:
    return np.random.default_rng(5).random(len(rows)) * 0.2


_RISKS: Final = ("terminal_risk_1d", "terminal_risk_7d", "terminal_risk_30d")
_COUNTS: Final = ("terminal_count_1d", "terminal_count_7d", "terminal_count_30d")
_MEANS: Final = ("customer_mean_amount_1d", "customer_mean_amount_7d", "customer_mean_amount_30d")

# The reference of a candidate that returns NaN contains NaN as well, which `windows.shadow` leaves out.
BROKEN: Final[tuple[Fit, ...]] = (
    Fit("permuted labels", _xgboost(label=_permuted)),
    Fit("permuted labels, live's thresholds", _xgboost(label=_permuted), keeps_thresholds=True),
    Fit("constant score", _of(lambda rows: np.full(len(rows), 0.01))),
    Fit("random score", _of(_random)),
    Fit("score x 0.5", _same, after=lambda score: score * 0.5, keeps_thresholds=True, is_fault=True),
    Fit("score x 2", _same, after=lambda s: np.minimum(2 * s, 1.0), keeps_thresholds=True, is_fault=True),
    Fit("inverted", _same, after=lambda score: 1 - score),
    Fit("label leakage: risks without delay", _xgboost(rows=lambda p: p.fresh)),
    Fit(
        "label leakage: label as a feature",
        _xgboost(rows=lambda p: _leaked(p)),  # noqa: PLW0108 - defined below
    ),
    Fit("stale features: risks 30 days late", _xgboost(rows=lambda p: p.stale)),
    Fit("stale features: of other payments", _same, served=_of_others((*_RISKS, *_MEANS))),
    Fit("trained without amount", _xgboost(change=_with(("amount",), 0))),
    Fit("trained without terminal risks", _xgboost(change=_with(_RISKS, 0))),
    Fit("trained without means of the customer", _xgboost(change=_with(_MEANS, 0))),
    Fit("trained without counts of the terminal", _xgboost(change=_with(_COUNTS, 0))),
    Fit("amount served as 0", _same, served=_with(("amount",), 0)),
    *(Fit(f"{name} served as 0", _same, served=_with((name,), 0)) for name in _RISKS),
    Fit("terminal risks served as 0", _same, served=_with(_RISKS, 0)),
    Fit("terminal risks served as missing", _same, served=_with(_RISKS, np.nan)),
    Fit("means of the customer served as 0", _same, served=_with(_MEANS, 0)),
    Fit("customer_mean_amount_7d served as 0", _same, served=_with(("customer_mean_amount_7d",), 0)),
    Fit("unit changed in training, amount x 100", _xgboost(change=_times("amount", 100))),
    Fit("unit changed in serving, amount x 100", _same, served=_times("amount", 100)),
    Fit("unit changed in serving, risks x 100", _same, served=_times("terminal_risk_7d", 100)),
    Fit("two columns swapped", _same, served=_swapped("terminal_risk_7d", "terminal_count_7d")),
    Fit("columns in another order", _same, served=_turned),
    Fit(
        "wrong category encoding",
        _xgboost(change=_coded((0, 1, 2, 3, 4))),
        served=_coded((3, 4, 0, 1, 2)),
    ),
    Fit("trained on the wrong month", _xgboost(earlier=60)),
    Fit("trained on the first weeks of all", _xgboost(earlier=60, days=14, rows=lambda p: p.stale)),
    Fit("trained on 1 %", _xgboost(share=0.01)),
    Fit("trained on 0.1 %", _xgboost(share=0.001)),
    Fit("labels of the last week unknown", _xgboost(label=_immature)),
    Fit("half of the frauds unlabelled", _xgboost(label=_half_lost)),
    Fit("one label in 20 wrong", _xgboost(label=_noise(0.05))),
    Fit("knows large amounts alone", _xgboost(label=_scenario(1))),
    Fit("knows terminals alone", _xgboost(label=_scenario(2))),
    Fit("knows customers alone", _xgboost(label=_scenario(3))),
    Fit("overfitted", _xgboost(share=0.02, depth=14, trees=150, rate=0.5, least=0, subsample=1.0)),
    Fit("depth 1", _xgboost(depth=1, trees=5)),
    Fit("amount as the score", _of(lambda rows: rows[:, 0].astype(np.float64) / 1e3)),
    Fit("NaN in 1 %", _same, after=_not_a_number, is_fault=True, keeps_thresholds=True),
    Fit("late by 2x", _same, is_fault=True, slower=2.0),
)
"""Useless or broken candidates. How much worse they are is measured."""
SOUND: Final[tuple[Fit, ...]] = (
    *(Fit(f"twin, seed {seed}", _xgboost(), seed=seed) for seed in range(1, 9)),
    Fit("the same again", _same),
    Fit("rescaled, own thresholds", _same, after=lambda score: score**0.5),
    Fit("rescaled to margins", _same, after=lambda s: np.log(s / (1 - s))),
    *(Fit(f"XGBoost, depth {depth}", _xgboost(depth=depth)) for depth in (3, 5, 6)),
    Fit("XGBoost, 160 trees", _xgboost(trees=160)),
    Fit("XGBoost, slow learning", _xgboost(trees=200, rate=0.08)),
    Fit("XGBoost, 21 days", _xgboost(days=21)),
    Fit("XGBoost, half of the rows", _xgboost(share=0.5), seed=3),
    Fit("XGBoost, without weekend and night", _xgboost(change=_with(("weekend", "night"), 0))),
    Fit("XGBoost, frauds weigh 3", _xgboost(weight=lambda label: 1 + 2.0 * label)),
    Fit("LightGBM", _lightgbm(learning_rate=0.1, num_leaves=15)),
    Fit("LightGBM, 31 leaves", _lightgbm(learning_rate=0.05, num_leaves=31, min_child_samples=50)),
    Fit("scikit-learn, histogram boosting", _sklearn("hist", max_iter=80, max_depth=4)),
    Fit("scikit-learn, random forest", _sklearn("forest", n_estimators=40, min_samples_leaf=5)),
    Fit("scikit-learn, extra trees", _sklearn("extra", n_estimators=40, min_samples_leaf=5)),
    Fit("better: 40 days", _xgboost(days=40, trees=120)),
    Fit("better: mean of five", _together(*[_xgboost(trees=80) for _ in range(5)])),
    Fit("better: mean of two algorithms", _together(_xgboost(), _lightgbm(learning_rate=0.1, num_leaves=15))),
)
"""Candidates that were trained without a fault. They are as good as the live model, or better."""
FITS: Final = (*BROKEN, *SOUND)


def _leaked(payments: Payments) -> Rows:
    """Return the features with the label in place of one that has another meaning in serving."""
    out = payments.rows.copy()
    out[:, _at("terminal_risk_1d")] = payments.fraud
    return out
