"""Curves of a feature: partial dependence, quantiles of individual curves, accumulated local effects."""

from __future__ import annotations

from typing import Final

import numpy as np

from scorer.bundle.models import Feature
from scorer.explain.document import DependencePoint, FeatureDependence, LocalEffect
from scorer.explain.quantity import ExplainedQuantity
from scorer.stats.arrays import Floats, Rows32

MISSING: Final = "(missing)"


def dependence(
    quantity: ExplainedQuantity, rows: Rows32, column: int, feature: Feature, points: int
) -> FeatureDependence:
    """Compute the curves of one feature of the request.

    Partial dependence sets the feature of every row to a value and averages the explained quantity. The
    curves of single rows show how much that average hides. Accumulated local effects move each row only
    within the interval that its own value lies in, so they are not misled by features that go together.

    Args:
        quantity: The explained quantity.
        rows: Rows ``[n, features]``, at least one.
        column: Position of the feature.
        feature: The feature.
        points: Largest number of points of a curve.
    """
    own = rows[:, column]
    grid = _grid(own, feature, points)
    return FeatureDependence(
        feature=feature.name,
        type=feature.type,
        points=_curve(quantity, rows, column, feature, grid),
        effects=[] if feature.type == "category" else _effects(quantity, rows, column, feature, points),
    )


def _grid(own: Rows32, feature: Feature, points: int) -> Rows32:
    """Return values of the sample, so that the schema accepts each; a missing value comes last."""
    known = own[~np.isnan(own)]
    if feature.type == "number":
        grid = _quantiles(known, points)
    else:
        values, counts = np.unique(known, return_counts=True)
        grid = np.sort(values[np.argsort(-counts, kind="stable")[:points]])
    return np.append(grid, np.float32(np.nan)) if len(known) < len(own) else grid


def _quantiles(known: Rows32, points: int) -> Rows32:
    """Return the different values at evenly spaced quantiles, each a value of the sample."""
    if not len(known):
        return known
    return np.unique(np.quantile(known, np.linspace(0, 1, points), method="lower").astype(np.float32))


def _curve(
    quantity: ExplainedQuantity, rows: Rows32, column: int, feature: Feature, grid: Rows32
) -> list[DependencePoint]:
    counts = _counts(rows[:, column], feature, grid)
    found = []
    for value, count in zip(grid, counts, strict=True):
        block = rows.copy()
        block[:, column] = value
        values, scores = quantity.both(block)
        low, median, high = np.quantile(values, (0.1, 0.5, 0.9))
        found.append(
            DependencePoint(
                value=None if np.isnan(value) else float(value),
                label=label_of(feature, float(value)),
                rows=count,
                mean=float(values.mean()),
                low=float(low),
                median=float(median),
                high=float(high),
                score=None if scores is None else float(scores.mean()),
            )
        )
    return found


def _counts(own: Rows32, feature: Feature, grid: Rows32) -> list[int]:
    """Return the rows at each point; of a number also those between the point and the one before."""
    known = grid[~np.isnan(grid)]
    present = own[~np.isnan(own)]
    if feature.type == "number":
        counts = np.bincount(np.searchsorted(known, present, side="left"), minlength=len(known))[: len(known)]
    else:
        counts = np.array([(present == value).sum() for value in known], dtype=np.int64)
    missing = [len(own) - len(present)] if len(known) < len(grid) else []
    return [*map(int, counts), *missing]


def _effects(
    quantity: ExplainedQuantity, rows: Rows32, column: int, feature: Feature, points: int
) -> list[LocalEffect]:
    kept = rows[~np.isnan(rows[:, column])]
    own = kept[:, column]
    edges = np.unique(own) if feature.type == "flag" else _quantiles(own, points)
    if len(edges) < 2:
        return []
    # The interval that each row lies in; the lowest value belongs to the first.
    place = np.clip(np.searchsorted(edges, own, side="left"), 1, len(edges) - 1)
    below, above = kept.copy(), kept.copy()
    below[:, column], above[:, column] = edges[place - 1], edges[place]
    change = quantity.values(above) - quantity.values(below)
    counts = np.bincount(place, minlength=len(edges)).astype(np.float64)
    sums = np.bincount(place, weights=change, minlength=len(edges))
    steps = np.divide(sums, counts, out=np.zeros(len(edges)), where=counts > 0)
    curve: Floats = np.cumsum(steps)
    middles = (curve[1:] + curve[:-1]) / 2
    curve -= float(middles @ counts[1:] / counts[1:].sum())
    return [
        LocalEffect(
            value=float(edge), label=label_of(feature, float(edge)), effect=float(effect), rows=int(count)
        )
        for edge, effect, count in zip(edges, curve, counts, strict=True)
    ]


def label_of(feature: Feature, value: float) -> str:
    """Return a value of a feature as text."""
    if np.isnan(value):
        return MISSING
    if feature.type == "category":
        return feature.categories[int(value)]
    if feature.type == "flag":
        return "yes" if value else "no"
    return f"{value:.6g}"
