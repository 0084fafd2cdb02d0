"""Comparison of rows of two bundles: features of the same name, and whether their values are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Action, Feature, SchemaFile
from scorer.errors import ScorerError
from scorer.release.segments.settings import SegmentPlan
from scorer.release.segments.split import SegmentSplit

Row = npt.NDArray[np.float32]
_MOST = 6


class Comparison:
    """Compares rows of a live bundle with rows of an observing one, feature by feature of the same name.

    Args:
        live: Features of the live bundle, in its order.
        own: Features of the other one.
    """

    def __init__(self, live: Sequence[Feature], own: Sequence[Feature]) -> None:
        place = {feature.name: at for at, feature in enumerate(live)}
        shared = [(place[feature.name], at) for at, feature in enumerate(own) if feature.name in place]
        self.own, self.live = list(own), list(live)
        self._is_same = self.own == self.live
        self._live_at = np.array([one for one, _ in shared], dtype=np.int64)
        self._own_at = np.array([one for _, one in shared], dtype=np.int64)
        self._live_place = {at: other for other, at in shared}
        # The code of a category is its position in the bundle's list, so codes of two bundles can differ.
        self._codes = [
            (at, _codes(live[one].categories, own[other].categories))
            for at, (one, other) in enumerate(shared)
            if own[other].type == "category" and live[one].categories != own[other].categories
        ]

    def different(self, live: Row, own: Row) -> list[int]:
        """Return the positions, in the observing bundle's schema, of features whose values differ.

        Two missing values are equal.
        """
        if not len(self._own_at) or (self._is_same and live.tobytes() == own.tobytes()):
            return []
        ours, theirs = own[self._own_at], live[self._live_at]
        for at, codes in self._codes:
            code = theirs[at]
            theirs[at] = codes[int(code)] if 0 <= code < len(codes) else code
        unlike = ~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
        return [int(at) for at in self._own_at[unlike]]

    def lacking(self, absent: Sequence[int], live: Row) -> list[int]:
        """Return the absent features that were present for the live bundle, or that it does not have."""
        return [
            at for at in absent if (place := self._live_place.get(at)) is None or not np.isnan(live[place])
        ]

    def told(self, places: Sequence[int], live: Row, own: Row) -> list[tuple[str, Any, Any]]:
        """Return name, live value and own value of the first few features at some positions, for display."""
        found = []
        for at in places[:_MOST]:
            place = self._live_place.get(at)
            before = None if place is None else _value(self.live[place], live[place])
            found.append((self.own[at].name, before, _value(self.own[at], own[at])))
        return found


class Schemas:
    """Schemas, catalogues and splits of bundles by digest, kept; None of a bundle that cannot be found.

    Args:
        local: Function from a digest to the directory of the bundle.
    """

    def __init__(self, local: Callable[[str], Path]) -> None:
        self._local = local
        self.features = lru_cache(64)(self._features)
        self.actions = lru_cache(64)(self._actions)
        self.comparison = lru_cache(64)(self._comparison)
        self.split = lru_cache(64)(self._split)

    def _features(self, digest: str) -> tuple[Feature, ...] | None:
        file = self._file(digest, "schema.json")
        return None if file is None else tuple(SchemaFile.model_validate_json(file).features)

    def _actions(self, digest: str) -> tuple[str, ...]:
        from pydantic import TypeAdapter

        file = self._file(digest, "actions.json")
        return () if file is None else tuple(one.id for one in TypeAdapter(list[Action]).validate_json(file))

    def _comparison(self, live: str, own: str) -> Comparison | None:
        one, other = self.features(live), self.features(own)
        return None if one is None or other is None else Comparison(one, other)

    def _split(self, digest: str, plan: SegmentPlan) -> SegmentSplit | None:
        features = self.features(digest)
        return None if features is None else SegmentSplit(features, plan)

    def _file(self, digest: str, name: str) -> bytes | None:
        try:
            return (self._local(digest) / name).read_bytes()
        except (ScorerError, OSError):
            # A bundle that the registry no longer has is not compared; the report states how much was.
            return None


def _codes(live: Sequence[str], own: Sequence[str]) -> Row:
    place = {name: at for at, name in enumerate(own)}
    return np.array([place.get(name, np.nan) for name in live], dtype=np.float32)


def _value(feature: Feature, value: np.float32) -> Any:
    if np.isnan(value):
        return None
    if feature.type == "category" and 0 <= value < len(feature.categories):
        return feature.categories[int(value)]
    if feature.type == "flag":
        return bool(value)
    return float(value)
