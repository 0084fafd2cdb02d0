"""Segments of decisions: the values of features that are categories or flags, and of fields of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.bundle import Feature
from scorer.learn.errors import DataError
from scorer.learn.levels import level_name

if TYPE_CHECKING:
    from scorer.log import BundleShelf

FIELDS: Final = ("lane", "bundle", "action", "decision")
"""Fields of a decision's record that are segments by their own names."""
RULE: Final = "rule:"
"""Beginning of the name of a segment that is whether a rule had an effect."""
APPLIED: Final = "yes"
UNKNOWN_BUNDLE: Final = "(unknown bundle)"
NO_FEATURE: Final = "(no such feature)"
WITHHELD: Final = "(withheld)"

Codes = npt.NDArray[np.int32]


class SegmentReader:
    """Reads the segments of decisions, batch by batch, with one code for each value.

    Args:
        names: Names of features or of `FIELDS`, or `RULE` with the id of a rule.
        shelf: The bundles of the decisions.
    """

    def __init__(self, names: Sequence[str], shelf: BundleShelf) -> None:
        self._names, self._shelf = tuple(names), shelf
        self._codes: dict[str, dict[str, int]] = {name: {} for name in self._names}
        self._layouts: dict[str, dict[str, tuple[int, Feature]] | None] = {}

    def codes(self, rows: pa.Table) -> list[Codes]:
        """Return the codes of decisions, `[n]` for each segment.

        Args:
            rows: Decisions of a source.

        Raises:
            DataError: A segment is a number.
        """
        return [self._of(name, rows) for name in self._names]

    def named(self, name: str, codes: Codes) -> tuple[Codes, tuple[str, ...]]:
        """Return codes in the alphabetical order of the values that occur, and these values.

        Args:
            name: Name of the segment.
            codes: Codes of `codes`, ``[n]``.
        """
        known = list(self._codes[name])
        values = sorted({known[code] for code in np.unique(codes)})
        to = np.array([values.index(one) if one in values else -1 for one in known] or [0], np.int32)
        return to[codes], tuple(values)

    def _code(self, name: str, value: str) -> int:
        return self._codes[name].setdefault(value, len(self._codes[name]))

    def _of(self, name: str, rows: pa.Table) -> Codes:
        if name in FIELDS:
            return self._of_field(name, rows[name])
        return self._of_rule(name, rows["rules"]) if name.startswith(RULE) else self._of_feature(name, rows)

    def _of_rule(self, name: str, column: pa.ChunkedArray) -> Codes:
        if column.null_count:
            raise DataError(
                f'rule "{name.removeprefix(RULE)}": an earlier version of `scorer ship` wrote rows without '
                "the rules of decisions; read the logs of the servers, or decisions after the upgrade"
            )
        lists = column.combine_chunks()
        of = pc.list_parent_indices(lists).to_numpy()
        has = pc.equal(lists.flatten(), name.removeprefix(RULE)).to_numpy(zero_copy_only=False)
        out = np.full(len(lists), self._code(name, "no"), np.int32)
        out[of[has.astype(bool)]] = self._code(name, APPLIED)
        return out

    def _of_field(self, name: str, column: pa.ChunkedArray) -> Codes:
        coded = column.combine_chunks()
        to = [self._code(name, value or "(none)") for value in coded.dictionary.to_pylist()]
        return np.asarray(np.array(to or [0], np.int32)[coded.indices.to_numpy()], np.int32)

    def _of_feature(self, name: str, rows: pa.Table) -> Codes:
        bundles, features = rows["bundle"].combine_chunks(), rows["features"].combine_chunks()
        index = bundles.indices.to_numpy()
        offsets = np.asarray(features.offsets.to_numpy(), np.int64)
        values = features.values.to_numpy(zero_copy_only=False)
        out = np.zeros(len(rows), np.int32)
        withheld: list[list[int]] | None = None
        for code, digest in enumerate(bundles.dictionary.to_pylist()):
            own = np.flatnonzero(index == code)
            if not len(own):
                continue
            layout = self._layout(digest)
            if layout is None or name not in layout:
                out[own] = self._code(name, UNKNOWN_BUNDLE if layout is None else NO_FEATURE)
                continue
            at, feature = layout[name]
            short = offsets[own + 1] - offsets[own] <= at
            out[own[short]] = self._code(name, NO_FEATURE)
            own = own[~short]
            column = values[offsets[own] + at]
            for value in np.unique(column):
                same = np.isnan(column) if np.isnan(value) else column == value
                out[own[same]] = self._code(name, _level(feature, float(value)))
            missing = own[np.isnan(column)]
            if len(missing):
                withheld = rows["withheld"].to_pylist() if withheld is None else withheld
                hidden = [row for row in missing.tolist() if at in withheld[row]]
                out[hidden] = self._code(name, WITHHELD)
        return out

    def _layout(self, digest: str) -> dict[str, tuple[int, Feature]] | None:
        if digest not in self._layouts:
            features = self._shelf.schema(digest).features if digest in self._shelf.digests else None
            self._layouts[digest] = (
                None if features is None else {one.name: (at, one) for at, one in enumerate(features)}
            )
            for name in self._names:
                self._check(name, features)
        return self._layouts[digest]

    @staticmethod
    def _check(name: str, features: Sequence[Any] | None) -> None:
        of = next((one for one in features or () if one.name == name), None)
        if of is not None and of.type == "number":
            raise DataError(
                f'segment "{name}" is a number; use features that are categories or flags, or one of '
                f"{', '.join(FIELDS)}"
            )


def _level(feature: Feature, value: float) -> str:
    if feature.categories and not np.isnan(value) and not 0 <= value < len(feature.categories):
        return f"(code {value:g})"
    return level_name(feature.categories, value)
