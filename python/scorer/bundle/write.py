"""Puts a bundle's files on disk: wholly there, synced, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from scorer.bundle.check import verify
from scorer.bundle.signing import configured_keys, sign
from scorer.durable import sync_directory
from scorer.errors import BundleError


@dataclass(frozen=True)
class WrittenBundle:
    """Path and digest of a bundle that was written to disk."""

    path: Path
    digest: str


def write_bundle(output: Path, files: Mapping[str, bytes], kept: Mapping[str, Path] | None = None) -> str:
    """Writes, verifies and (if keys are configured) signs a bundle, and then gives its directory the name.

    Args:
        output: The directory to make.
        files: Content by name.
        kept: Files of another bundle by name: linked where the file system can, else copied.

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
        for name, source in (kept or {}).items():
            _keep(source, temporary / name)
        temporary.chmod(0o755)
        sync_directory(temporary)
        digest = verify(temporary).digest
        if keys := configured_keys():
            sign(temporary, keys)
        temporary.rename(output)
        sync_directory(output.parent)
    except OSError as error:
        raise BundleError(f'"{output}" cannot be written: {error.strerror or error}') from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def _keep(source: Path, target: Path) -> None:
    try:
        # Bundles are immutable: one file can be part of several.
        os.link(source, target, follow_symlinks=False)
    except OSError:
        # Another file system, or one without links, or a file that is not ours to link.
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def timestamp(created_at: datetime | None) -> str:
    """The time of building as a manifest states it; default: now."""
    created = created_at or datetime.now(UTC)
    return created.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
