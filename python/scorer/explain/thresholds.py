"""The values of a feature at which tests of a bundle's forest change, as values of a request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scorer.bundle.check import read_manifest, read_schema
from scorer.bundle.columns import transform
from scorer.bundle.models import Feature, Log1p, Standardise, TransformNode
from scorer.bundle.splits import split_keys
from scorer.stats.arrays import Rows32

Keys = npt.NDArray[np.int64]


class ForestThresholds:
    """The thresholds of every feature of a score bundle's request.

    Args:
        directory: Directory of the verified bundle.
    """

    def __init__(self, directory: Path) -> None:
        self._features = read_schema(directory).features
        program = read_manifest(directory).program
        self._steps = [step for node in program if isinstance(node, TransformNode) for step in node.steps]
        self._keys = split_keys(directory / "forest.bin", len(self._features))

    def boundaries(self, column: int) -> Rows32:
        """Return the values at which the tests of a number change, ascending.

        Between two neighbours no test of the forest changes its result, except at 0 if the training library
        treats 0 as missing.

        Args:
            column: Position of the feature.
        """
        keys = self._keys[column]
        steps = [step for step in self._steps if step.feature == self._features[column].name]
        found = inverted(self._features, steps, column, keys) if steps else keys
        values = float_of(found)
        return np.unique(values[np.isfinite(values)])


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


def inverted(
    features: Sequence[Feature], steps: Sequence[Log1p | Standardise], column: int, keys: Keys
) -> Keys:
    """Return the keys of the smallest values of a request whose transformed value has at least a key.

    The transformations increase, so a bisection over all float32 values finds each exactly.

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
