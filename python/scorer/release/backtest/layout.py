"""Conversion of logged rows to the order of a bundle's features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scorer.bundle.check import read_schema
from scorer.bundle.models import Feature
from scorer.stats.arrays import Rows32


class Layout:
    """Converts rows of one schema to another one, by the names of features.

    The code of a category is its position in the list of its bundle, so codes are converted by category.

    Args:
        logged: Features of the logged rows.
        wanted: Features of the bundle.
    """

    def __init__(self, logged: Sequence[Feature], wanted: Sequence[Feature]) -> None:
        place = {feature.name: at for at, feature in enumerate(logged)}
        self.lacking = [feature.name for feature in wanted if feature.name not in place]
        """Features of the bundle that the log does not have."""
        self._same = list(logged) == list(wanted)
        self._columns = [place.get(feature.name) for feature in wanted]
        self._codes = {
            at: _codes(logged[source].categories, feature.categories)
            for at, (source, feature) in enumerate(zip(self._columns, wanted, strict=True))
            if source is not None
            and feature.type == "category"
            and logged[source].categories != feature.categories
        }

    def __call__(self, rows: Rows32) -> Rows32:
        """Convert rows `[n, logged]` to `[n, wanted]`. Features that the log does not have are NaN."""
        if self._same:
            return rows
        out = np.full((len(rows), len(self._columns)), np.nan, dtype=np.float32)
        for at, source in enumerate(self._columns):
            if source is None:
                continue
            column = rows[:, source]
            out[:, at] = _recoded(column, self._codes[at]) if at in self._codes else column
        return out


def schema_of(bundle: Path) -> list[Feature]:
    """Return the features of requests to a bundle, in order."""
    return list(read_schema(bundle).features)


def _codes(logged: Sequence[str], wanted: Sequence[str]) -> Rows32:
    place = {name: at for at, name in enumerate(wanted)}
    return np.array([place.get(name, np.nan) for name in logged], dtype=np.float32)


def _recoded(column: Rows32, codes: Rows32) -> Rows32:
    known = np.isfinite(column) & (column >= 0) & (column < len(codes))
    out = np.full(len(column), np.nan, dtype=np.float32)
    out[known] = codes[column[known].astype(np.int64)]
    return out
