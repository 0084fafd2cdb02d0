"""Propensities for logs that hold none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def estimated_pmf(chosen: Ints, cell: Ints, actions: int) -> Floats:
    """`[n, actions]` how often each action was taken among the rows of each row's cell.

    Valid if, within a cell, the choice depended on nothing that also moves the reward.
    """
    counts = np.zeros((int(cell.max()) + 1, actions))
    np.add.at(counts, (cell, chosen), 1)
    return np.asarray((counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))[cell])


def estimated_propensities(chosen: Ints, cell: Ints, actions: int) -> Floats:
    """`[n]` the entry of `estimated_pmf` for what was chosen."""
    return estimated_pmf(chosen, cell, actions)[np.arange(len(chosen)), chosen]
