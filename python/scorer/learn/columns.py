"""A model's inputs as the request schema describes them: names, types, dictionaries, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Column:
    """One input of a model.

    Attributes:
        name: as requests give it.
        type: a number, a category (sent as text, seen by the model as its
            position in `categories`) or a flag (0 or 1).
        categories: the dictionary of a category.
        minimum: least value allowed, where there is one.
        maximum: largest value allowed, where there is one.
        missing: whether a request may leave it out; the model then sees NaN.
        unknown_category: whether a text outside the dictionary is refused or
            counts as missing.
    """

    name: str
    type: Literal["number", "category", "flag"] = "number"
    categories: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    missing: Literal["allow", "refuse"] = "refuse"
    unknown_category: Literal["refuse", "missing"] = "refuse"

    def as_feature(self) -> dict[str, Any]:
        """As in a bundle's schema.json."""
        feature: dict[str, Any] = {"name": self.name, "type": self.type, "missing": self.missing}
        if self.type == "category":
            feature |= {"categories": list(self.categories), "unknown_category": self.unknown_category}
        if self.minimum is not None:
            feature["minimum"] = self.minimum
        if self.maximum is not None:
            feature["maximum"] = self.maximum
        return feature

    def named(self, value: float) -> float | str | bool:
        """A value of the dense row as a request by name carries it."""
        if self.type == "category":
            return self.categories[int(value)]
        return bool(value) if self.type == "flag" else float(value)


def xgboost_types(columns: Sequence[Column]) -> list[str]:
    """XGBoost's `feature_types` for these columns."""
    return ["c" if column.type == "category" else "q" for column in columns]


def named_row(columns: Sequence[Column], row: npt.NDArray[np.float32]) -> dict[str, float | str | bool]:
    """A dense row as features by name."""
    return {column.name: column.named(float(value)) for column, value in zip(columns, row, strict=True)}
