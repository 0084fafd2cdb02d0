"""Functions that every kind of registry uses: checks of pushed and removed objects, and the user's name."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from scorer import bridge
from scorer.errors import BundleError, LoadError, RegistryError
from scorer.registry import files
from scorer.registry.base import BundleRecord

LIST_KIND = "list"
"""Kind of the manifest of a version of an external list."""


def user() -> str:
    """Return the name of this process's user, or ``uid <number>`` if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def check_removable(record: BundleRecord) -> None:
    """Check that a stored object may be removed: it is a version of a list, and no alias points to it.

    Raises:
        RegistryError: It is not.
    """
    if record.kind != LIST_KIND:
        raise RegistryError(
            f"{record.digest[:19]} is a bundle of kind {record.kind}; only versions of lists are removed"
        )
    if record.aliases:
        raise RegistryError(
            f"{record.digest[:19]} is in use by {', '.join(record.aliases)}; move the alias first"
        )


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
