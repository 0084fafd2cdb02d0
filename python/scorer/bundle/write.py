"""Puts a bundle's files on disk: wholly there, synced, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scorer.bundle.check import verify
from scorer.durable import sync_directory
from scorer.errors import BundleError


def write_bundle(output: Path, files: Mapping[str, bytes]) -> str:
    """Writes, verifies what was written, and only then gives the directory its name.

    Returns:
        The digest.
    """
    if output.exists():
        raise BundleError(f'"{output}" exists; bundles are immutable, choose another directory or remove it')
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the rename stays within one file system.
    temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        for name, content in files.items():
            with (temporary / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        temporary.chmod(0o755)
        sync_directory(temporary)
        digest = verify(temporary).digest
        temporary.rename(output)
        sync_directory(output.parent)
    except OSError as error:
        raise BundleError(f'"{output}" cannot be written: {error.strerror or error}') from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest
