"""What a push needs, whichever registry it goes to: that the bundle is one, and who pushes it."""

from __future__ import annotations

import getpass
import os
from pathlib import Path


def user() -> str:
    """The name of this process's user, or its number where it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def verified(directory: Path) -> str:
    """The digest of a bundle that passes every check of loading one.

    Raises:
        BundleError: it does not.
    """
    from scorer.bundle import verify

    return str(verify(directory).digest)
