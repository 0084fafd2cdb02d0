"""Comparison of feature values that a server used with the offline values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from scorer.features.building import MEMORY_MB, values_of
from scorer.features.declaration import FeatureSet
from scorer.features.events import EventTable

if TYPE_CHECKING:
    import pyarrow as pa

TOLERANCE = 1e-6
"""Two values are equal if they differ by at most this, relative to the larger one or absolute below 1."""
EXAMPLES = 5


@dataclass(frozen=True)
class FeatureParity:
    """The comparison of one feature."""

    feature: str
    compared: int
    equal: int
    largest: float
    """Largest relative difference; infinite if one of two values is missing."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """The decisions with the largest differences: id, served and offline value."""

    @property
    def share(self) -> float:
        """Share of values that are equal."""
        return self.equal / self.compared if self.compared else 0.0


@dataclass(frozen=True)
class Parity:
    """The comparison of a feature set."""

    label: str
    decisions: int
    features: list[FeatureParity]

    @property
    def passed(self) -> bool:
        """Whether all values are equal and there is at least one."""
        compared = sum(one.compared for one in self.features)
        return compared > 0 and all(one.equal == one.compared for one in self.features)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON; an infinite difference is null."""
        features = [asdict(one) | {"share": one.share} for one in self.features]
        for one in features:
            one["largest"] = one["largest"] if math.isfinite(one["largest"]) else None
        return {"set": self.label, "passed": self.passed, "decisions": self.decisions, "features": features}


def compare(
    declared: FeatureSet,
    events: Mapping[str, EventTable],
    logged: pa.Table,
    *,
    memory_mb: int = MEMORY_MB,
) -> Parity:
    """Compute features offline and compare them with served values.

    Args:
        declared: The feature set.
        events: The events of each kind.
        logged: A row for each decision: id, time (microseconds since 1970), a column for each entity, and
            `served FEATURE` for each compared feature. A null is not compared; a missing value is NaN.
        memory_mb: Largest memory of DuckDB, MB.
    """
    found = values_of(declared, events, logged, memory_mb=memory_mb)
    names = [one.name for one in declared.features if f"served {one.name}" in logged.column_names]
    return Parity(declared.label, len(logged), [_feature(found, name) for name in names])


def _feature(found: pa.Table, name: str) -> FeatureParity:
    import numpy as np
    import pyarrow.compute as pc

    stated = pc.is_valid(found[f"served {name}"]).to_numpy()
    served = found[f"served {name}"].to_numpy()[stated].astype(np.float64)
    offline = found[name].to_numpy()[stated].astype(np.float64)
    ids = found["id"].filter(pc.is_valid(found[f"served {name}"]))
    scale = np.maximum(1.0, np.maximum(np.abs(served), np.abs(offline)))
    difference = np.abs(served - offline) / scale
    difference[np.isnan(served) != np.isnan(offline)] = math.inf
    difference[np.isnan(served) & np.isnan(offline)] = 0.0
    difference[served == offline] = 0.0
    equal = difference <= TOLERANCE
    worst = [place for place in np.argsort(-difference, kind="stable")[:EXAMPLES] if not equal[place]]
    examples = [
        {"id": ids[int(at)].as_py(), "served": _shown(served[at]), "offline": _shown(offline[at])}
        for at in worst
    ]
    largest = float(difference.max()) if len(difference) else 0.0
    return FeatureParity(name, len(difference), int(equal.sum()), largest, examples)


def _shown(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
