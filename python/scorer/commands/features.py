"""Files with the features of one request, which commands read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from scorer.errors import ScorerError


class FeaturesFileError(ScorerError):
    """The file cannot be read, or is not a JSON object."""


def read_features(file: Path) -> dict[str, Any]:
    """Return the features of a file by name.

    Args:
        file: A JSON file; "-" reads standard input.

    Raises:
        FeaturesFileError: The file cannot be read, or is not a JSON object.
    """
    try:
        text = typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text("utf-8")
        found = json.loads(text)
    except OSError as error:
        raise FeaturesFileError(f'payment "{file}": it cannot be read: {error.strerror}') from error
    except ValueError as error:
        raise FeaturesFileError(f'payment "{file}": it is no JSON: {error}; correct the file') from error
    if not isinstance(found, dict):
        raise FeaturesFileError(f'payment "{file}": it is no JSON object; write features by name')
    return found
