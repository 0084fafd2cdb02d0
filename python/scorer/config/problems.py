"""Conversion of pydantic's validation errors to one line each: file and line, key, rule and remedy."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args

from pydantic import BaseModel

from scorer.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Keys and indices from the root of a file to a value."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One error in the settings."""

    line: int
    """Line in the file, from 1; 0 if the file has no line for it."""
    where: str
    """``scorer.toml:12`` or ``environment variable SCORER_...``."""
    key: str
    """Dotted key path; empty if the problem is with the file as a whole."""
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


class InvalidSettingsError(ConfigError):
    """Settings that are not valid. ``problems`` lists all errors."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))


def dotted(path: KeyPath) -> str:
    """Return a key path as TOML writes it: ``checkpoints."fraud.checkout".kind``."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
            continue
        bare = key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key)
        text += ("." if text else "") + (key if bare else json.dumps(key, ensure_ascii=False))
    return text


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean" clause, or a list of up to 12 known names, or "" if no names are known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{close[0]}"?'
    if not names:
        return ""
    shown = ", ".join(names[:12])
    return f"known are: {shown}" + (", ..." if len(names) > 12 else "")


def describe(error: Mapping[str, Any], root: type[BaseModel]) -> tuple[KeyPath, str]:
    """Return the key path of a pydantic error, and a message with the rule and the remedy.

    Args:
        error: An entry of `ValidationError.errors()`.
        root: The model that was validated.
    """
    location: KeyPath = tuple(error["loc"])
    if location and location[-1] == "[key]":
        location = location[:-1]
    return location, _message(error, location, root)


def _message(error: Mapping[str, Any], location: KeyPath, root: type[BaseModel]) -> str:
    kind: str = error["type"]
    context: Mapping[str, Any] = error.get("ctx") or {}
    value = _shown(error.get("input"))
    if kind in _LIMITS:
        limit, words = _LIMITS[kind]
        return f"{value} is out of range; it must be {words} {context[limit]}"
    if kind in _TYPES:
        return f"{value} is not {_TYPES[kind]}"
    messages: dict[str, Callable[[], str]] = {
        "extra_forbidden": lambda: f"unknown key; {_known(root, location)}",
        "unexpected_keyword_argument": lambda: f"unknown key; {_known(root, location)}",
        "missing": lambda: f"required, but not set; add {location[-1]}",
        "value_error": lambda: str(context.get("error", error["msg"])),
        "literal_error": lambda: f"{value} is not one of {context['expected']}",
        "string_pattern_mismatch": lambda: _pattern_message(error, value),
        "too_short": lambda: _empty_message(location),
        "string_too_short": lambda: "the text is empty; write a value or leave the key out",
    }
    return messages[kind]() if kind in messages else str(error["msg"])


def _known(root: type[BaseModel], location: KeyPath) -> str:
    return nearest(str(location[-1]), _keys_at(root, location[:-1])) or "remove it"


_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}
_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": 'a text; write it in "quotes"',
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dataclass_type": "a table",
    "path_type": 'a path; write it in "quotes"',
    "is_instance_of": 'a path; write it in "quotes"',
}


def _empty_message(location: KeyPath) -> str:
    if location == ("checkpoints",):
        return 'no checkpoint is defined; add a table such as [checkpoints."fraud.checkout"]'
    return "the list is empty; add an entry or leave the key out"


def _pattern_message(error: Mapping[str, Any], value: str) -> str:
    from scorer.config.fields import NAME_RULE

    if "mlflow:" in str(error["ctx"]["pattern"]):
        return f'{value} is not a registry\'s address; write "mlflow:http://host:port", without credentials'
    if "@" in str(error["ctx"]["pattern"]):
        return f'{value} is not an alias; write name@alias, for example "fraud-checkout@live"'
    return f"{value} is not a name: {NAME_RULE}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(root: type[BaseModel], path: KeyPath) -> list[str]:
    """Return the keys that the model has at a path."""
    at: Any = root
    for key in path:
        if key in _fields_of(at):
            at = model_of(_fields_of(at)[str(key)])
        # Otherwise the key is a name or an index in a collection whose values share one model.
    return list(_fields_of(at))


def _fields_of(model: Any) -> Mapping[str, Any]:
    """Return the fields of a section with their types; empty if the type is not a section."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {field.name: field.type for field in fields(model)} if is_dataclass(model) else {}


def model_of(annotation: Any) -> Any:
    """Return the section ``X`` of a type ``X``, ``X | None`` or ``dict[str, X]``; None if there is none."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    for argument in get_args(annotation):
        found = model_of(argument)
        if found is not None:
            return found
    return None
