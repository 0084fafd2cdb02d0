"""Functions that a push to any kind of registry uses: the check of the bundle, and the user's name."""

from __future__ import annotations

import getpass
import os
from pathlib import Path


def user() -> str:
    """Return the name of this process's user, or ``uid <number>`` if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def verified(directory: Path) -> str:
    """Run every check that a server runs when it loads a bundle, and return the bundle's digest.

    Raises:
        BundleError: A check failed.
    """
    from scorer.bundle import verify

    return str(verify(directory).digest)
