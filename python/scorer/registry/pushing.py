"""Functions that a push to any kind of registry uses: the check of the bundle, and the user's name."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from scorer import bridge
from scorer.errors import BundleError, LoadError
from scorer.registry import files

LIST_KIND = "list"
"""Kind of the manifest of a version of an external list."""


def user() -> str:
    """Return the name of this process's user, or ``uid <number>`` if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def verified(directory: Path) -> str:
    """Run every check that a server runs when it loads a bundle or a list, and return the digest.

    Raises:
        BundleError: A check failed.
    """
    if files.read_manifest(directory).get("kind") == LIST_KIND:
        try:
            return bridge.verify_list(directory)
        except LoadError as error:
            raise BundleError(str(error)) from None
    from scorer.bundle import verify

    return str(verify(directory).digest)
