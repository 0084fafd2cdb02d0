"""Importance of features: mean absolute exact contributions, and what the files of the bundle state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from scorer.bundle.check import read_manifest
from scorer.bundle.models import ForestNode
from scorer.bundle.splits import forest_shape
from scorer.explain.document import FeatureImportance
from scorer.explain.quantity import ExplainedQuantity
from scorer.stats.arrays import Floats, Rows32

FOREST: Final = "forest.bin"
COVERS: Final = "covers.bin"


def contributions(
    quantity: ExplainedQuantity, rows: Rows32, progress: Callable[[int], None] | None = None
) -> tuple[float, Floats]:
    """Compute exact contributions of many rows.

    Args:
        quantity: The explained quantity of a bundle with covers.
        rows: Rows ``[n, features]``, at least one.
        progress: Called with the number of rows done.

    Returns:
        The expectation of the margin over the training rows, and contributions ``[n, columns]``.
    """
    out = np.empty((len(rows), len(quantity.bundle.columns)))
    expectation = 0.0
    for at, row in enumerate(rows):
        expectation, out[at] = quantity.contributions(row)
        if progress is not None:
            progress(at + 1)
    return expectation, out


def bootstrap(values: Floats, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """Return the ends of the intervals of column means, 95 %, by the percentile bootstrap over rows.

    Args:
        values: ``[n, columns]``.
        resamples: Number of resamples.
        seed: Seed of the resamples.
    """
    random = np.random.default_rng(seed)
    count = len(values)
    means = np.empty((resamples, values.shape[1]))
    for at in range(resamples):
        weights = np.bincount(random.integers(0, count, count), minlength=count)
        means[at] = weights @ values / count
    low, high = np.quantile(means, (0.025, 0.975), axis=0)
    return low, high


def _members(directory: Path) -> list[str]:
    """Return the files of the further forests that a score is computed from."""
    manifest = read_manifest(directory)
    files = [node.file for node in manifest.program if isinstance(node, ForestNode)]
    return [file for file in files if file != FOREST] if manifest.kind == "score" else []


def importances(
    directory: Path,
    columns: list[str],
    stated: Mapping[str, float],
    values: Floats | None,
    resamples: int,
    seed: int,
) -> list[FeatureImportance]:
    """Return the importance of every column of the forest, the most important first.

    Args:
        directory: Directory of the verified bundle.
        columns: Names of the forest's columns.
        stated: Importance that the lineage states, by feature.
        values: Exact contributions ``[n, columns]``; None: the bundle has no covers.
        resamples: Resamples of the bootstrap.
        seed: Seed of the bootstrap.
    """
    covers = directory / COVERS
    forest = directory / FOREST
    shape = forest_shape(forest, covers if covers.exists() else None) if forest.exists() else None
    # An ONNX model has no splits.
    splits = np.zeros(len(columns), dtype=np.int64) if shape is None else shape.splits.copy()
    for member in _members(directory):
        own = forest_shape(directory / member).splits
        splits[: len(own)] += own[: len(splits)]
    size = None if values is None else np.abs(values)
    means = None if size is None else size.mean(axis=0)
    ends = None if size is None else bootstrap(size, resamples, seed)
    found = [
        FeatureImportance(
            feature=name,
            mean=None if means is None else float(means[at]),
            low=None if ends is None else float(ends[0][at]),
            high=None if ends is None else float(ends[1][at]),
            splits=int(splits[at]),
            cover=None if shape is None or shape.covers is None else float(shape.covers[at]),
            gain=stated.get(name),
        )
        for at, name in enumerate(columns)
    ]
    # Without contributions, the features with the most splits come first.
    return sorted(found, key=lambda one: -(one.splits if one.mean is None else one.mean))
