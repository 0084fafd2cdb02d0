"""Copies files and databases to stable storage."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from scorer.durable import sync_directory
from scorer.errors import BackupError

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
_CHUNK = 1 << 20
_BUSY_SECONDS = 30.0


def make_directory(path: Path) -> None:
    """Make a directory that other users cannot read, and its parents."""
    for one in [*reversed(path.parents), path]:
        if not one.exists():
            one.mkdir(mode=DIRECTORY_MODE)


def copy_file(source: Path, target: Path, *, length: int | None = None) -> None:
    """Copy a file, or its first `length` bytes, and sync the copy.

    Raises:
        BackupError: The source cannot be read, is shorter than `length`, or the target cannot be written.
    """
    make_directory(target.parent)
    left = length
    try:
        with source.open("rb") as read, open(target, "xb", opener=_private) as written:
            while left is None or left > 0:
                chunk = read.read(_CHUNK if left is None else min(_CHUNK, left))
                if not chunk:
                    break
                written.write(chunk)
                left = None if left is None else left - len(chunk)
            written.flush()
            os.fsync(written.fileno())
    except OSError as error:
        raise BackupError(f'"{error.filename or target}" cannot be copied: {error.strerror}') from error
    if left:
        raise BackupError(f'"{source}" is {left} bytes shorter than its records; check the disk')


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database as of one committed state, while others write to it, and check the copy."""
    make_directory(target.parent)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
    try:
        with (
            closing(
                sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
            ) as read,
            closing(sqlite3.connect(target)) as written,
        ):
            read.backup(written)
            # One file, without a log beside it: what is copied and hashed is all there is.
            written.execute("PRAGMA journal_mode = DELETE")
            problem = written.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.Error as error:
        raise BackupError(f'database "{source}" cannot be copied: {error}') from error
    if problem != "ok":
        raise BackupError(f'database "{source}" is damaged: {problem}; restore an earlier backup')
    sync_file(target)


def sync_file(path: Path) -> None:
    """Bring a file to stable storage."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_tree(directory: Path) -> None:
    """Bring the entries of a directory and of all below it to stable storage."""
    for path, _, _ in os.walk(directory, topdown=False):
        sync_directory(Path(path))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
