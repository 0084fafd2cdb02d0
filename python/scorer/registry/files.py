"""Atomic copies of bundle directories: a copy is either complete and on disk, or does not exist."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from scorer.durable import sync_directory, write_atomically
from scorer.errors import BundleError

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
"""The signature of the manifest's digest. It is not part of the bundle and may be replaced."""
MAX_SIGNATURE_BYTES = 64 << 10
MAX_FILE_BYTES = 1 << 30
MAX_MANIFEST_BYTES = 16 << 20
_STALE_SECONDS = 24 * 3600


def read_manifest(directory: Path) -> Mapping[str, Any]:
    """Return a bundle's manifest as parsed JSON.

    Only the size of the manifest and the names of the listed files are checked.

    Raises:
        BundleError: The manifest is missing, unreadable, larger than 16 MiB, not JSON, or lists no files or
            a name that is not a plain file name.
    """
    path = directory / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BundleError(f'"{path}" is larger than {MAX_MANIFEST_BYTES} bytes; this is no manifest')
        manifest: Mapping[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(
            f'"{directory}" holds no {MANIFEST}; give the directory that `scorer bundle build` wrote'
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BundleError(f'"{path}" is not valid JSON ({error}); build the bundle again') from None
    except OSError as error:
        raise BundleError(f'"{path}" cannot be read: {error.strerror}') from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not files:
        raise BundleError(f'"{path}" lists no files; build the bundle again')
    for name in files:
        if name in ("", ".", "..", MANIFEST) or PurePosixPath(name).name != name or "\0" in name:
            raise BundleError(
                f'"{path}" lists the file name "{name}"; only plain names are allowed in a bundle'
            )
    return manifest


def stored_names(directory: Path) -> list[str]:
    """Return the names of a bundle's files: those that its manifest lists, the signature, the manifest."""
    signature = [SIGNATURE] if (directory / SIGNATURE).is_file() else []
    return [*read_manifest(directory)["files"], *signature, MANIFEST]


def copy_bundle(source: Path, destination: Path, stored: Path | None = None) -> None:
    """Copy the manifest, the files it lists and the signature, each synced to disk. Skip other files.

    Args:
        source: The bundle's directory.
        destination: An existing, empty directory.
        stored: A stored bundle. A file that it lists with the same content is hard-linked from there, because
            an overlay revision every few minutes would otherwise use the space of a forest each time.

    Raises:
        BundleError: A listed file is missing, not a regular file, or larger than 1 GiB.
        OSError: The destination cannot be written.
    """
    listed = read_manifest(source)["files"]
    held = {} if stored is None else read_manifest(stored)["files"]
    for name in [*listed, MANIFEST]:
        if not (
            stored is not None
            and name in held
            and held[name] == listed.get(name)
            and _link(stored / name, destination / name, like=source / name)
        ):
            _copy_file(source / name, destination / name)
    if os.path.lexists(source / SIGNATURE):
        _copy_file(source / SIGNATURE, destination / SIGNATURE, limit=MAX_SIGNATURE_BYTES)
    sync_directory(destination)


def read_signature(directory: Path) -> bytes | None:
    """Return the signature of a bundle without verifying it, or None if the bundle is not signed."""
    try:
        with (directory / SIGNATURE).open("rb") as file:
            return file.read(MAX_SIGNATURE_BYTES)
    except FileNotFoundError:
        return None


def replace_signature(source: Path, stored: Path) -> None:
    """Atomically replace the signature of the bundle in `stored` by that of the same bundle in `source`."""
    signature = read_signature(source)
    if signature is not None and signature != read_signature(stored):
        write_atomically(stored / SIGNATURE, signature)
        (stored / SIGNATURE).chmod(0o444)


@contextmanager
def staged(staging: Path) -> Iterator[Path]:
    """Create a private directory to fill and then `commit`. It is deleted if it was not committed."""
    staging.mkdir(parents=True, exist_ok=True)
    sweep(staging)
    temporary = Path(tempfile.mkdtemp(prefix="new-", dir=staging))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def commit(temporary: Path, target: Path) -> None:
    """Atomically rename a filled directory to its final name and sync the parent directory to disk.

    If the target exists, it is kept: its name is the digest of its content, so both are the same.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # `mkdtemp` creates a directory that only its owner can read, but other users read the registry.
    temporary.chmod(0o755)
    try:
        temporary.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    sync_directory(target.parent)


def remove(directory: Path, *, staging: Path) -> None:
    """Atomically move a directory into `staging` and delete it there."""
    with staged(staging) as hole, suppress(FileNotFoundError):
        directory.rename(hole / directory.name)


def sweep(staging: Path) -> None:
    """Delete the entries of a staging directory that killed processes left more than 24 h ago."""
    oldest = time.time() - _STALE_SECONDS
    for entry in staging.iterdir():
        with suppress(OSError):
            if entry.stat().st_mtime < oldest:
                shutil.rmtree(entry, ignore_errors=True)


def stat_fingerprint(directory: Path) -> Hashable:
    """Return names, inodes, sizes and times of a directory's files, or None if it cannot be read.

    The value differs after any of the files was rewritten.
    """
    try:
        entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(directory)]
    except OSError:
        return None
    return tuple(sorted((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in entries))


def size_of(directory: Path) -> int:
    """Return the total size of the files of a bundle's directory, in bytes."""
    return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())


def _link(stored: Path, destination: Path, *, like: Path) -> bool:
    """Hard-link a stored file to `destination` if it and `like` are regular files of the same size.

    Returns:
        Whether the link was created. If it was not, the caller copies the file.
    """
    try:
        one, other = stored.lstat(), like.lstat()
        if not (stat.S_ISREG(one.st_mode) and stat.S_ISREG(other.st_mode) and one.st_size == other.st_size):
            return False
        os.link(stored, destination, follow_symlinks=False)
    except OSError:
        return False
    return True


def _copy_file(source: Path, destination: Path, *, limit: int = MAX_FILE_BYTES) -> None:
    try:
        # O_NOFOLLOW: a symbolic link could lead out of the bundle. O_NONBLOCK: opening a FIFO would block.
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BundleError(
            f'"{source}" is listed in the manifest but missing; build the bundle again'
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BundleError(f'"{source}" is a symbolic link; a bundle holds regular files only') from None
        raise BundleError(f'"{source}" cannot be read: {error.strerror}') from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise BundleError(f'"{source}" is not a regular file; a bundle holds regular files only')
    with os.fdopen(descriptor, "rb") as reader:
        if status.st_size > limit:
            raise BundleError(f'"{source}" has {status.st_size} bytes; it may have at most {limit}')
        with destination.open("xb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            os.fchmod(writer.fileno(), 0o444)
            os.fsync(writer.fileno())
