"""The canonical JSON form of feature sets, and digests of it.

The form has sorted keys, no spaces, durations in seconds and all defaults. The crate `scorer-features` writes
the same bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from scorer.features.declaration import DeclaredFeature, EventKind, FeatureSet

_EXACT = 2.0**53


def canonical_json(declared: FeatureSet) -> bytes:
    """Return the canonical form of a set."""
    return _bytes(
        {
            "name": declared.name,
            "version": declared.version,
            "owner": declared.owner,
            "text": declared.text,
            "events": {kind: _event(event) for kind, event in declared.events.items()},
            "features": [_feature(feature) for feature in declared.features],
        }
    )


def set_digest(declared: FeatureSet) -> str:
    """Return the SHA-256 of the canonical form in hexadecimal digits."""
    return hashlib.sha256(canonical_json(declared)).hexdigest()


def feature_digest(declared: FeatureSet, name: str) -> str:
    """Return the SHA-256 of what determines the values of a feature; its name and text do not.

    Raises:
        KeyError: The set has no such feature.
    """
    return hashlib.sha256(_bytes(_meaning(declared, declared.feature(name)))).hexdigest()


def _bytes(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _meaning(declared: FeatureSet, feature: DeclaredFeature) -> dict[str, Any]:
    definition = _feature(feature)
    del definition["name"], definition["text"]
    if feature.ratio is None:
        return {"event": _event(declared.events[feature.event or ""]), "feature": definition}
    del definition["ratio"]
    parts = [_meaning(declared, declared.feature(part)) for part in feature.ratio]
    return {"feature": definition, "parts": parts}


def _event(event: EventKind) -> dict[str, Any]:
    return {
        "entities": list(event.entities),
        "numbers": list(event.numbers),
        "texts": list(event.texts),
        "accept_late": event.accept_late,
    }


def _feature(feature: DeclaredFeature) -> dict[str, Any]:
    if feature.ratio is not None:
        return {
            "name": feature.name,
            "text": feature.text,
            "ratio": list(feature.ratio),
            "default": _number(feature.default),
        }
    return {
        "name": feature.name,
        "text": feature.text,
        "entity": feature.entity,
        "event": feature.event,
        "aggregate": feature.aggregate,
        "of": feature.of,
        "window": feature.window,
        "half_life": feature.half_life,
        "delay": feature.delay,
        "tile": None if feature.is_decayed else feature.tile,
        "where": {field: list(values) for field, values in feature.where.items()},
        "default": _number(feature.default),
    }


def _number(value: float | None) -> float | int | None:
    """Return a whole number without a fraction, so that 0 and 0.0 have the same form."""
    if value is None:
        return None
    return int(value) if value.is_integer() and abs(value) < _EXACT else value
