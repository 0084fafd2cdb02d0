"""Conversion of LightGBM models from their text format.

The text format is the only one that states which values are missing. Treelite reads the same text, but it
treats zero as a number where the model treats it as missing, and it cannot represent how LightGBM truncates
categories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from scorer.errors import ForestError, UnsupportedModelError
from scorer.importers import raw

_T = TypeVar("_T", bound=np.generic)

_CATEGORICAL: Final = 1
_DEFAULT_LEFT: Final = 2
# Missing types, which are bits 2 and 3 of a decision type.
_NONE, _ZERO, _NAN = 0, 1, 2

_IDENTITY: Final = {
    "regression",
    "regression_l1",
    "huber",
    "fair",
    "quantile",
    "mape",
    "lambdarank",
    "rank_xendcg",
    "custom",
    "none",
}
_EXP: Final = {"poisson", "gamma", "tweedie"}


def read(model: Any) -> raw.RawModel:
    """Convert a booster, an estimator of the scikit-learn API, a file or model text.

    If a booster has a best iteration, only the rounds up to it are converted, as in ``Booster.predict``.

    Raises:
        ForestError: The text is not a LightGBM model, or the file cannot be read.
        UnsupportedModelError: The model uses linear trees or an objective whose link is not known.
    """
    return _parse(_text(model))


def _text(model: Any) -> str:
    if isinstance(model, (bytes, bytearray)):
        return bytes(model).decode("utf-8", "replace")
    if isinstance(model, str) and "\n" in model:
        return model
    if isinstance(model, (str, PathLike)):
        try:
            return Path(fspath(model)).read_text("utf-8", "replace")
        except OSError as error:
            name = fspath(model)
            raise ForestError(f"LightGBM model {name!r}: cannot be read: {error.strerror}") from error
    if not hasattr(model, "model_to_string") and not hasattr(type(model), "booster_"):
        raise ForestError(f"LightGBM model: {type(model).__name__} is no Booster, LGBMModel, path or text")
    try:
        booster = model if hasattr(model, "model_to_string") else model.booster_
        return str(booster.model_to_string())
    except Exception as error:
        raise ForestError(f"LightGBM model: {error}; fit the model first") from error


def _parse(text: str) -> raw.RawModel:
    sections = _sections(text)
    head = next(sections)
    if "tree" not in head or "num_tree_per_iteration" not in head:
        raise ForestError("LightGBM model: the text does not start with `tree`; pass model text")
    outputs = int(head["num_tree_per_iteration"])
    features = int(head["max_feature_idx"]) + 1
    trees: list[raw.RawTree] = []
    for fields in sections:
        try:
            trees.append(_tree(fields, len(trees) % outputs))
        except (KeyError, ValueError, IndexError) as error:
            raise ForestError(f"LightGBM model: tree {len(trees)} is malformed: {error!r}") from error
    link, parameter = _link(head.get("objective", "none"), outputs)
    rounds = len(trees) // outputs
    return raw.RawModel(
        num_features=features,
        num_outputs=outputs,
        trees=trees,
        # LightGBM adds the average to the leaves of the first tree of each output.
        base=[0.0] * outputs,
        divisor=[float(rounds)] * outputs if "average_output" in head and rounds else [],
        link=link,
        link_parameter=parameter,
    )


def _sections(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of the header, and then those of each tree."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if line == "end of trees":
            break
        key, _, value = line.strip().partition("=")
        if key == "Tree":
            yield fields
            fields = {}
        if key:
            fields[key] = value
    yield fields


def _link(objective: str, outputs: int) -> tuple[str, float]:
    name, *options = objective.split() or ["none"]
    parameters = dict(option.split(":", 1) for option in options if ":" in option)
    if name in _IDENTITY:
        return ("signed_square", 0.0) if "sqrt" in options else ("identity", 0.0)
    if name in _EXP:
        return "exp", 0.0
    if name in {"binary", "multiclassova"}:
        return "sigmoid", float(parameters.get("sigmoid", 1.0))
    if name in {"cross_entropy", "xentropy"}:
        return "sigmoid", 1.0
    if name in {"cross_entropy_lambda", "xentlambda"}:
        return "log_one_plus_exp", 0.0
    if name == "multiclass":
        return "softmax", 0.0
    raise UnsupportedModelError(
        f"LightGBM objective {name!r}: its link is not known; train with one of LightGBM's own objectives"
    )


def _tree(fields: Mapping[str, str], output: int) -> raw.RawTree:
    if fields.get("is_linear", "0") != "0":
        raise UnsupportedModelError(
            "LightGBM linear_tree: leaves hold linear models, only constants are evaluated; "
            "train with linear_tree=False"
        )
    leaves = int(fields["num_leaves"])
    splits = leaves - 1
    nodes = np.zeros(splits + leaves, raw.NODE)
    # Splits precede leaves, so that node 0 is the root.
    nodes["left"][splits:] = np.arange(leaves)
    values = _floats(fields["leaf_value"], leaves)
    covers = _covers(fields, splits)
    if splits == 0:
        return raw.RawTree(nodes=nodes, leaves=values, output=output, covers=covers)
    decision = _integers(fields["decision_type"], splits)
    categorical = (decision & _CATEGORICAL) != 0
    missing = (decision >> 2) & 3
    if ((missing > _NAN) | (decision > 0xF)).any():
        raise ValueError("a decision type is not known")
    split = nodes[:splits]
    split["feature"] = _integers(fields["split_feature"], splits)
    split["left"] = _children(fields["left_child"], splits)
    split["right"] = _children(fields["right_child"], splits)
    default = np.where(decision & _DEFAULT_LEFT, raw.NAN_LEFT, raw.NAN_RIGHT)
    threshold = _floats(fields["threshold"], splits)
    split["threshold"] = np.where(categorical, 0.0, threshold)
    split["kind"] = np.where(categorical, raw.MEMBERS_LEFT, raw.LESS_EQUAL)
    split["rule"] = raw.CATEGORY_TRUNCATED
    # In a categorical split NaN goes right. In a numerical split it is missing unless the type is `_NONE`.
    split["nan"] = np.where(categorical, raw.NAN_RIGHT, np.where(missing == _NONE, raw.NAN_ZERO, default))
    # LightGBM treats |x| <= 1e-35 as 0 when it reads a row.
    split["zero"] = np.where(~categorical & (missing == _ZERO), raw.ZERO_MISSING, raw.ZERO_FLUSH)
    sets: list[npt.NDArray[np.uint32]] = []
    if categorical.any():
        count = int(fields["num_cat"])
        sets = _sets(_integers(fields["cat_boundaries"], count + 1), _integers(fields["cat_threshold"]))
        split["set"] = np.where(categorical, threshold, 0).astype(np.uint32)
    return raw.RawTree(nodes=nodes, leaves=values, output=output, sets=sets, covers=covers)


def _covers(fields: Mapping[str, str], splits: int) -> npt.NDArray[np.float64] | None:
    """Return the numbers of training rows of splits and leaves; None if the text does not state them."""
    if splits == 0:
        # Every row reaches the only leaf, and its number has no influence.
        return np.ones(1)
    if "internal_count" not in fields or "leaf_count" not in fields:
        return None
    inner, leaves = _floats(fields["internal_count"], splits), _floats(fields["leaf_count"], splits + 1)
    return np.concatenate([inner, leaves])


def _children(text: str, splits: int) -> npt.NDArray[np.int64]:
    """Return the nodes of children. The text has the bitwise complement of the leaf's number for a leaf."""
    children = _integers(text, splits)
    return np.where(children < 0, splits + ~children, children)


def _sets(bounds: npt.NDArray[np.int64], words: npt.NDArray[np.int64]) -> list[npt.NDArray[np.uint32]]:
    if bounds[0] != 0 or (np.diff(bounds) < 0).any() or bounds[-1] != len(words):
        raise ValueError("category bitsets do not lie one behind the other")
    bits = (words[:, None] >> np.arange(32)) & 1
    return [np.flatnonzero(bits[start:end]).astype(np.uint32) for start, end in pairwise(bounds)]


def _integers(text: str, count: int | None = None) -> npt.NDArray[np.int64]:
    return _counted(np.array(text.split(), np.int64), count)


def _floats(text: str, count: int) -> npt.NDArray[np.float64]:
    # The text has 17 significant digits, which restore each float64 exactly.
    return _counted(np.array(text.split(), np.float64), count)


def _counted(values: npt.NDArray[_T], count: int | None) -> npt.NDArray[_T]:
    if count is not None and len(values) != count:
        raise ValueError(f"{len(values)} values are given where {count} are expected")
    return values
