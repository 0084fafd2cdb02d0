"""The values of a feature at which tests of a bundle's forest change, as values of a request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scorer.bundle.check import read_manifest, read_schema
from scorer.bundle.columns import columns_read, transform
from scorer.bundle.models import (
    Feature,
    ForestNode,
    OnnxNode,
    SwitchNode,
    TransformNode,
    TransformStep,
)
from scorer.bundle.splits import split_keys
from scorer.errors import BundleError
from scorer.stats.arrays import Rows32

Keys = npt.NDArray[np.int64]


class ForestThresholds:
    """The thresholds of every feature of a score bundle's request.

    Args:
        directory: Directory of the verified bundle.

    Raises:
        BundleError: The score is that of an ONNX model.
    """

    def __init__(self, directory: Path) -> None:
        self._features = read_schema(directory).features
        program = read_manifest(directory).program
        self._steps = [step for node in program if isinstance(node, TransformNode) for step in node.steps]
        if any(isinstance(node, OnnxNode) for node in program):
            raise BundleError(
                "bundle: the score of an ONNX model has no thresholds to search between; use one of forests"
            )
        files = [node.file for node in program if isinstance(node, ForestNode)]
        keys = [split_keys(directory / file, len(self._features)) for file in files]
        self._switches = [node for node in program if isinstance(node, SwitchNode)]
        self._keys = [np.concatenate(own) for own in zip(*keys, strict=True)]

    def boundaries(self, column: int) -> Rows32:
        """Return the values at which the tests of a number change, ascending.

        Between two neighbours no test of the forests and switches changes its result, except at 0 if the
        training library treats 0 as missing.

        Args:
            column: Position of the feature.

        Raises:
            BundleError: A transform computes another column from the feature.
        """
        feature = self._features[column]
        # A switch reads the row of the request, or the same row as the forests.
        of_request, of_forests = (
            [_ends(node, feature) for node in self._switches if (node.row == "row") is is_request]
            for is_request in (True, False)
        )
        keys = np.unique(np.concatenate([self._keys[column], *of_forests]))
        for step in self._steps:
            if step.output is not None and feature.name in columns_read(step):
                raise BundleError(
                    f'actionable: the bundle computes the column "{step.output}" from "{feature.name}", so '
                    "the values at which its tests change are not known; leave the feature out"
                )
        steps = [step for step in self._steps if step.output is None and feature.name in columns_read(step)]
        found = inverted(self._features, steps, column, keys) if steps else keys
        values = float_of(np.concatenate([found, *of_request]))
        return np.unique(values[np.isfinite(values)])


def _ends(node: SwitchNode, feature: Feature) -> Keys:
    """Return the keys of the ends of a switch's ranges of a feature, on its row."""
    if node.feature != feature.name or feature.type != "number":
        return np.zeros(0, np.int64)
    ends = [end for case in node.cases for end in (case.start, case.end) if end is not None]
    return key_of(np.array(ends, np.float32))


def key_of(values: Rows32) -> Keys:
    """Return integers in the order of float32 values; -0 has the key of +0."""
    bits = (np.asarray(values, np.float32) + np.float32(0)).view(np.int32).astype(np.int64)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def float_of(keys: Keys) -> Rows32:
    """Return the float32 values of keys; NaN beyond the infinities."""
    bits = keys ^ ((keys >> 31) & 0x7FFFFFFF)
    return bits.astype(np.int64).astype(np.int32).view(np.float32)


def before(values: Rows32) -> Rows32:
    """Return the largest float32 below each value."""
    return np.nextafter(values, np.float32(-np.inf))


def inverted(features: Sequence[Feature], steps: Sequence[TransformStep], column: int, keys: Keys) -> Keys:
    """Return the keys of the smallest values of a request whose transformed value has at least a key.

    The transformations do not decrease, so a bisection over all float32 values finds each exactly.

    Args:
        features: Features of a request.
        steps: Transformations of the column.
        column: Position of the column.
        keys: Keys of transformed values.
    """
    infinity = int(key_of(np.array([np.inf], np.float32))[0])
    low = np.full(len(keys), -infinity - 1)
    high = np.full(len(keys), infinity)
    for _ in range(33):
        middle = (low + high) // 2
        rows = np.full((len(keys), len(features)), np.nan, np.float32)
        rows[:, column] = float_of(middle)
        moved = transform(features, steps, rows)[:, column]
        # Values that a transformation does not accept, such as those below -1 for log1p, come first.
        is_left = np.isnan(moved) | (key_of(np.nan_to_num(moved, nan=-np.inf)) < keys)
        low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
    return high
