"""Interactions of pairs of features, by Friedman's H statistic on a bounded number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from scorer.explain.document import PairInteraction
from scorer.explain.quantity import ExplainedQuantity
from scorer.stats.arrays import Floats, Rows32


def evaluations(features: int, rows: int) -> int:
    """Return how many rows are evaluated for all pairs of some features."""
    return (features + features * (features - 1) // 2) * rows * rows


def interactions(
    quantity: ExplainedQuantity,
    rows: Rows32,
    columns: Sequence[tuple[int, str]],
    progress: Callable[[], None] | None = None,
) -> list[PairInteraction]:
    """Measure every pair of some features.

    The partial dependence of two features is compared with the sum of their own partial dependences, all
    centred, at the values of each row. For features that do not interact they are equal up to rounding.

    Args:
        quantity: The explained quantity.
        rows: Rows ``[n, features]``. The cost is `evaluations` of the number of columns and of n.
        columns: Position and name of each feature.
        progress: Called after each feature and each pair.

    Returns:
        The pairs, the strongest first.
    """
    alone: dict[int, Floats] = {}
    for column, _ in columns:
        alone[column] = _centred(quantity, rows, (column,))
        if progress is not None:
            progress()
    found = []
    for (first, first_name), (second, second_name) in combinations(columns, 2):
        joint = _centred(quantity, rows, (first, second))
        rest = joint - alone[first] - alone[second]
        total = float(np.mean(joint**2))
        own = float(np.mean(rest**2))
        # Rounding of sums must not look like an interaction of features without effect.
        is_zero = own <= 1e-18 + 1e-14 * total
        found.append(
            PairInteraction(
                first=first_name,
                second=second_name,
                strength=0.0 if is_zero else float(np.sqrt(own)),
                share=0.0 if is_zero else float(np.sqrt(min(own / total, 1.0))) if total > 0 else 1.0,
            )
        )
        if progress is not None:
            progress()
    return sorted(found, key=lambda one: (-one.strength, one.first, one.second))


def _centred(quantity: ExplainedQuantity, rows: Rows32, columns: tuple[int, ...]) -> Floats:
    values = np.ascontiguousarray(rows[:, columns])
    means: Floats = quantity.replaced_pair(rows, columns, values).mean(axis=1)
    centred: Floats = means - means.mean()
    return centred
