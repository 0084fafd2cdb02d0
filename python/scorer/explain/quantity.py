"""The number that an explanation is about: the margin of a score, or the expected reward of an action."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from scorer.bundle.loaded import Bundle
from scorer.errors import BundleError
from scorer.stats.arrays import Floats, Rows32

_PORTION: Final = 1 << 21
"""Values that are evaluated at a time."""


class ExplainedQuantity:
    """Evaluates the explained number of many rows.

    Args:
        bundle: The bundle.
        action: For an action bundle: id of the action, or None for the first of the catalogue.

    Raises:
        BundleError: The action does not suit the bundle.
    """

    def __init__(self, bundle: Bundle, action: str | None = None) -> None:
        self.bundle = bundle
        self.action: str | None = None
        self._place: int | None = None
        if bundle.kind == "action":
            self.action = action or bundle.actions[0]
            if self.action not in bundle.actions:
                raise BundleError(
                    f'action "{self.action}" is not in the catalogue of {bundle.name}; '
                    "`scorer bundle inspect` lists the actions"
                )
            self._place = list(bundle.actions).index(self.action)
        elif action is not None:
            raise BundleError(f"{bundle.name} is a score bundle and has no actions; leave the action out")

    @property
    def name(self) -> Literal["margin", "expected_reward"]:
        """Name of the quantity that is explained."""
        return "margin" if self._place is None else "expected_reward"

    def values(self, rows: Rows32) -> Floats:
        """Return the quantity of each row, ``[n]``."""
        return self.both(rows)[0]

    def both(self, rows: Rows32) -> tuple[Floats, Floats | None]:
        """Return the quantity and the score of each row, ``[n]``; no score for an action bundle."""
        if self._place is None:
            scored = self.bundle.score(rows)
            return scored.margins, scored.scores
        out = np.empty(len(rows))
        step = max(1, _PORTION // max(len(self.bundle.actions), self.bundle.num_features))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            out[start : start + step] = self.bundle.evaluate(part)[1][:, self._place]
        return out, None

    def decisions(self, rows: Rows32) -> npt.NDArray[np.uint32] | None:
        """Return the index of each row's label, ``[n]``; None for an action bundle."""
        return None if self._place is not None else self.bundle.score(rows).bands

    def contributions(self, row: Rows32) -> tuple[float, Floats]:
        """Return the expectation of the margin and the exact contributions of the forest's columns."""
        return self.bundle.explain(row, action=self._place)

    def replaced(self, rows: Rows32, column: int, values: Rows32) -> Floats:
        """Return the quantity of every row with every value in one column, ``[values, n]``.

        Args:
            rows: Rows ``[n, features]``.
            column: Position of the column.
            values: Values of the column.
        """
        return self.replaced_pair(rows, (column,), values[:, None])

    def replaced_pair(self, rows: Rows32, columns: tuple[int, ...], values: Rows32) -> Floats:
        """Return the quantity of every row with every tuple of values in some columns, ``[values, n]``.

        Args:
            rows: Rows ``[n, features]``.
            columns: Positions of the columns.
            values: Values ``[values, columns]``.
        """
        count, width = rows.shape
        out = np.empty((len(values), count))
        step = max(1, _PORTION // max(count * width, 1))
        for start in range(0, len(values), step):
            part = values[start : start + step]
            block = np.tile(rows, (len(part), 1))
            for at, column in enumerate(columns):
                block[:, column] = np.repeat(part[:, at], count)
            out[start : start + step] = self.values(block).reshape(len(part), count)
        return out
