"""Settings of a server: a typed TOML file (``scorer.toml``) and ``SCORER_`` environment variables.

Relative paths are relative to the folder of the file. All errors are reported together, each with its key and
line. This package opens no port and reads only the settings file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scorer.config import environment as _environment
from scorer.config.model import (
    CheckpointSettings,
    Fallback,
    LogSettings,
    RegistrySettings,
    ServerSettings,
    Settings,
)
from scorer.config.problems import InvalidSettingsError, KeyPath, Problem
from scorer.config.source import SettingsSource

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
    """Read a settings file and apply environment variables to it.

    Args:
        path: The TOML file.
        environment: Used instead of ``os.environ``.
        role: Used instead of ``server.role``.

    Raises:
        InvalidSettingsError: The settings are not valid. The error lists all problems.
    """
    source = SettingsSource.read(path, example="scorer config example")
    return _settings(source, environment, role)


def parse(
    text: str,
    *,
    where: str = "scorer.toml",
    base: Path | None = None,
    environment: Mapping[str, str] | None = None,
    role: str | None = None,
) -> Settings:
    """Read settings from text.

    Args:
        text: The settings in TOML.
        where: Name of the file for messages.
        base: Folder that relative paths start from; default: the working directory.
        environment: Used instead of ``os.environ``.
        role: Used instead of ``server.role``.

    Raises:
        InvalidSettingsError: The settings are not valid. The error lists all problems.
    """
    return _settings(SettingsSource(text, where=where, base=base), environment, role)


def _settings(source: SettingsSource, environment: Mapping[str, str] | None, role: str | None) -> Settings:
    document = source.document
    variables, problems = _environment.overlay(document, os.environ if environment is None else environment)
    source.origins = {path: f"environment variable {name}" for path, name in variables.items()}
    for section in ("server", "registry", "log", "outcomes", "learning", "checkpoints"):
        # A section that is absent must be validated too, because its default paths depend on the base folder.
        document.setdefault(section, {})
    if role is not None and isinstance(document["server"], dict):
        document["server"]["role"] = role
        source.origins["server", "role"] = "--role"
    problems += [
        source.problem(path, "required, but not set; add alias") for path in _without_alias(document)
    ]
    return source.validate(Settings, problems=problems)


def _without_alias(document: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the key paths of missing aliases, so that they are reported together with other problems.

    Only a live server needs aliases, so the model cannot require them.
    """
    server, checkpoints = document["server"], document["checkpoints"]
    if (isinstance(server, dict) and server.get("role") == "shadow") or not isinstance(checkpoints, dict):
        return
    for name, checkpoint in checkpoints.items():
        if isinstance(checkpoint, dict) and "alias" not in checkpoint:
            yield ("checkpoints", name, "alias")
