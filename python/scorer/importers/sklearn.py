"""Conversion of scikit-learn estimators from the arrays of their fitted trees.

Every kind of estimator adds its trees in its own way, which is reproduced exactly. Treelite copies the same
arrays, but it normalises probabilities again, adds the base last and recomputes path lengths, and each of
these changes the last bits of results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer.errors import ForestError, UnsupportedModelError
from scorer.importers import raw, sklearn_hist

_LINKS: Final = {
    "IdentityLink": ("identity", 0.0),
    "LogLink": ("exp", 0.0),
    "LogitLink": ("sigmoid", 1.0),
    "HalfLogitLink": ("sigmoid", 2.0),
    "MultinomialLogit": ("softmax", 0.0),
}
# Strategies of dummy estimators whose prediction is one constant per output.
_CONSTANT_INITS: Final = {"prior", "most_frequent", "constant", "uniform", "mean", "median", "quantile"}

_Floats = npt.NDArray[np.float64]


def read(model: Any) -> raw.RawModel:
    """Convert a fitted estimator.

    Raises:
        ForestError: The estimator is not fitted.
        UnsupportedModelError: The class of the estimator, its link or its first estimate is not supported.
    """
    try:
        return _reader(model)(model)
    except AttributeError as error:
        raise ForestError(f"scikit-learn {type(model).__name__}: {error}; fit the model first") from error


def _reader(model: Any) -> Callable[[Any], raw.RawModel]:
    readers = {
        "DecisionTreeClassifier": _classifiers,
        "DecisionTreeRegressor": _regressors,
        "ExtraTreeClassifier": _classifiers,
        "ExtraTreeRegressor": _regressors,
        "ExtraTreesClassifier": _classifiers,
        "ExtraTreesRegressor": _regressors,
        "GradientBoostingClassifier": _boosted,
        "GradientBoostingRegressor": _boosted,
        "HistGradientBoostingClassifier": _histogram,
        "HistGradientBoostingRegressor": _histogram,
        "IsolationForest": _isolation,
        "RandomForestClassifier": _classifiers,
        "RandomForestRegressor": _regressors,
    }
    for base in type(model).__mro__:
        if base.__module__.partition(".")[0] == "sklearn" and base.__name__ in readers:
            return readers[base.__name__]
    raise UnsupportedModelError(
        f"scikit-learn model {type(model).__name__}: only {', '.join(sorted(readers))} are converted; "
        "pass the fitted estimator itself, without a pipeline around it"
    )


def _estimators(model: Any) -> tuple[Sequence[Any], list[float]]:
    """Return the trees, and the number that their sum is divided by, if any."""
    if hasattr(model, "tree_"):
        return [model], []
    return model.estimators_, [float(len(model.estimators_))]


def _regressors(model: Any) -> raw.RawModel:
    estimators, divisor = _estimators(model)
    outputs = int(model.n_outputs_)
    trees = [_tree(e.tree_, e.tree_.value[:, :, 0], outputs) for e in estimators]
    return raw.RawModel(
        num_features=int(model.n_features_in_),
        num_outputs=outputs,
        trees=trees,
        base=[0.0] * outputs,
        divisor=divisor * outputs,
    )


def _classifiers(model: Any) -> raw.RawModel:
    """Convert a classifier. Its outputs are the probabilities of the classes, concatenated over targets."""
    estimators, divisor = _estimators(model)
    classes = [int(count) for count in np.atleast_1d(model.n_classes_)]
    outputs = sum(classes)

    def leaves(values: _Floats) -> _Floats:
        parts = [values[:, output, :count] for output, count in enumerate(classes)]
        return np.concatenate(parts, axis=1)

    return raw.RawModel(
        num_features=int(model.n_features_in_),
        num_outputs=outputs,
        trees=[_tree(e.tree_, leaves(e.tree_.value), outputs) for e in estimators],
        base=[0.0] * outputs,
        divisor=divisor * outputs,
    )


def _boosted(model: Any) -> raw.RawModel:
    features, outputs = int(model.n_features_in_), int(model.n_trees_per_iteration_)
    trees = [
        # As in `predict_stages`, the product is rounded before it is added, and NaN fails the test `<=`.
        _tree(e.tree_, model.learning_rate * e.tree_.value[:, :, 0], 1, output=output, has_missing=False)
        for stage in model.estimators_
        for output, e in enumerate(stage)
    ]
    link, parameter = _link(model) if hasattr(model, "classes_") else ("identity", 0.0)
    return raw.RawModel(
        num_features=features,
        num_outputs=outputs,
        trees=trees,
        base=_initial(model, features),
        link=link,
        link_parameter=parameter,
    )


def _initial(model: Any, features: int) -> list[float]:
    init = model.init_
    if not isinstance(init, str) and getattr(init, "strategy", None) not in _CONSTANT_INITS:
        raise UnsupportedModelError(
            f"scikit-learn {type(model).__name__} with init={init!r}: its first estimate depends on the row; "
            "train with init=None or init='zero'"
        )
    constants = model._raw_predict_init(np.zeros((1, features), np.float32))
    return [float(value) for value in constants[0]]


def _histogram(model: Any) -> raw.RawModel:
    outputs = int(model.n_trees_per_iteration_)
    link, parameter = _link(model)
    return raw.RawModel(
        num_features=int(model.n_features_in_),
        num_outputs=outputs,
        trees=sklearn_hist.trees(model),
        base=[float(value) for value in np.ravel(model._baseline_prediction)],
        link=link,
        link_parameter=parameter,
    )


def _isolation(model: Any) -> raw.RawModel:
    trees = []
    parts = zip(
        model.estimators_,
        model.estimators_features_,
        model._decision_path_lengths,
        model._average_path_length_per_tree,
        strict=True,
    )
    for estimator, features, path, average in parts:
        # `_parallel_compute_tree_depths` adds the terms in this order.
        depths = (path + average - 1.0)[:, None]
        trees.append(_tree(estimator.tree_, depths, 1, features=np.asarray(features)))
    return raw.RawModel(
        num_features=int(model.n_features_in_),
        num_outputs=1,
        trees=trees,
        base=[0.0],
        link="exp_base2",
        link_parameter=len(trees) * _average_path_length(int(model._max_samples)),
    )


def _average_path_length(samples: int) -> float:
    from sklearn.ensemble._iforest import _average_path_length

    return float(_average_path_length([samples])[0])


def _link(model: Any) -> tuple[str, float]:
    name = type(model._loss.link).__name__
    if name not in _LINKS:
        raise UnsupportedModelError(
            f"scikit-learn {type(model).__name__} with link {name}: it is not known here; use another loss"
        )
    return _LINKS[name]


def _tree(
    tree: Any,
    leaves: _Floats,
    outputs: int,
    *,
    output: int = 0,
    features: npt.NDArray[np.int64] | None = None,
    has_missing: bool = True,
) -> raw.RawTree:
    """Convert a tree of ``sklearn.tree``. ``leaves`` has one row per node."""
    nodes = np.zeros(tree.node_count, raw.NODE)
    is_leaf = tree.children_left < 0
    feature = np.where(is_leaf, 0, tree.feature)
    nodes["kind"] = np.where(is_leaf, raw.LEAF, raw.LESS_EQUAL)
    nodes["feature"] = feature if features is None else features[feature]
    nodes["left"] = np.where(is_leaf, np.arange(tree.node_count), tree.children_left)
    nodes["right"] = np.where(is_leaf, 0, tree.children_right)
    nodes["threshold"] = np.where(is_leaf, 0.0, tree.threshold)
    to_left = tree.missing_go_to_left.astype(bool) if has_missing else False
    nodes["nan"] = np.where(to_left, raw.NAN_LEFT, raw.NAN_RIGHT)
    values = np.ascontiguousarray(leaves, np.float64)
    return raw.RawTree(
        nodes=nodes,
        leaves=values,
        output=None if outputs > 1 else output,
        covers=np.asarray(tree.weighted_n_node_samples, np.float64),
    )
