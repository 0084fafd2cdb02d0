"""Settings: a typed TOML file (``scorer.toml``) plus ``SCORER_`` environment variables.

Relative paths are relative to the folder of the file. Every mistake is reported at once,
each with its key and line. Nothing here opens a port or touches the disk beyond the file.
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
        environment: In place of ``os.environ``.
        role: In place of ``server.role``.

    Raises:
        InvalidSettingsError: With every fault found.
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
        text: TOML.
        where: Name of the file in messages.
        base: Folder that relative paths start from; the working directory unless given.
        environment: In place of ``os.environ``.
        role: In place of ``server.role``.

    Raises:
        InvalidSettingsError: With every fault found.
    """
    return _settings(SettingsSource(text, where=where, base=base), environment, role)


def _settings(source: SettingsSource, environment: Mapping[str, str] | None, role: str | None) -> Settings:
    document = source.document
    variables, problems = _environment.overlay(document, os.environ if environment is None else environment)
    source.origins = {path: f"environment variable {name}" for path, name in variables.items()}
    for section in ("server", "registry", "log", "outcomes", "learning", "checkpoints"):
        # An absent section still needs the base directory for its default paths.
        document.setdefault(section, {})
    if role is not None and isinstance(document["server"], dict):
        document["server"]["role"] = role
        source.origins["server", "role"] = "--role"
    problems += [
        source.problem(path, "required, but not set; add alias") for path in _without_alias(document)
    ]
    return source.validate(Settings, problems=problems)


def _without_alias(document: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield checkpoints of a live server without an alias, so that they are reported with other faults."""
    server, checkpoints = document["server"], document["checkpoints"]
    if (isinstance(server, dict) and server.get("role") == "shadow") or not isinstance(checkpoints, dict):
        return
    for name, checkpoint in checkpoints.items():
        if isinstance(checkpoint, dict) and "alias" not in checkpoint:
            yield ("checkpoints", name, "alias")
