"""Files with one result as a JSON document: comparisons of versions, analyses of adoption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scorer.durable import write_atomically
from scorer.learn.errors import DataError


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, in one step.

    Raises:
        DataError: The file cannot be written.
    """
    try:
        write_atomically(path, json.dumps(document, allow_nan=False).encode())
    except OSError as error:
        raise DataError(f'"{path}" cannot be written: {error.strerror or error}') from None


def read_document(path: Path, *, most_bytes: int, what: str, command: str) -> Mapping[str, Any]:
    """Read a file of `write_document`.

    Args:
        path: The file.
        most_bytes: Largest size of such a file.
        what: What the file contains, for messages: `comparison`.
        command: The command that writes it, for messages.

    Raises:
        DataError: The file cannot be read, is too large, or has no document.
    """
    try:
        if path.stat().st_size > most_bytes:
            raise DataError(f'"{path}" has more than {most_bytes >> 20} MiB; it is no {what}')
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f'"{path}" cannot be read: {error.strerror or error}') from None
    except ValueError:
        raise DataError(f'"{path}" is not JSON; write it with `{command}`') from None
    if not isinstance(found, dict):
        raise DataError(f'"{path}" is no {what}; write it with `{command}`')
    return found
