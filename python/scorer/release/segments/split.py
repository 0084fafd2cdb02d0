"""Rows of features into segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Feature
from scorer.release.segments.settings import SegmentPlan
from scorer.stats.arrays import Ints, Rows32

Codes = npt.NDArray[np.int32]

MISSING: Final = "(missing)"
OTHER: Final = "(other)"
_FEATURES: Final = 8
"""Features that rows are split by where the settings name none."""
_LEVELS: Final = 12
"""Largest number of values of such a feature."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    at: int
    levels: tuple[str, ...]
    limits: tuple[float, ...] = ()
    """Of a number: the limits of its bands."""

    def codes(self, values: npt.NDArray[np.float32]) -> Codes:
        known = np.isfinite(values)
        if self.limits:
            found = band_codes(values, self.limits)
        else:
            found = np.where(known, values, -1).astype(np.int32)
            known = known & (found >= 0) & (found < len(self.levels))
        return np.where(known, found, -1).astype(np.int32)


class SegmentSplit:
    """Splits rows of one schema.

    Args:
        schema: Features of the rows, in order.
        plan: The features that rows are split by.
    """

    def __init__(self, schema: Sequence[Feature], plan: SegmentPlan) -> None:
        bands = dict(plan.bands)
        place = {feature.name: (at, feature) for at, feature in enumerate(schema)}
        named = [name for name in plan.features if name not in bands] or _usual(schema, bands)
        named += [name for name in plan.groups if name not in bands and name not in named]
        self.notes: list[str] = []
        """Features of the settings that rows cannot be split by, one sentence each."""
        self._columns: list[_Column] = []
        for name in (*named, *bands):
            if name not in place:
                self.notes.append(f"rows are not split by {name}: the bundle has no such feature")
                continue
            at, feature = place[name]
            if name in bands:
                if feature.type != "number":
                    self.notes.append(f"rows are not split by bands of {name}: it is a {feature.type}")
                    continue
                self._columns.append(_Column(name, at, band_words(bands[name]), bands[name]))
            elif feature.type == "number":
                self.notes.append(f"rows are not split by {name}: it is a number; give it bands")
            else:
                levels = tuple(feature.categories) if feature.type == "category" else ("no", "yes")
                self._columns.append(_Column(name, at, levels))

    @property
    def levels(self) -> list[tuple[str, tuple[str, ...]]]:
        """Features that rows are split by, each with its levels."""
        return [(column.name, column.levels) for column in self._columns]

    @property
    def names(self) -> tuple[str, ...]:
        """Features that rows are split by."""
        return tuple(column.name for column in self._columns)

    def codes(self, rows: Rows32) -> Codes:
        """Return the level of each row by each feature, `[n, s]`; -1: missing.

        Args:
            rows: `[n, features]` of the schema.
        """
        if not self._columns:
            return np.zeros((len(rows), 0), np.int32)
        return np.stack([column.codes(rows[:, column.at]) for column in self._columns], axis=1)


def band_words(limits: Sequence[float]) -> tuple[str, ...]:
    """Return the names of bands, the lowest first; there is one more than limits."""
    inner = [f"{low:g} to {high:g}" for low, high in pairwise(limits)]
    return (f"below {limits[0]:g}", *inner, f"from {limits[-1]:g}")


def band_codes(values: npt.NDArray[np.float32], limits: Sequence[float]) -> Codes:
    """Return the band of each value; a limit belongs to the band above it. -1: not finite."""
    found = np.searchsorted(np.asarray(limits, dtype=np.float64), values.astype(np.float64), side="right")
    return np.where(np.isfinite(values), found, -1).astype(np.int32)


def largest(
    codes: Codes, levels: Sequence[str], most: int, *, others: Codes | None = None
) -> list[tuple[str, Ints, Ints]]:
    """Return the segments of a feature with their rows: those with the most rows first, then all others.

    Args:
        codes: `[n]` levels; -1: missing.
        levels: Names of the levels.
        most: Largest number of segments before the one of all others.
        others: `[m]` levels of further rows that are split in the same way, such as those of another lane.

    Returns:
        Name, indices into `codes` and indices into `others`; each segment has a row in one of them.
    """
    others = np.zeros(0, np.int32) if others is None else others
    counts = [np.bincount(one + 1, minlength=len(levels) + 1) for one in (codes, others)]
    total = counts[0] + counts[1]
    ranked = [int(code) for code in np.argsort(-total, kind="stable") if total[code]]
    shown = ranked if len(ranked) <= most + 1 else ranked[:most]
    # Rows of all segments that are not shown get the place after the last shown one.
    # 16 bits are enough for them, and NumPy sorts such numbers by radix.
    place = np.full(len(total), len(shown), np.int16)
    place[shown] = np.arange(len(shown), dtype=np.int16)
    groups = [_grouped(place[one + 1], len(shown) + 1) for one in (codes, others)]
    names = [MISSING if code == 0 else levels[code - 1] for code in shown]
    if len(shown) < len(ranked):
        names.append(OTHER)
    return [(name, groups[0][at], groups[1][at]) for at, name in enumerate(names)]


def by_band(found: list[tuple[str, Ints, Ints]], bands: Sequence[str]) -> list[tuple[str, Ints, Ints]]:
    """Return the segments of a number from its lowest band to its highest; other segments follow.

    Args:
        found: Segments from `largest`.
        bands: Names of the bands, the lowest first.
    """
    place = {name: at for at, name in enumerate(bands)}
    return sorted(found, key=lambda one: place.get(one[0], len(place)))


def _grouped(places: npt.NDArray[np.int16], count: int) -> list[Ints]:
    """Return the indices of each place, in their order."""
    order = np.argsort(places, kind="stable").astype(np.int64)
    return np.split(order, np.searchsorted(places[order], np.arange(1, count)))


def _usual(schema: Sequence[Feature], bands: dict[str, tuple[float, ...]]) -> list[str]:
    """Return the first flags and small categories."""
    return [
        feature.name
        for feature in schema
        if feature.name not in bands
        and (feature.type == "flag" or (feature.type == "category" and len(feature.categories) <= _LEVELS))
    ][:_FEATURES]
