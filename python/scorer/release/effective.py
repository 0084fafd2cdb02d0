"""The settings that a platform runs with, for display. Secrets are never part of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from scorer.release.settings import PlatformFile

_PASSWORD = re.compile(r"(?<=://)([^/@]*?)(:[^/@]*)?@")
_SECRET = re.compile(r"password|secret|token", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of `platform.toml`, or its default."""

    section: str
    key: str
    value: str
    """As JSON or text; what could be secret is replaced."""
    is_default: bool
    description: str


def effective(settings: PlatformFile) -> list[Setting]:
    """Return the settings of the process's sections, in the order of the file.

    Servers and checkpoints are left out: they have pages of their own. Of a secret's file, only the path is
    shown; a database URL has no password.
    """
    found = []
    for section, field in type(settings).model_fields.items():
        model = getattr(settings, section)
        if section in ("fleet", "checkpoints") or not isinstance(model, BaseModel):
            continue
        for key, info in type(model).model_fields.items():
            value = getattr(model, key)
            default = info.get_default(call_default_factory=True, validated_data={})
            found.append(
                Setting(
                    section=field.alias or section,
                    key=key,
                    value=_shown(key, value),
                    is_default=key not in model.model_fields_set or value == default,
                    description=info.description or "",
                )
            )
    return found


def _shown(key: str, value: Any) -> str:
    if value is None or value == "":
        return "not set"
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        if _SECRET.search(key) and not key.endswith(("_file", "_header", "_url")):
            return "set, and not shown"
        return _PASSWORD.sub(lambda one: f"{one[1]}:***@" if one[2] else one[0], value)
    return _plain(key, value)


def _plain(key: str, value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping) and key == "options":
        return ", ".join(f"{name} is set" for name in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_shown(str(key), one)}" for key, one in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_shown("", one) for one in value) or "none"
    return str(value)
