"""Decisions of several bundles in the terms of one: actions by id, columns and categories by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scorer.bundle import Action, Feature
from scorer.stats.arrays import Bools, Ints, Rows32


@dataclass(frozen=True)
class CatalogueLayout:
    """What the rows of one bundle mean.

    Attributes:
        digest: of the bundle.
        features: columns of the context.
        actions: the catalogue.
        fingerprint: of the schema.
    """

    digest: str
    features: tuple[Feature, ...]
    actions: tuple[Action, ...]
    fingerprint: int


@dataclass(frozen=True)
class ActionMap:
    """A bundle's catalogue in another's.

    Attributes:
        to: `[K own]` position in the other catalogue; -1 where it left.
        redefined: `[K own]` whether the id stands for other factors there.
        width: `K` of the other.
    """

    to: Ints
    redefined: Bools
    width: int

    @property
    def is_identity(self) -> bool:
        """Whether both catalogues have the same actions in the same order."""
        return len(self.to) == self.width and bool((self.to == np.arange(self.width)).all())

    @property
    def stays(self) -> Bools:
        """`[K own]` whether the action is the same one in the other catalogue."""
        return np.asarray((self.to >= 0) & ~self.redefined)


def map_actions(own: Sequence[Action], other: Sequence[Action]) -> ActionMap:
    """Where each of `own` is in `other`, by id; its columns may have moved, its factors may not."""
    position = {action.id: at for at, action in enumerate(other)}
    to = np.array([position.get(action.id, -1) for action in own], dtype=np.int64)
    redefined = np.array(
        [at >= 0 and other[at].factors != action.factors for at, action in zip(to, own, strict=True)]
    )
    return ActionMap(to, redefined, len(other))


def carry_columns(
    rows: Rows32, own: Sequence[Feature], other: Sequence[Feature]
) -> tuple[Rows32, npt.NDArray[np.bool_]]:
    """Contexts of one schema as another has them: columns by name, categories by their text.

    Returns:
        `[n, other]` rows, and `[n]` whether each could be carried over. A column or category that
        the other schema does not find is missing (NaN) where it allows that.
    """
    known = {feature.name: at for at, feature in enumerate(own)}
    out = np.full((len(rows), len(other)), np.nan, dtype=np.float32)
    fits = np.ones(len(rows), dtype=bool)
    for column, feature in enumerate(other):
        at = known.get(feature.name)
        if at is not None and own[at].type == feature.type:
            out[:, column] = _values(rows[:, at], own[at], feature)
        elif feature.missing != "allow":
            fits[:] = False
        if feature.missing != "allow":
            # What the decision's own bundle let through as missing, this one would have refused.
            fits &= ~np.isnan(out[:, column])
    return out, fits


def _values(column: Rows32, own: Feature, other: Feature) -> Rows32:
    if own.type != "category" or own.categories == other.categories:
        return column
    codes = {name: float(code) for code, name in enumerate(other.categories)}
    table = np.array([codes.get(name, np.nan) for name in own.categories], dtype=np.float32)
    out = np.full(len(column), np.nan, dtype=np.float32)
    there = ~np.isnan(column)
    out[there] = table[column[there].astype(np.int64)]
    return out
