"""Prints a complete, commented `platform.toml` from the settings' own models."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scorer.release.settings import CheckpointSettings, FleetMember, PlatformSettings

_HEAD = """\
# Settings of `scorer platform serve --config platform.toml`.
# Every key is at its default; what is commented out is an example.
# Relative paths start from this file's folder.
"""

_FLEET: Mapping[str, Any] = {"name": "scorer-1", "control": "127.0.0.1:7701", "log": "decisions"}
_CHECKPOINTS: Mapping[str, Mapping[str, Any]] = {
    "fraud.checkout": {"alias": "fraud-checkout@live"},
    "action.authorise": {"alias": "action-authorise@live"},
}


def example() -> str:
    """The text of the file."""
    parts = [
        _HEAD,
        _table("[platform]", PlatformSettings, {}),
        _table("[[fleet]]", FleetMember, _FLEET),
    ]
    for index, (name, values) in enumerate(_CHECKPOINTS.items()):
        heading = f'[checkpoints."{name}"]'
        if index == 0:
            parts.append(_table(heading, CheckpointSettings, values))
        else:
            # The keys are explained once; a further checkpoint shows only what it must say.
            parts.append("\n".join([heading, *(f"{key} = {_toml(value)}" for key, value in values.items())]))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _table(heading: str, model: type[BaseModel], values: Mapping[str, Any]) -> str:
    about = (model.__doc__ or "").strip().splitlines()[0]
    return f"# {about}\n{heading}\n" + "\n".join(
        _entry(key, field, values) for key, field in model.model_fields.items()
    )


def _entry(key: str, field: FieldInfo, values: Mapping[str, Any]) -> str:
    value = values.get(key, field.default)
    comment = value is None or (value == () and bool(field.examples))
    if comment:
        value = (field.examples or ["off"])[0]
    lines = textwrap.wrap(field.description or "", 104)
    prefix = "# " if comment else ""
    return "\n".join([*(f"# {line}" for line in lines), f"{prefix}{key} = {_toml(value)}"])


def _toml(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return _toml(asdict(value))
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)
