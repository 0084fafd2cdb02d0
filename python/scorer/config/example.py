"""Prints a complete, commented settings file from the model itself."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scorer.config.model import CheckpointSettings, Settings

_HEAD = """\
# Settings of `scorer serve --config scorer.toml`.
# Every key is at its default; what is commented out is an example.
# Relative paths start from this file's folder.
# Any key can be set by an environment variable, two underscores for a dot: SCORER_SERVER__LISTEN,
# SCORER_CHECKPOINTS__FRAUD_CHECKOUT__P99_MS. Check this file: `scorer config check scorer.toml`.
"""

_CHECKPOINTS: dict[str, dict[str, Any]] = {
    "fraud.checkout": {
        "kind": "score",
        "alias": "fraud-checkout@live",
        "durability": "async",
        "fallback": {"decision": "review", "score": 0.5},
    },
    "action.authorise": {
        "kind": "action",
        "alias": "action-authorise@live",
        "durability": "written",
        "fallback": None,
    },
}


def example() -> str:
    """The text of the file."""
    parts = [_HEAD]
    for name, field in Settings.model_fields.items():
        model = field.annotation
        if name != "checkpoints" and isinstance(model, type) and issubclass(model, BaseModel):
            parts.append(
                f"# {model.__doc__}\n[{name}]\n"
                + "\n".join(_entry(k, f) for k, f in model.model_fields.items())
            )
    for index, (name, values) in enumerate(_CHECKPOINTS.items()):
        # The keys are explained once; the second checkpoint shows only what differs.
        entries = [
            _entry(key, f, values, explain=index == 0) for key, f in CheckpointSettings.model_fields.items()
        ]
        heading = (
            "# Named decision points of the customer journey, each with what it serves.\n"
            if index == 0
            else ""
        )
        parts.append(f'{heading}[checkpoints."{name}"]\n' + "\n".join(entries))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


_UNSET = object()


def _entry(key: str, field: FieldInfo, values: dict[str, Any] | None = None, *, explain: bool = True) -> str:
    value = (values or {}).get(key, _UNSET)
    shown = field.default if value is _UNSET else value
    comment = shown is None
    if comment:
        shown = (field.examples or [{"action": "<an action's id>"} if key == "fallback" else "off"])[0]
    lines = textwrap.wrap(field.description or "", 104) if explain else []
    prefix = "# " if comment else ""
    return "\n".join([*(f"# {line}" for line in lines), f"{prefix}{key} = {_toml(shown)}"])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    return json.dumps(str(value) if isinstance(value, Path) else value)
