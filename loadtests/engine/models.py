"""The models and rows of the measurements. Models are trained once from fixed seeds and kept."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loadtests.options import WORK

FEATURES: Final = 40
MISSING: Final = 0.05
SAMPLES: Final = 20_000
# Number of categorical features of the categorical model, and the numbers of their categories.
CATEGORICAL: Final = 24
CATEGORIES: Final = (3, 8, 20, 60, 200, 12)

# Number of values of each factor of an oracle's actions; 1,024 actions in total.
FACTORS: Final = (4, 4, 8, 2, 4)
# Size of an action's effect relative to its context's.
EFFECT: Final = 0.3

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Spec:
    """Size and kind of a model.

    Attributes:
        trees: Number of rounds; a round of several classes has one tree for each.
        leaves: If it is not 0, trees grow leaf by leaf to this number instead of to the depth.
        categorical: Whether the first `categories` features are categorical.
        classes: Number of classes; 0: two classes with one output.
        missing: Share of missing values.
    """

    trees: int
    depth: int
    library: str = "xgboost"
    categorical: bool = False
    actions: bool = False
    method: str = "hist"
    features: int = FEATURES
    leaves: int = 0
    forest: bool = False
    categories: int = CATEGORICAL
    classes: int = 0
    missing: float = MISSING

    @property
    def words(self) -> str:
        """The name of the model in figures."""
        kinds = [
            "LightGBM" if self.library == "lightgbm" else "",
            "categorical" if self.categorical else "",
            "oracle" if self.actions else "",
            "random forest" if self.forest else "",
        ]
        size = f"{self.trees:,}×{self.leaves} leaves" if self.leaves else f"{self.trees:,}×{self.depth}"
        size = f"{self.classes} classes {size}" if self.classes else size
        details = [
            f"tree_method={self.method}" if self.method != "hist" else "",
            f"{self.features:,} features" if self.features != FEATURES else "",
            f"{self.categories} categorical columns" if self.categories != CATEGORICAL else "",
            f"{self.missing:.0%} missing" if self.missing != MISSING else "",
        ]
        return ", ".join(filter(None, [" ".join(filter(None, [*kinds, size])), *details]))


def sample(spec: Spec) -> tuple[Rows, npt.NDArray[np.bool_] | npt.NDArray[np.intp]]:
    """Return rows with missing values, and labels that depend on single features and on pairs.

    Labels are classes from 0 if the model has several, else booleans.

    The last features of an oracle are those of an action, drawn from all combinations of the factors. They
    are never missing.
    """
    random = np.random.default_rng(1)
    x = random.normal(size=(SAMPLES, spec.features)).astype(np.float32)
    odds = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + x[:, 3:10].sum(axis=1) / 3
    if spec.categorical:
        for i in range(spec.categories):
            count = CATEGORIES[i % len(CATEGORIES)]
            x[:, i] = random.integers(count, size=SAMPLES)
            odds += random.normal(size=count, scale=0.5)[x[:, i].astype(int)]
    context = spec.features - len(FACTORS) if spec.actions else spec.features
    for i, count in enumerate(FACTORS if spec.actions else (), start=context):
        x[:, i] = random.integers(count, size=SAMPLES)
        odds += random.normal(size=count, scale=EFFECT)[x[:, i].astype(int)] * (1 + x[:, i - context])
    y = _labels(spec, odds, random)
    missing = random.random(x.shape) < spec.missing
    missing[:, context:] = False
    x[missing] = np.nan
    return x, y


def _labels(
    spec: Spec, odds: Any, random: np.random.Generator
) -> npt.NDArray[np.bool_] | npt.NDArray[np.intp]:
    if not spec.classes:
        labels: npt.NDArray[np.bool_] = random.random(SAMPLES) < 1 / (1 + np.exp(-odds))
        return labels
    noisy = odds + random.logistic(size=SAMPLES)
    return np.searchsorted(np.quantile(noisy, np.arange(1, spec.classes) / spec.classes), noisy)


def _described(spec: Spec) -> dict[str, Any]:
    """Return the fields of a spec, without later ones at their default, so that kept models stay valid."""
    later = {"categories": CATEGORICAL, "classes": 0, "missing": MISSING}
    return {name: value for name, value in asdict(spec).items() if name not in later or value != later[name]}


def booster(spec: Spec, folder: Path = WORK / "models") -> Any:
    """Return the trained model, a Booster of its library. It is read from a file if it was trained before."""
    import xgboost as xgb

    settings = _settings(spec)
    named = {
        "spec": _described(spec),
        "settings": settings,
        "data": [SAMPLES, spec.features, MISSING] + ([EFFECT] if spec.actions else []),
        "xgb": xgb.__version__,
    }
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]
    suffix = "txt" if spec.library == "lightgbm" else "ubj"
    path = folder / f"{spec.library}-{spec.trees}x{spec.depth}-{digest}.{suffix}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        x, y = sample(spec)
        whole = path.with_name(f"new-{path.name}")
        if spec.library == "lightgbm":
            import lightgbm as lgb

            columns = list(range(spec.categories)) if spec.categorical else []
            data = lgb.Dataset(x, y, categorical_feature=columns)
            lgb.train(settings, data, spec.trees).save_model(whole)
        else:
            kinds = ["c" if spec.categorical and i < spec.categories else "q" for i in range(spec.features)]
            exact = spec.method == "exact"
            matrix = xgb.DMatrix if exact else xgb.QuantileDMatrix
            table = matrix(x, y, feature_types=kinds, enable_categorical=spec.categorical)
            # A random forest is one round of many trees.
            xgb.train(settings, table, 1 if spec.forest else spec.trees).save_model(whole)
        whole.rename(path)
    if spec.library == "lightgbm":
        import lightgbm as lgb

        return lgb.Booster(model_file=path)
    return xgb.Booster({"nthread": 1}, model_file=path)


def _settings(spec: Spec) -> dict[str, Any]:
    """Return settings with which late trees reach their full depth, as they would with more data."""
    if spec.library == "lightgbm":
        return {
            "objective": "binary",
            "max_depth": -1 if spec.leaves else spec.depth,
            "num_leaves": spec.leaves or 2**spec.depth,
            "learning_rate": 0.02,
            "min_data_in_leaf": 5,
            "verbosity": -1,
            "deterministic": True,
            "num_threads": 1,
        }
    settings: dict[str, Any] = {
        "objective": "binary:logistic",
        "max_depth": spec.depth,
        "eta": 0.02,
        "min_child_weight": 0.2,
        "tree_method": spec.method,
        # Training on part of the rows per tree gives the same quality in a third of the time.
        "subsample": 0.3,
        "nthread": 1,
        "seed": 1,
    }
    if spec.leaves:
        settings |= {"grow_policy": "lossguide", "max_leaves": spec.leaves}
    if spec.classes:
        settings |= {"objective": "multi:softprob", "num_class": spec.classes}
    if spec.forest:
        settings |= {"num_parallel_tree": spec.trees, "eta": 1, "colsample_bynode": 0.5}
    # Split on sets of categories, not on one category against the rest.
    return settings | ({"max_cat_to_onehot": 1} if spec.categorical else {})
