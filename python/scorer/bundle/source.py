"""Trained models as input of a bundle: the forest for the engine, and the training library's margins.

Both are computed by different code, so that golden cases can compare them bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.forest import Forest

Rows = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Margins = Callable[[Rows], npt.ArrayLike]


@dataclass(frozen=True)
class Source:
    """A model, converted for the engine and with access to the library that trained it."""

    library: str
    forest: Forest
    margins: Margins
    """Function from rows to the training library's raw outputs, ``[n]`` or ``[n, outputs]``."""
    names: tuple[str, ...]
    """Names of the columns that the model was trained on; empty if the model does not contain them."""
    splits: Callable[[], Iterator[tuple[int, float]]]
    """Yields (column, threshold) of the model's numerical splits; nothing if the library does not expose
    them."""

    def expected(self, rows: Rows) -> Doubles:
        """Return the library's margins as float64 ``[n, outputs]``. The conversion from float32 is exact.

        Raises:
            BundleError: The library returns another number of outputs than the forest has.
        """
        values = np.asarray(self.margins(rows))
        values = values.reshape(len(rows), -1).astype(np.float64)
        if values.shape[1] != self.forest.num_outputs:
            raise BundleError(
                f"{self.library}: {values.shape[1]} margins per row, the forest has "
                f"{self.forest.num_outputs}; pass `margins` that gives the library's raw outputs"
            )
        return values


def open_source(model: Any, margins: Margins | None = None) -> Source:
    """Convert a model of any supported library.

    Args:
        model: An XGBoost, LightGBM, scikit-learn or Treelite model, or the path of an XGBoost (.ubj, .json)
            or LightGBM (.txt) file or of a Treelite checkpoint (.tl). Any other model, converted by
            `scorer.Forest`, needs `margins`.
        margins: Function from rows to margins that golden cases are compared with, instead of the library's
            prediction.

    Raises:
        BundleError: The model is of another type, the file cannot be read, or `margins` is missing.
        ForestError: The model uses a feature that the engine does not support.
    """
    if isinstance(model, (str, PathLike)):
        model = _read(Path(fspath(model)))
    library = type(model).__module__.partition(".")[0]
    opener = {
        "xgboost": _xgboost,
        "lightgbm": _lightgbm,
        "sklearn": _sklearn,
        "treelite": _treelite,
        "scorer": _forest,
    }.get(library)
    if opener is None:
        raise BundleError(
            f"model of type {type(model).__name__} ({library}) is not known; pass an XGBoost, LightGBM, "
            "scikit-learn or Treelite model, or a scorer.Forest with `margins`"
        )
    source = opener(model)
    if margins is not None:
        return Source(source.library, source.forest, margins, source.names, source.splits)
    if library == "scorer":
        raise BundleError(
            "a scorer.Forest does not know its source library's results; pass `margins`, a function from "
            "rows to the library's raw outputs"
        )
    return source


def _read(path: Path) -> Any:
    if not path.is_file():
        raise BundleError(f'model "{path}" is missing; give the path of a .ubj, .json, .txt or .tl model')
    if path.suffix in (".ubj", ".json"):
        import xgboost

        booster = xgboost.Booster()
        try:
            booster.load_model(path)
        except xgboost.core.XGBoostError:
            raise BundleError(
                f'model "{path}" is not an XGBoost model; save it with Booster.save_model'
            ) from None
        return booster
    if path.suffix == ".txt":
        import lightgbm

        try:
            return lightgbm.Booster(model_file=path)
        except lightgbm.basic.LightGBMError:
            raise BundleError(
                f'model "{path}" is not a LightGBM model; save it with Booster.save_model'
            ) from None
    if path.suffix == ".tl":
        import treelite

        try:
            return treelite.Model.deserialize(path)
        except treelite.TreeliteError:
            raise BundleError(
                f'model "{path}" is not a Treelite checkpoint; save it with Model.serialize'
            ) from None
    if path.suffix == ".onnx":
        raise BundleError(
            f'model "{path}": only score bundles evaluate ONNX models; use a forest, or build a score bundle'
        )
    raise BundleError(
        f'model "{path}" has the ending "{path.suffix}"; .ubj and .json (XGBoost), .txt (LightGBM) and .tl '
        "(Treelite) are read, others only from Python"
    )


def _xgboost(model: Any) -> Source:
    import json

    import xgboost

    from scorer.forest import Forest

    booster = model
    if not isinstance(booster, xgboost.Booster):
        booster = model.get_booster()
        best = booster.attributes().get("best_iteration")
        if best is not None:
            booster = booster[: int(best) + 1]

    def margins(rows: Rows) -> npt.ArrayLike:
        matrix = xgboost.DMatrix(
            rows,
            feature_names=booster.feature_names,
            feature_types=booster.feature_types,
            enable_categorical=True,
        )
        result: npt.ArrayLike = booster.predict(matrix, output_margin=True)
        return result

    def splits() -> Iterator[tuple[int, float]]:
        booster_json = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
        trees = booster_json.get("model", booster_json.get("gbtree", {}).get("model", {})).get("trees", [])
        for tree in trees:
            numerical = zip(
                tree["split_indices"],
                tree["split_conditions"],
                tree["left_children"],
                tree["split_type"],
                strict=True,
            )
            yield from ((f, t) for f, t, left, kind in numerical if left != -1 and kind == 0)

    names = tuple(booster.feature_names or ())
    return Source("xgboost", Forest.from_xgboost(booster), margins, names, splits)


def _lightgbm(model: Any) -> Source:
    from scorer.forest import Forest

    booster = getattr(model, "booster_", model)

    def margins(rows: Rows) -> npt.ArrayLike:
        result: npt.ArrayLike = booster.predict(rows, raw_score=True)
        return result

    def splits() -> Iterator[tuple[int, float]]:
        stack = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
        while stack:
            node = stack.pop()
            if "split_feature" in node:
                stack += [node["left_child"], node["right_child"]]
                if node["decision_type"] == "<=":
                    yield node["split_feature"], node["threshold"]

    names = tuple(booster.feature_name())
    # These are the names that LightGBM gives to columns without names.
    if names == tuple(f"Column_{i}" for i in range(len(names))):
        names = ()
    return Source("lightgbm", Forest.from_lightgbm(booster), margins, names, splits)


def _treelite(model: Any) -> Source:
    import treelite

    from scorer.forest import Forest

    def margins(rows: Rows) -> npt.ArrayLike:
        result: npt.ArrayLike = treelite.gtil.predict(
            model, rows.astype(model.input_type), nthread=1, pred_margin=True
        )
        return result

    def splits() -> Iterator[tuple[int, float]]:
        for number in range(model.num_tree):
            tree = model.get_tree_accessor(number)
            # The types of a checkpoint's nodes are 0 for a leaf, 1 for a numerical and 2 for a category test.
            numerical = np.asarray(tree.get_field("node_type")) == 1
            columns = np.asarray(tree.get_field("split_index"))[numerical]
            yield from zip(
                columns.tolist(), np.asarray(tree.get_field("threshold"))[numerical].tolist(), strict=True
            )

    return Source("treelite", Forest.from_treelite(model), margins, (), splits)


def _sklearn(model: Any) -> Source:
    from scorer.forest import Forest

    def margins(rows: Rows) -> npt.ArrayLike:
        return _sklearn_margins(model, rows)

    def splits() -> Iterator[tuple[int, float]]:
        for estimator in np.ravel(np.asarray(getattr(model, "estimators_", []), dtype=object)):
            tree = getattr(estimator, "tree_", None)
            if tree is not None:
                inner = tree.children_left != -1
                yield from zip(tree.feature[inner].tolist(), tree.threshold[inner].tolist(), strict=True)

    names = tuple(str(name) for name in getattr(model, "feature_names_in_", ()))
    return Source("scikit-learn", Forest.from_sklearn(model), margins, names, splits)


def _sklearn_margins(model: Any, rows: Rows) -> npt.ArrayLike:
    """Return the raw output of a model, computed by scikit-learn."""
    import warnings

    kind = type(model).__name__
    with warnings.catch_warnings():
        # A model that was fitted on a data frame warns if it is given an array. `_start` in `build` has
        # compared the names of the columns.
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        result: npt.ArrayLike
        if kind == "IsolationForest":
            raise BundleError(
                "IsolationForest: its library has no function for path lengths; pass `margins` to the builder"
            )
        if hasattr(model, "_raw_predict"):
            raw = model._raw_predict(rows)
            result = raw[:, 0] if raw.shape[1] == 1 else raw
        elif hasattr(model, "predict_proba"):
            result = model.predict_proba(rows)
        else:
            result = model.predict(rows)
    return result


def _forest(model: Forest) -> Source:
    def none() -> Iterator[tuple[int, float]]:
        return iter(())

    def margins(rows: Rows) -> npt.ArrayLike:
        # Never called: `open_source` replaces this function by the caller's, or raises.
        raise BundleError("a scorer.Forest does not know its source library's results; pass `margins`")

    return Source("scorer", model, margins, (), none)
