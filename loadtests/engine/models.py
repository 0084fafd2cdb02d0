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
    """Size and kind of a model. ``leaves``, if set, limits LightGBM's trees instead of the depth."""

    trees: int
    depth: int
    library: str = "xgboost"
    categorical: bool = False
    actions: bool = False
    method: str = "hist"
    features: int = FEATURES
    leaves: int = 0
    forest: bool = False

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
        details = [
            f"tree_method={self.method}" if self.method != "hist" else "",
            f"{self.features} features" if self.features != FEATURES else "",
        ]
        return ", ".join(filter(None, [" ".join(filter(None, [*kinds, size])), *details]))


def sample(spec: Spec) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return rows with missing values, and labels that depend on single features and on pairs.

    The last features of an oracle are those of an action, drawn from all combinations of the factors. They
    are never missing.
    """
    random = np.random.default_rng(1)
    x = random.normal(size=(SAMPLES, spec.features)).astype(np.float32)
    odds = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + x[:, 3:10].sum(axis=1) / 3
    if spec.categorical:
        for i in range(CATEGORICAL):
            count = CATEGORIES[i % len(CATEGORIES)]
            x[:, i] = random.integers(count, size=SAMPLES)
            odds += random.normal(size=count, scale=0.5)[x[:, i].astype(int)]
    context = spec.features - len(FACTORS) if spec.actions else spec.features
    for i, count in enumerate(FACTORS if spec.actions else (), start=context):
        x[:, i] = random.integers(count, size=SAMPLES)
        odds += random.normal(size=count, scale=EFFECT)[x[:, i].astype(int)] * (1 + x[:, i - context])
    y = random.random(SAMPLES) < 1 / (1 + np.exp(-odds))
    missing = random.random(x.shape) < MISSING
    missing[:, context:] = False
    x[missing] = np.nan
    return x, y


def booster(spec: Spec, folder: Path = WORK / "models") -> Any:
    """Return the trained model, a Booster of its library. It is read from a file if it was trained before."""
    import xgboost as xgb

    settings = _settings(spec)
    named = {
        "spec": asdict(spec),
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

            lgb.train(settings, lgb.Dataset(x, y), spec.trees).save_model(whole)
        else:
            kinds = ["c" if spec.categorical and i < CATEGORICAL else "q" for i in range(spec.features)]
            exact = spec.method == "exact"
            matrix = xgb.DMatrix if exact else xgb.QuantileDMatrix
            data = matrix(x, y, feature_types=kinds, enable_categorical=spec.categorical)
            # A random forest is one round of many trees.
            xgb.train(settings, data, 1 if spec.forest else spec.trees).save_model(whole)
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
    if spec.forest:
        settings |= {"num_parallel_tree": spec.trees, "eta": 1, "colsample_bynode": 0.5}
    # Split on sets of categories, not on one category against the rest.
    return settings | ({"max_cat_to_onehot": 1} if spec.categorical else {})
