"""Computed features of a bundle: the columns whose values the server reads from a feature set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scorer.bundle.models import SchemaFile
from scorer.errors import BundleError

FEATURES = "features.json"


@dataclass(frozen=True)
class ComputedFeatures:
    """A feature set, and the columns of the schema that its features fill.

    A request need not state these columns: the server computes them from recorded events. They are numbers
    without minimum and maximum that may be missing.
    """

    definition: bytes | Mapping[str, Any]
    """The definition of the set in its canonical JSON form."""
    columns: Mapping[str, str]
    """Name of the feature of the set, by column of the schema."""


def features_file(computed: ComputedFeatures, schema: SchemaFile) -> bytes:
    """Return the content of ``features.json``.

    Raises:
        BundleError: The definition is not JSON, a column or a feature does not exist, or the schema limits
            the values of a column.
    """
    definition = _definition(computed.definition)
    declared = {
        one.get("name") for one in definition.get("features", []) if isinstance(one, dict) and "name" in one
    }
    columns = {feature.name: feature for feature in schema.features}
    if not computed.columns:
        raise BundleError("computed features: no column is named; name at least one, or leave them out")
    for column, feature in computed.columns.items():
        known = columns.get(column)
        if known is None:
            raise BundleError(f'computed features: the schema has no column "{column}"; correct the name')
        if feature not in declared:
            raise BundleError(
                f'computed features: column "{column}": set "{definition.get("name")}" has no feature '
                f'"{feature}"; correct the name'
            )
        if (known.type, known.missing, known.minimum, known.maximum) != ("number", "allow", None, None):
            raise BundleError(
                f'computed features: column "{column}" is a number that may be missing, without minimum and '
                "maximum; correct the schema"
            )
    repeated = len(computed.columns) - len(set(computed.columns.values()))
    if repeated:
        raise BundleError("computed features: a feature fills two columns; keep one of them")
    content = {"columns": dict(computed.columns), "set": definition}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _definition(given: bytes | Mapping[str, Any]) -> dict[str, Any]:
    try:
        read = json.loads(given) if isinstance(given, bytes) else dict(given)
    except ValueError as error:
        raise BundleError(f"computed features: the definition is not JSON: {error}") from None
    if not isinstance(read, dict) or not read.get("name"):
        raise BundleError(
            "computed features: the definition is not that of a feature set; build it from TOML"
        )
    return read
