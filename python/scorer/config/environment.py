"""``SCORER_`` environment variables, which override the settings file.

``SCORER_SERVER__LISTEN`` sets ``server.listen``: two underscores stand for a dot. The name of a checkpoint is
written in upper case with ``_`` for every character that is not a letter or digit, as in
``SCORER_CHECKPOINTS__FRAUD_CHECKOUT__P99_MS``. The file must define the checkpoint.

Variables without two underscores are ignored: Kubernetes sets ``SCORER_PORT``, ``SCORER_SERVICE_HOST`` and
others for a Service with the name scorer.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from scorer.config.model import CheckpointSettings, Settings
from scorer.config.problems import KeyPath, Problem, nearest

PREFIX = "SCORER_"


def overlay(
    document: dict[str, Any], environment: Mapping[str, str]
) -> tuple[dict[KeyPath, str], list[Problem]]:
    """Write the values of environment variables into a parsed settings file.

    Args:
        document: The parsed file, which is changed in place.
        environment: The environment variables.

    Returns:
        The variable that set each key path, and the problems of the other variables.
    """
    origins: dict[KeyPath, str] = {}
    problems: list[Problem] = []
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or "__" not in variable:
            continue
        names = variable.removeprefix(PREFIX).split("__")
        found = _find(names, document)
        if isinstance(found, str):
            problems.append(Problem(0, f"environment variable {variable}", "", found))
            continue
        path, annotation = found
        if not _put(document, path, _value(environment[variable], annotation)):
            # The file has a value instead of a table at this path, which validation reports.
            continue
        origins[path] = variable
    return origins, problems


def variable_of(path: KeyPath) -> str:
    """Return the name of the environment variable that sets a key path."""
    return PREFIX + "__".join(_shape(str(key)) for key in path)


def _find(names: list[str], document: Mapping[str, Any]) -> tuple[KeyPath, Any] | str:
    """Return the key path and type that the parts of a variable's name stand for, or an error message."""
    every = list(_every_setting(document))
    matches = [
        (path, annotation) for path, annotation in every if [_shape(str(key)) for key in path] == names
    ]
    if not matches:
        return f"sets nothing; {_hint(names, [path for path, _ in every])}"
    if len(matches) > 1:
        both = " and ".join(f'"{path[1]}"' for path, _ in matches)
        return f"means both checkpoint {both}; change the file instead"
    return matches[0]


def _hint(names: list[str], paths: list[KeyPath]) -> str:
    is_checkpoint = names[0] == "CHECKPOINTS"
    depth = 2 if is_checkpoint else 1
    siblings = [path for path in paths if [_shape(str(key)) for key in path[:depth]] == names[:depth]]
    if siblings:
        # The section exists, so the key is probably misspelt.
        return nearest(PREFIX + "__".join(names), map(variable_of, siblings))
    if is_checkpoint:
        return "a checkpoint can be changed by a variable only if the file defines it"
    return "`scorer config example` lists the keys"


def _every_setting(document: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    for section, field in Settings.model_fields.items():
        if section == "checkpoints":
            continue
        yield from _fields_of(field.annotation, (section,))
    checkpoints = document.get("checkpoints")
    for name in checkpoints if isinstance(checkpoints, dict) else ():
        yield from _fields_of(CheckpointSettings, ("checkpoints", name))


def _fields_of(model: Any, prefix: KeyPath) -> Iterable[tuple[KeyPath, Any]]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from _fields_of(field.annotation, (*prefix, name))
            else:
                yield (*prefix, name), field.annotation


def _shape(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _value(text: str, annotation: Any) -> Any:
    """Parse a value as TOML unless the setting is a text. A value that is not valid TOML is a text."""
    if not _is_text(annotation):
        try:
            return tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            pass
    return text


def _is_text(annotation: Any) -> bool:
    return get_origin(annotation) is not list and not any(
        kind in (int, float, bool) or _is_model(kind) for kind in (annotation, *get_args(annotation))
    )


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _put(document: dict[str, Any], path: KeyPath, value: Any) -> bool:
    at: Any = document
    for key in path[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            return False
    at[path[-1]] = value
    return True
