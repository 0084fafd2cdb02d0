"""Tables of the transform node: a number for each category, such as a target encoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.columns import category_name
from scorer.bundle.models import CategoryTable
from scorer.errors import BundleError

TABLES = "tables.json"
"""File of the tables in a bundle."""


def fit_target_table(
    values: Iterable[Any], labels: npt.ArrayLike, *, smoothing: float = 100.0
) -> CategoryTable:
    """Fit a target encoding: the mean label of each category, drawn towards the mean of all rows.

    The number of a category is ``(sum of its labels + smoothing * mean) / (its rows + smoothing)``. Missing
    values and categories that do not occur get the mean of all rows. Fit the table on other rows than those
    that the model is trained on, because a model that has seen its own labels in a feature relies on it too
    much.

    Args:
        values: The categories of the rows, ``[n]``.
        labels: The labels of the rows, ``[n]``.
        smoothing: Number of rows with the mean label that are added to each category.

    Raises:
        BundleError: The lengths differ, there are no rows, a label is not finite, or `smoothing` is below 0.
    """
    names = [category_name(value) for value in values]
    y = np.asarray(labels, dtype=np.float64).ravel()
    if len(names) != len(y) or len(y) == 0:
        raise BundleError(
            f"target table: {len(names)} values and {len(y)} labels; give as many of each, at least one"
        )
    if not np.isfinite(y).all() or not smoothing >= 0.0:
        raise BundleError("target table: labels must be finite and smoothing 0 or above; correct them")
    mean = float(y.mean())
    rows: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        if name is not None:
            rows.setdefault(name, []).append(at)
    numbers = {
        name: (float(y[own].sum()) + smoothing * mean) / (len(own) + smoothing)
        for name, own in sorted(rows.items())
    }
    return CategoryTable(values=numbers, default=mean)
