"""Copies a bundle directory so that it is either wholly there, on disk, or not at all."""

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
"""Over the manifest's digest. It is not part of the bundle, and may be replaced."""
MAX_SIGNATURE_BYTES = 64 << 10
MAX_FILE_BYTES = 1 << 30
MAX_MANIFEST_BYTES = 16 << 20
_STALE_SECONDS = 24 * 3600


def read_manifest(directory: Path) -> Mapping[str, Any]:
    """The manifest as parsed JSON, its file names checked; nothing else is verified here."""
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
    """The files that its manifest lists, the signature if there is one, and the manifest last."""
    signature = [SIGNATURE] if (directory / SIGNATURE).is_file() else []
    return [*read_manifest(directory)["files"], *signature, MANIFEST]


def copy_bundle(source: Path, destination: Path, stored: Path | None = None) -> None:
    """Copies the manifest, the files it lists and the signature, each synced to disk.

    Other files are left behind.

    A file that another `stored` bundle lists with the same content is linked from there: a revision every few
    minutes should not take a forest's space every time.
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
    """The signature of a bundle, unverified; None where there is none."""
    try:
        with (directory / SIGNATURE).open("rb") as file:
            return file.read(MAX_SIGNATURE_BYTES)
    except FileNotFoundError:
        return None


def replace_signature(source: Path, stored: Path) -> None:
    """Gives a stored bundle the signature of another copy of it, in one step."""
    signature = read_signature(source)
    if signature is not None and signature != read_signature(stored):
        write_atomically(stored / SIGNATURE, signature)
        (stored / SIGNATURE).chmod(0o444)


@contextmanager
def staged(staging: Path) -> Iterator[Path]:
    """A private directory to fill and then `commit`; deleted if that does not happen."""
    staging.mkdir(parents=True, exist_ok=True)
    sweep(staging)
    temporary = Path(tempfile.mkdtemp(prefix="new-", dir=staging))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def commit(temporary: Path, target: Path) -> None:
    """Makes a filled directory appear under its final name, in one step, synced to disk.

    Where another process placed it first, that one is kept: the name is the content's digest.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # mkdtemp makes it private; a registry is read by others.
    temporary.chmod(0o755)
    try:
        temporary.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    sync_directory(target.parent)


def remove(directory: Path, *, staging: Path) -> None:
    """Takes a directory away in one step, then deletes it."""
    with staged(staging) as hole, suppress(FileNotFoundError):
        directory.rename(hole / directory.name)


def sweep(staging: Path) -> None:
    """Deletes what a killed process left in a staging directory a day ago or earlier."""
    oldest = time.time() - _STALE_SECONDS
    for entry in staging.iterdir():
        with suppress(OSError):
            if entry.stat().st_mtime < oldest:
                shutil.rmtree(entry, ignore_errors=True)


def stat_fingerprint(directory: Path) -> Hashable:
    """Sizes, times and inodes of a directory's files; differs when any was rewritten."""
    try:
        entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(directory)]
    except OSError:
        return None
    return tuple(sorted((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in entries))


def size_of(directory: Path) -> int:
    """Bytes of a bundle directory's files."""
    return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())


def _link(stored: Path, destination: Path, *, like: Path) -> bool:
    """Links a stored file in place of a copy of another; False where that is no regular file of its size."""
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
        # O_NOFOLLOW and O_NONBLOCK: a link could lead anywhere, a FIFO would never answer.
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
