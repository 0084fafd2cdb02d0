"""Writing values and rules of a rule set as TOML text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

_WIDTH = 110


def table_text(kind: str, fields: Mapping[str, Any], about: str = "") -> str:
    """Return one table of a rule set, such as ``[[rules]]``, with a comment above it.

    Args:
        kind: ``values`` or ``rules``.
        fields: The table's keys with their values. A key with the value None is left out.
        about: Text of the comment; empty for none.
    """
    lines = [f"[[{kind}]]"]
    lines += [f"{_key(name)} = {toml_text(value)}" for name, value in fields.items() if value is not None]
    return "\n".join([*comment(about), *lines]) + "\n"


def comment(text: str) -> list[str]:
    """Return the lines of a comment, wrapped."""
    lines = [wrapped for line in text.splitlines() for wrapped in textwrap.wrap(line, _WIDTH - 2) or [""]]
    return [f"# {line}".rstrip() for line in lines]


def toml_text(value: Any) -> str:
    """Return a string, number, bool, date, list or table of these as TOML.

    Only a string with several lines has several lines.
    """
    match value:
        case bool():
            text = "true" if value else "false"
        case int() | float():
            text = repr(value)
        case datetime() | date():
            text = value.isoformat()
        case str():
            text = _string(value)
        case Mapping():
            inside = ", ".join(f"{_key(name)} = {toml_text(item)}" for name, item in value.items())
            text = f"{{ {inside} }}"
        case Sequence():
            text = f"[{', '.join(map(toml_text, value))}]"
        case _:
            msg = f"{type(value).__name__} has no form in TOML"
            raise TypeError(msg)
    return text


def _string(value: str) -> str:
    if "\n" in value and "'''" not in value and value.replace("\n", " ").isprintable():
        return f"'''\n{value}'''"
    if '"' in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    bare = name.replace("_", "").replace("-", "")
    return name if bare.isascii() and bare.isalnum() else json.dumps(name, ensure_ascii=False)
