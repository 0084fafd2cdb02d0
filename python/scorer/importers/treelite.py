"""Conversion of Treelite models through Treelite's field accessors."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer.errors import ForestError, UnsupportedModelError
from scorer.importers import raw

_LEAF, _NUMERICAL, _CATEGORICAL = 0, 1, 2
_LT, _LE, _GT, _GE = 2, 3, 4, 5

_LINKS: Final = {
    "identity": "identity",
    "identity_multiclass": "identity",
    "signed_square": "signed_square",
    "hinge": "hinge",
    "sigmoid": "sigmoid",
    "multiclass_ova": "sigmoid",
    "exponential": "exp",
    "exponential_standard_ratio": "exp_base2",
    "logarithm_one_plus_exp": "log_one_plus_exp",
    "softmax": "softmax",
}


def read(model: Any) -> raw.RawModel:
    """Convert a model, the path of a checkpoint or the bytes of a checkpoint.

    Raises:
        ForestError: The checkpoint cannot be read.
        UnsupportedModelError: The model uses a postprocessor or an operator that is not supported.
    """
    return _read(_load(model))


def _load(model: Any) -> Any:
    if hasattr(model, "get_tree_accessor"):
        return model
    try:
        import treelite
    except ImportError as error:
        raise ForestError("Treelite model: treelite is not installed; install scorer[train]") from error
    try:
        if isinstance(model, (bytes, bytearray)):
            return treelite.Model.deserialize_bytes(bytes(model))
        if isinstance(model, (str, PathLike)):
            return treelite.Model.deserialize(fspath(model))
    except treelite.TreeliteError as error:
        raise ForestError(f"Treelite checkpoint: {error}; write it with Model.serialize") from error
    raise ForestError(f"Treelite model: {type(model).__name__} is no model, path or bytes; pass one of these")


class _Shape:
    """The layout of the outputs: ``[targets, classes]``, flattened. Targets of fewer classes are padded.

    Args:
        classes: Number of classes of each target, ``[targets]``.
    """

    def __init__(self, classes: npt.NDArray[np.int32]) -> None:
        self.classes = classes
        self.width = int(classes.max())
        self.outputs = len(classes) * self.width

    def columns(self, target: int, klass: int) -> npt.NDArray[np.int64]:
        """Return the outputs of a tree for one target (-1: all) and one class (-1: all)."""
        targets = range(len(self.classes)) if target < 0 else [target]
        return np.array(
            [
                t * self.width + c
                for t in targets
                for c in (range(int(self.classes[t])) if klass < 0 else [klass])
            ]
        )

    def leaf_columns(self, target: int, klass: int) -> npt.NDArray[np.int64]:
        """Return the positions of the values of `columns` in a leaf vector."""
        targets = range(len(self.classes)) if target < 0 else [target]
        stride = 1 if klass >= 0 else self.width
        return np.array(
            [
                i * stride + c
                for i, t in enumerate(targets)
                for c in (range(int(self.classes[t])) if klass < 0 else [0])
            ]
        )


def _read(model: Any) -> raw.RawModel:
    header = model.get_header_accessor()
    shape = _Shape(header.get_field("num_class"))
    target_id, class_id = header.get_field("target_id"), header.get_field("class_id")
    postprocessor = str(header.get_field("postprocessor"))
    if postprocessor not in _LINKS:
        raise UnsupportedModelError(
            f"Treelite postprocessor {postprocessor!r}: it is not known here; use one of {', '.join(_LINKS)}"
        )
    link, parameter = _LINKS[postprocessor], 0.0
    if link == "softmax" and len(shape.classes) > 1:
        raise UnsupportedModelError(
            "Treelite postprocessor 'softmax' with several targets: the classes of each target would be "
            "normalised together; convert one model per target"
        )
    if link == "sigmoid":
        parameter = float(header.get_field("sigmoid_alpha")[0])
    elif link == "exp_base2":
        parameter = float(header.get_field("ratio_c")[0])
    trees = []
    counts = np.zeros(shape.outputs)
    for i, (target, klass) in enumerate(zip(target_id, class_id, strict=True)):
        trees.append(_tree(model.get_tree_accessor(i), i, int(target), int(klass), shape))
        counts[shape.columns(int(target), int(klass))] += 1
    average = bool(header.get_field("average_tree_output")[0])
    return raw.RawModel(
        num_features=int(model.num_feature),
        num_outputs=shape.outputs,
        trees=trees,
        base=[float(score) for score in header.get_field("base_scores")],
        float32=model.output_type == "float32",
        base_last=True,
        divisor=np.maximum(counts, 1.0).tolist() if average else [],
        link=link,
        link_parameter=parameter,
    )


def _tree(tree: Any, index: int, target: int, klass: int, shape: _Shape) -> raw.RawTree:
    kind, compare = tree.get_field("node_type"), tree.get_field("cmp")
    left, right = tree.get_field("cleft"), tree.get_field("cright")
    is_leaf, is_categorical = kind == _LEAF, kind == _CATEGORICAL
    is_numerical = kind == _NUMERICAL
    known = np.isin(compare, [_LT, _LE, _GT, _GE])
    if (is_numerical & ~known).any():
        raise UnsupportedModelError(
            f"Treelite model, tree {index}: a test compares with another operator than <, <=, > or >=; "
            "rebuild the model with one of these"
        )
    nodes = np.zeros(len(kind), raw.NODE)
    # x > t is the negation of x <= t, and x >= t that of x < t, with the children exchanged.
    swapped = is_numerical & np.isin(compare, [_GT, _GE])
    strict = np.isin(compare, [_LT, _GE])
    to_right = tree.get_field("category_list_right_child").astype(bool)
    nodes["kind"] = np.select(
        [is_leaf, is_categorical & to_right, is_categorical, strict],
        [raw.LEAF, raw.MEMBERS_RIGHT, raw.MEMBERS_LEFT, raw.LESS],
        raw.LESS_EQUAL,
    )
    nodes["feature"] = np.where(is_leaf, 0, tree.get_field("split_index"))
    nodes["left"] = np.where(is_leaf, np.arange(len(kind)), np.where(swapped, right, left))
    nodes["right"] = np.where(is_leaf, 0, np.where(swapped, left, right))
    nodes["threshold"] = np.where(is_numerical, tree.get_field("threshold"), 0.0)
    to_left = tree.get_field("default_left").astype(bool) ^ swapped
    nodes["nan"] = np.where(to_left, raw.NAN_LEFT, raw.NAN_RIGHT)
    nodes["rule"] = raw.CATEGORY_NON_NEGATIVE
    sets: list[npt.NDArray[np.uint32]] = []
    members = tree.get_field("category_list")
    begin, end = tree.get_field("category_list_begin"), tree.get_field("category_list_end")
    for node in np.flatnonzero(is_categorical):
        nodes["set"][node] = len(sets)
        sets.append(members[begin[node] : end[node]].astype(np.uint32))
    covers = _covers(tree)
    vectors = tree.get_field("leaf_vector")
    begin, end = tree.get_field("leaf_vector_begin"), tree.get_field("leaf_vector_end")
    if len(vectors) == 0:
        if target < 0 or klass < 0:
            raise ForestError(f"Treelite model, tree {index}: a leaf has one value for several outputs")
        values = tree.get_field("leaf_value").astype(np.float64)
        return raw.RawTree(
            nodes=nodes, leaves=values, output=target * shape.width + klass, sets=sets, covers=covers
        )
    columns, sources = shape.columns(target, klass), shape.leaf_columns(target, klass)
    leaves = np.zeros((len(kind), shape.outputs))
    for node in np.flatnonzero(is_leaf):
        leaves[node, columns] = vectors[begin[node] : end[node]][sources]
    output = None
    if shape.outputs == 1:
        output = 0
    return raw.RawTree(nodes=nodes, leaves=leaves, output=output, sets=sets, covers=covers)


def _covers(tree: Any) -> npt.NDArray[np.float64] | None:
    """Return the sums of hessians, or else the numbers of training rows; None if a node has neither."""
    for field in ("sum_hess", "data_count"):
        values = np.asarray(tree.get_field(field), np.float64)
        if len(values) and np.asarray(tree.get_field(f"{field}_present")).all():
            return values
    return None
