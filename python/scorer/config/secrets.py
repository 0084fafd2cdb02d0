"""Secrets in settings, which are environment variables rather than text of a file."""

from __future__ import annotations

import os
import re
from typing import Any

_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


def from_environment(value: Any) -> Any:
    """Return a table of settings in which values of the form `$NAME` are those of environment variables.

    Raises:
        ValueError: A variable is not set.
    """
    if not isinstance(value, dict):
        return value
    found = {}
    for key, text in value.items():
        variable = _VARIABLE.fullmatch(text) if isinstance(text, str) else None
        if variable and not os.environ.get(variable[1]):
            raise ValueError(f"{key}: environment variable {variable[1]} is not set; set it")
        found[key] = os.environ[variable[1]] if variable else text
    return found
