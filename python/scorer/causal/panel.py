"""Values of units by month, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Singles: TypeAlias = npt.NDArray[np.float32]
Places: TypeAlias = npt.NDArray[np.int64]
"""Rows of units in a panel, or months by their position."""

NEVER: Final = -1
"""The adoption month of a unit that never adopted."""
LEFT_OUT: Final = -2
"""The adoption month of a unit that is neither an adopter nor a control."""


@dataclass(frozen=True)
class Panel:
    """Values of U units in T consecutive months.

    Attributes:
        months: `[T]`, as `2026-01`.
        values: `[U, T]`, money.
        adopted: `[U]`, position of the month of the first adoption; `NEVER`, or `LEFT_OUT`.
        features: By name, `[U, T]`; matched on their mean before adoption.
        groups: `[U]`, codes; neighbours have the same code.
        others: Adoptions of other products by name, `[U]`, as `adopted`.
        units: `[U]`, identifiers.
    """

    months: Sequence[str]
    values: Singles
    adopted: Places
    features: Mapping[str, Singles] = field(default_factory=dict)
    groups: Places | None = None
    others: Mapping[str, Places] = field(default_factory=dict)
    units: Sequence[str] | None = None

    @property
    def size(self) -> int:
        """Number of units in the panel."""
        return int(self.values.shape[0])

    @property
    def controls(self) -> Places:
        """Rows of the units that never adopted."""
        return np.flatnonzero(self.adopted == NEVER)

    def adopters(self, month: int) -> Places:
        """Rows of the units that first adopted in a month."""
        return np.flatnonzero(self.adopted == month)

    def total(self, rows: Places, begin: int, end: int) -> Floats:
        """Return the value of units summed over the months `begin` to `end`, exclusive."""
        return np.asarray(self.values[rows, begin:end].sum(axis=1, dtype=np.float64))
