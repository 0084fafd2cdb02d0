"""Feature sets: declarations of features, their values for past decisions, and parity with served values.

Importing this package loads neither DuckDB nor pyarrow.
"""

from __future__ import annotations

from scorer.features.canonical import canonical_json, feature_digest, set_digest
from scorer.features.declaration import DeclaredFeature, EventKind, FeatureSet
from scorer.features.reading import FeatureSetError, feature_definition, parse_set, read_set

__all__ = [
    "DeclaredFeature",
    "EventKind",
    "FeatureSet",
    "FeatureSetError",
    "canonical_json",
    "feature_definition",
    "feature_digest",
    "parse_set",
    "read_set",
    "set_digest",
]
