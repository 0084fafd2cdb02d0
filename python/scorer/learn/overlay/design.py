"""How an overlay's coefficients lie over segments and actions, and what they add to scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.learn.logistic import sigmoid
from scorer.learn.oracle import OracleTask
from scorer.stats.arrays import Floats, Ints, Rows32

if TYPE_CHECKING:
    from scorer.bundle.models import OverlaySpec


# As the engine clips a probability before taking its logit.
_TINY = 1e-9


@dataclass(frozen=True)
class Design:
    """Which coefficients an action of a segment takes part in.

    Attributes:
        task: the columns and the catalogue.
        segment: the context's category that offsets are kept for.
    """

    task: OracleTask
    segment: str

    def __post_init__(self) -> None:
        categories = [column.name for column in self.task.context if column.type == "category"]
        if self.segment not in categories:
            raise DataError(
                f'overlay: segment "{self.segment}" is not a category of the context; one of'
                f" {', '.join(categories) or 'none'}"
            )
        if not self.levels:
            raise DataError("overlay: the catalogue names no factors, so there is nothing to put offsets on")

    @cached_property
    def column(self) -> int:
        """The segment's position in a context row."""
        return [column.name for column in self.task.context].index(self.segment)

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """Return the names of the segments by code."""
        return tuple(self.task.context[self.column].categories)

    @cached_property
    def levels(self) -> tuple[tuple[str, str], ...]:
        """`L` pairs of factor and level, as far as the catalogue has them."""
        pairs = ((f, level) for action in self.task.actions for f, level in action.factors.items())
        return tuple(dict.fromkeys(sorted(pairs)))

    @cached_property
    def membership(self) -> Floats:
        """`[K, L]`: 1 where an action has the level."""
        return np.array(
            [
                [float(action.factors.get(factor) == level) for factor, level in self.levels]
                for action in self.task.actions
            ]
        )

    def codes(self, context: Rows32) -> Ints:
        """`[n]` each context's segment; missing or unknown ones are `len(segments)`."""
        value = context[:, self.column]
        known = (value >= 0) & (value < len(self.segments))
        return np.where(known, value, len(self.segments)).astype(np.int64)

    def table(self, spec: OverlaySpec | None) -> Floats:
        """`[segments + 1, K]` offsets; the last row is for what is missing or unknown."""
        out = np.zeros((len(self.segments) + 1, len(self.task.actions)))
        if spec is None:
            return out
        out += self.membership @ self._vector(spec.everywhere)
        for name, offsets in spec.segments.items():
            if name in self.segments:
                out[self.segments.index(name)] += self.membership @ self._vector(offsets)
        return np.clip(out, -spec.limit, spec.limit)

    def _vector(self, offsets: Any) -> Floats:
        return np.array([offsets.get(factor, {}).get(level, 0.0) for factor, level in self.levels])

    def named(self, values: Floats) -> dict[str, dict[str, float]]:
        """`[L]` coefficients by factor and level."""
        out: dict[str, dict[str, float]] = {}
        for (factor, level), value in zip(self.levels, values, strict=True):
            out.setdefault(factor, {})[level] = round(float(value), 6)
        return out


def offsets(spec: OverlaySpec | None, task: OracleTask, context: Rows32) -> Floats:
    """`[n, K]` what an overlay adds to the logit of every action's score.

    Args:
        spec: the overlay; None adds nothing.
        task: the catalogue that its factors refer to.
        context: `[n, context columns]`, categories as codes.
    """
    if spec is None:
        return np.zeros((len(context), len(task.actions)))
    design = Design(task, spec.segment)
    return np.asarray(design.table(spec)[design.codes(context)])


def logit(score: npt.NDArray[Any]) -> Floats:
    """Of a probability, clipped as the engine does."""
    clipped = np.clip(np.asarray(score, dtype=np.float64), _TINY, 1 - _TINY)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def adjusted(score: npt.NDArray[Any], added: npt.NDArray[Any]) -> Floats:
    """Scores with offsets on their logits."""
    return sigmoid(logit(score) + added)
