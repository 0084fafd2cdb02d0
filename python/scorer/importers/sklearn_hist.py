"""Conversion of the trees of scikit-learn's HistGradientBoosting estimators.

The trees use the columns and codes of an internal encoder, which are converted back to those of the user.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer.errors import UnsupportedModelError
from scorer.importers import raw

# From this number on, float32 cannot represent every integer.
_MAX_CATEGORY: Final = 1 << 24


def trees(model: Any) -> list[raw.RawTree]:
    """Return the raw trees in the order in which scikit-learn adds them.

    Args:
        model: A fitted HistGradientBoosting estimator.

    Raises:
        UnsupportedModelError: A categorical feature has categories that are not whole numbers from 0 to
            16777215.
    """
    columns = _Columns(model)
    return [
        _tree(predictor, output, columns)
        for iteration in model._predictors
        for output, predictor in enumerate(iteration)
    ]


class _Columns:
    """The mapping from the columns and codes of the trees to those of the user.

    If there are categorical features, scikit-learn's encoder moves them to the front and numbers their
    categories. A value that equals no category is missing.
    """

    def __init__(self, model: Any) -> None:
        is_categorical = model.is_categorical_
        if is_categorical is None:
            self.original = np.arange(model.n_features_in_)
            self.values: list[npt.NDArray[np.uint32]] = []
            self.known: list[frozenset[int]] = []
            return
        self.original = np.concatenate([np.flatnonzero(is_categorical), np.flatnonzero(~is_categorical)])
        encoder = model._preprocessor.named_transformers_["encoder"]
        self.values = [
            _categories(feature, values)
            for feature, values in zip(self.original, encoder.categories_, strict=False)
        ]
        bitsets, index = model._bin_mapper.make_known_categories_bitsets()
        self.known = [_members(bitsets[index[feature]]) for feature in range(len(self.values))]

    def decode(self, feature: int, codes: frozenset[int]) -> npt.NDArray[np.uint32]:
        return np.array([self.values[feature][code] for code in sorted(codes)], np.uint32)


def _categories(feature: int, values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    def refuse(what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"scikit-learn HistGradientBoosting, categorical feature {feature}: {what}; "
            "encode categories as whole numbers from 0 before training"
        )

    try:
        # The encoder represents a missing value by NaN with the last code, which is in no set.
        numbers = np.nan_to_num(np.asarray(values, np.float64), nan=0.0)
    except (TypeError, ValueError) as error:
        raise refuse("its categories are no numbers") from error
    if (numbers != np.floor(numbers)).any() or (numbers < 0).any() or (numbers >= _MAX_CATEGORY).any():
        raise refuse("its categories are not whole numbers from 0 to 16777215")
    return numbers.astype(np.uint32)


def _members(words: npt.NDArray[np.uint32]) -> frozenset[int]:
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    return frozenset(np.flatnonzero(bits).tolist())


def _tree(predictor: Any, output: int, columns: _Columns) -> raw.RawTree:
    source = predictor.nodes
    is_leaf = source["is_leaf"].astype(bool)
    to_left = source["missing_go_to_left"].astype(bool)
    is_categorical = source["is_categorical"].astype(bool) & ~is_leaf
    nodes = np.zeros(len(source), raw.NODE)
    nodes["kind"] = np.where(is_leaf, raw.LEAF, raw.LESS_EQUAL)
    nodes["feature"] = columns.original[np.where(is_leaf, 0, source["feature_idx"])]
    nodes["left"] = np.where(is_leaf, np.arange(len(source)), source["left"])
    nodes["right"] = np.where(is_leaf, 0, source["right"])
    nodes["threshold"] = np.where(is_leaf | is_categorical, 0.0, source["num_threshold"])
    nodes["nan"] = np.where(to_left, raw.NAN_LEFT, raw.NAN_RIGHT)
    nodes["rule"] = raw.CATEGORY_EXACT
    sets: list[npt.NDArray[np.uint32]] = []
    for node in np.flatnonzero(is_categorical):
        feature = int(source["feature_idx"][node])
        left = _members(predictor.raw_left_cat_bitsets[source["bitset_idx"][node]])
        # Unknown categories go to the same side as NaN, so the set lists the categories of the other side.
        if to_left[node]:
            kind, members = raw.MEMBERS_RIGHT, columns.known[feature] - left
        else:
            kind, members = raw.MEMBERS_LEFT, left
        nodes["kind"][node] = kind
        nodes["set"][node] = len(sets)
        sets.append(columns.decode(feature, frozenset(members)))
    return raw.RawTree(
        nodes=nodes,
        leaves=source["value"].astype(np.float64),
        output=output,
        sets=sets,
        covers=source["count"].astype(np.float64),
    )
