"""Reading of feature sets from TOML, or from their canonical JSON form."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scorer.errors import ConfigError
from scorer.features.canonical import canonical_json
from scorer.features.declaration import FeatureSet

MAX_BYTES = 4 << 20
"""Largest size of a file in bytes."""


class FeatureSetError(ConfigError):
    """A feature set that cannot be used. One line per mistake."""


def read_set(path: str | PathLike[str]) -> FeatureSet:
    """Read a feature set.

    Args:
        path: A TOML file; a name that ends in ``.json`` is read as JSON.

    Raises:
        FeatureSetError: The file cannot be read, or breaks a rule.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise FeatureSetError(f"{file}: it cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise FeatureSetError(f"{file}: it has {len(content)} bytes; at most {MAX_BYTES} are allowed")
    try:
        text = content.decode()
        document = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        form = "JSON" if file.suffix == ".json" else "TOML"
        raise FeatureSetError(f"{file}: it is not {form}: {error}; correct the file") from None
    return parse_set(document, str(file))


def feature_definition(path: str | PathLike[str]) -> Any:
    """Read a feature set, and return its canonical form, as servers take it.

    Args:
        path: A TOML or JSON file, as for `read_set`.

    Raises:
        FeatureSetError: The file cannot be read, or breaks a rule.
    """
    return json.loads(canonical_json(read_set(path)))


def parse_set(document: Mapping[str, Any], where: str = "feature set") -> FeatureSet:
    """Return the feature set of a document.

    Args:
        document: The keys of the declaration.
        where: Name of the source, for messages.

    Raises:
        FeatureSetError: The document breaks a rule.
    """
    try:
        return FeatureSet.model_validate(document)
    except ValidationError as error:
        lines = [f"{where}: {_mistake(one, document)}" for one in error.errors(include_url=False)]
        raise FeatureSetError("\n".join(lines)) from None


def _mistake(one: Any, document: Mapping[str, Any]) -> str:
    places = list(one["loc"])
    shown = ""
    if len(places) > 1 and places[0] == "features" and isinstance(places[1], int):
        name = document["features"][places[1]]
        name = name.get("name") if isinstance(name, Mapping) else None
        shown = f'feature "{name}"' if name else f"feature {places[1] + 1}"
        places = places[2:]
    key = ".".join(str(place) for place in places)
    message = str(one["msg"]).removeprefix("Value error, ")
    if one["type"] == "extra_forbidden":
        message = "the key is unknown; correct or remove it"
    elif one["type"] == "missing":
        message = "the key is missing; add it"
    return ": ".join(part for part in (shown, key, message) if part)
