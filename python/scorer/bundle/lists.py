"""The files of one version of an external list, which has the form of a bundle; see docs/lists.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from scorer.bundle.check import MANIFEST
from scorer.errors import BundleError

ELEMENTS: Final = "elements.txt"
"""File of the elements, one per line."""


def list_digest(directory: Path) -> str:
    """Return the digest that the manifest of a version states, without verifying it.

    Raises:
        BundleError: The directory has no readable manifest.
    """
    try:
        return str(json.loads((directory / MANIFEST).read_bytes())["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f'"{directory / MANIFEST}" cannot be read: {error!r}; restore it') from None
