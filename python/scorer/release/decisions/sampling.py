"""Decisions as a sample for statistics, with the names of their features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scorer.bundle import SchemaFile
    from scorer.v1.log_pb2 import DecisionRecord

SAMPLE: Final = 5_000
"""Largest number of decisions of a sample."""


@dataclass(frozen=True, slots=True)
class SampledDecision:
    """One decision of a sample.

    Attributes:
        record: The decision.
        schema: Schema of its bundle; None: the platform does not have the bundle.
        outcomes: Its outcomes by kind.
    """

    record: DecisionRecord
    schema: SchemaFile | None
    outcomes: Mapping[str, float]

    def level(self, feature: str) -> str | float | bool | None:
        """Return the value of a feature: the level of a category, a boolean, or a number.

        Args:
            feature: Name of the feature.

        Returns:
            None if the value is missing, or withheld because the feature is sensitive.

        Raises:
            KeyError: The bundle has no such feature, or is not known.
        """
        names = [] if self.schema is None else [one.name for one in self.schema.features]
        if feature not in names or len(self.record.features) != len(names):
            raise KeyError(feature)
        assert self.schema is not None  # noqa: S101 - it has names
        at = names.index(feature)
        own, value = self.schema.features[at], self.record.features[at]
        if value != value or at in self.record.withheld:  # noqa: PLR0124 - NaN
            return None
        if own.type == "flag":
            return bool(value)
        if own.type == "category":
            code = int(value)
            return own.categories[code] if 0 <= code < len(own.categories) else None
        return float(value)
