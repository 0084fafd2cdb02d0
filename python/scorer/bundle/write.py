"""Atomic writing of bundles: a bundle is either complete and synced to disk, or does not exist."""

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
    """Write a bundle to a temporary directory, verify it, sign it if keys are configured, and rename it.

    Args:
        output: The directory to create; it must not exist.
        files: Content of each file, by name.
        kept: Files of another bundle, by name. They are hard-linked if the file system supports it, and
            otherwise copied.

    Returns:
        The bundle's digest.

    Raises:
        BundleError: The directory exists or cannot be written, or the bundle is not valid.
        SignatureError: A configured key cannot be used.
    """
    if output.exists():
        raise BundleError(f'"{output}" exists; bundles are immutable, choose another directory or remove it')
    output.parent.mkdir(parents=True, exist_ok=True)
    # In the same directory as the target, so that both are on one file system and the rename is atomic.
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
        # Bundles are immutable, so several can share one file.
        os.link(source, target, follow_symlinks=False)
    except OSError:
        # The source is on another file system, links are not supported, or linking is not permitted.
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def timestamp(created_at: datetime | None) -> str:
    """Return a time in the format of a manifest, RFC 3339 in UTC with seconds; default: now."""
    created = created_at or datetime.now(UTC)
    return created.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
