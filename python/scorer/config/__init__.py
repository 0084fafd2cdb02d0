"""Settings: a typed TOML file (``scorer.toml``) plus ``SCORER_`` environment variables.

Relative paths are relative to the folder of the file. Every mistake is reported at once,
each with its key and line. Nothing here opens a port or touches the disk beyond the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scorer.config import environment as _environment
from scorer.config import problems as _problems
from scorer.config.lines import key_lines
from scorer.config.model import (
    CheckpointSettings,
    Fallback,
    LogSettings,
    RegistrySettings,
    ServerSettings,
    Settings,
)
from scorer.config.problems import InvalidSettingsError, Problem

__all__ = [
    "CheckpointSettings",
    "Fallback",
    "InvalidSettingsError",
    "LogSettings",
    "Problem",
    "RegistrySettings",
    "ServerSettings",
    "Settings",
    "load",
    "parse",
]


def load(
    path: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    *,
    role: str | None = None,
) -> Settings:
    """Reads the settings file and lays the environment over it.

    Args:
        path: The TOML file.
        environment: In place of ``os.environ``.
        role: In place of ``server.role``.

    Raises:
        InvalidSettingsError: With every mistake found.
    """
    path = Path(path)
    where = str(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise _whole(where, "no such file; `scorer config example` prints one to start from") from None
    except IsADirectoryError:
        raise _whole(where, "is a directory; name the TOML file in it") from None
    except UnicodeDecodeError as error:
        raise _whole(where, f"byte {error.start} is not UTF-8; TOML is UTF-8 text") from None
    except OSError as error:
        raise _whole(where, f"cannot be read: {error.strerror}") from None
    return parse(text, where=where, base=path.resolve().parent, environment=environment, role=role)


def parse(
    text: str,
    *,
    where: str = "scorer.toml",
    base: Path | None = None,
    environment: Mapping[str, str] | None = None,
    role: str | None = None,
) -> Settings:
    """Reads settings from text; `where` names it in messages, `base` is what relative paths start from."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettingsError([_syntax(error, text, where)]) from None
    lines = key_lines(text)
    origins, found = _environment.overlay(document, os.environ if environment is None else environment)
    for section in ("server", "registry", "log", "learning", "checkpoints"):
        # An absent section still needs the base directory for its default paths.
        document.setdefault(section, {})
    if role is not None and isinstance(document["server"], dict):
        document["server"]["role"] = role
        origins[("server", "role")] = "--role"
    found.extend(
        _problem(path, "required, but not set; add alias", where=where, lines=lines, origins=origins)
        for path in _without_alias(document)
    )
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(document, context={"base": base or Path.cwd()})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path, message = _problems.describe(detail, Settings)
            found.append(_problem(path, message, where=where, lines=lines, origins=origins))
    if found or settings is None:
        raise InvalidSettingsError(found)
    return settings


def _without_alias(document: Mapping[str, Any]) -> Iterator[_problems.Path]:
    """What answers follows an alias; asked of the text, so that it is told together with other mistakes."""
    server, checkpoints = document["server"], document["checkpoints"]
    if (isinstance(server, dict) and server.get("role") == "shadow") or not isinstance(checkpoints, dict):
        return
    for name, checkpoint in checkpoints.items():
        if isinstance(checkpoint, dict) and "alias" not in checkpoint:
            yield ("checkpoints", name, "alias")


def _problem(
    path: _problems.Path,
    message: str,
    *,
    where: str,
    lines: Mapping[_problems.Path, int],
    origins: Mapping[_problems.Path, str],
) -> Problem:
    key = _problems.dotted(path)
    prefixes = [path[:length] for length in range(len(path), 0, -1)]
    # A variable replaces the whole value, so what the file says below that key does not count.
    for prefix in prefixes:
        if prefix in origins:
            origin = origins[prefix]
            named = origin if origin.startswith("--") else f"environment variable {origin}"
            return Problem(0, named, key, message)
    for prefix in prefixes:
        if prefix in lines:
            return Problem(lines[prefix], f"{where}:{lines[prefix]}", key, message)
    return Problem(0, where, key, message)


def _whole(where: str, message: str) -> InvalidSettingsError:
    return InvalidSettingsError([Problem(0, where, "", message)])


def _syntax(error: tomllib.TOMLDecodeError, text: str, where: str) -> Problem:
    message = str(error)
    at: Any = re.search(r"\s*\(at line (\d+), column (\d+)\)$", message)
    if at:
        line, column = int(at.group(1)), int(at.group(2))
        message = message[: at.start()]
    else:
        message = re.sub(r"\s*\(at end of document\)$", " at the end of the file", message)
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    return Problem(
        line, f"{where}:{line}:{column}", "", f"not valid TOML: {message[:1].lower()}{message[1:]}"
    )
