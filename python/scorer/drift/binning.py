"""Bins of features, which the first rows of a checkpoint determine, and the codes of rows in them.

A feature has up to ten bins of its present values. Missing values, and values that no row of the reference
had (an unseen category, or a number outside the range), are counted beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scorer.stats.arrays import Floats, Ints, Rows32

VALUES: Final = 16
"""Number of codes of present values. A number uses at most ten, a category at most 16."""
MISSING: Final = VALUES
UNSEEN: Final = VALUES + 1
"""Code of present values that the reference did not have; they are counted in their bin too."""
WIDTH: Final = VALUES + 2
_QUANTILES: Final = 10


@dataclass(frozen=True)
class FeatureBins:
    """How the values of one feature are counted.

    Attributes:
        name: Name of the feature.
        edges: Inner edges of the bins of a number, ascending: a value at an edge is in the bin above it.
            Of a category: the codes with a bin of their own, ascending; the last bin has the other ones.
        levels: Names of these categories, empty for a number.
        seen: Least and greatest value of the reference for a number; the codes that it had for a category.
    """

    name: str
    edges: tuple[float, ...]
    levels: tuple[str, ...]
    seen: tuple[float, ...]

    @property
    def is_category(self) -> bool:
        """Whether the feature is a category."""
        return bool(self.levels)

    def codes(self, values: Rows32) -> Ints:
        """Return the code of each value, `[n]`: its bin, or `MISSING`."""
        found = np.full(len(values), MISSING, dtype=np.int64)
        present = np.isfinite(values)
        own = values[present].astype(np.float64)
        edges = np.array(self.edges)
        if self.is_category:
            places = np.searchsorted(edges, own)
            known = places < len(edges)
            known[known] = edges[places[known]] == own[known]
            found[present] = np.where(known, places, len(edges))
        else:
            found[present] = np.searchsorted(edges, own, side="right")
        return found

    def unseen(self, values: Rows32) -> Ints:
        """Return the positions of present values that the reference did not have."""
        own = values.astype(np.float64)
        if self.is_category:
            return np.flatnonzero(np.isfinite(own) & ~np.isin(own, self.seen))
        low, high = self.seen if self.seen else (-np.inf, np.inf)
        return np.flatnonzero(np.isfinite(own) & ((own < low) | (own > high)))

    def label(self, code: int) -> str:
        """Return the range or category that a bin of present values stands for."""
        if self.is_category:
            return self.levels[code] if code < len(self.levels) else "other"
        ends = (None, *self.edges, None)
        low, high = ends[code], ends[min(code + 1, len(ends) - 1)]
        if low is None and high is None:
            return "every value"
        if low is None:
            return f"below {high:.4g}"
        return f"{low:.4g} and above" if high is None else f"{low:.4g} to {high:.4g}"


def bins_of(name: str, values: Rows32, categories: Sequence[str] = ()) -> FeatureBins:
    """Return the bins that reference rows determine.

    Args:
        name: Name of the feature.
        values: `[n]` values of the reference rows; NaN is a missing one.
        categories: Levels of a category by code; empty: the feature is a number.
    """
    own = np.sort(values[np.isfinite(values)].astype(np.float64))
    if categories:
        codes, counts = np.unique(own, return_counts=True)
        usual = np.sort(codes[np.argsort(-counts, kind="stable")][: VALUES - 1])
        names = tuple(
            categories[int(code)] if 0 <= code < len(categories) else f"code {code:g}" for code in usual
        )
        if not names:
            return FeatureBins(name, (0.0,), (categories[0],), ())
        return FeatureBins(name, tuple(usual.tolist()), names, tuple(codes.tolist()))
    if not len(own):
        return FeatureBins(name, (), (), ())
    return FeatureBins(name, tuple(_edges(own).tolist()), (), (float(own[0]), float(own[-1])))


def _edges(ordered: Floats) -> Floats:
    """Return inner edges near the tenths of values in ascending order, each half way between two values."""
    upper = ordered[[len(ordered) * part // _QUANTILES for part in range(1, _QUANTILES)]]
    at = np.searchsorted(ordered, upper, side="left")
    edges = (ordered[np.maximum(at - 1, 0)] + ordered[at]) / 2
    # A frequent value needs an edge on either side of it.
    end = np.searchsorted(ordered, upper, side="right")
    after = (ordered[end - 1] + ordered[np.minimum(end, len(ordered) - 1)]) / 2
    frequent = end - at >= len(ordered) / _QUANTILES / 2
    every = np.unique(np.concatenate([edges, after[frequent]]))
    inside = every[(every > ordered[0]) & (every < ordered[-1])]
    return np.asarray(inside[: VALUES - 1])
