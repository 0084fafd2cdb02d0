"""Copying of files and databases to stable storage."""

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
    """Create a directory that other users cannot read, and its missing parents."""
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
    """Copy one committed state of a SQLite database, which may be written meanwhile, and check the copy.

    Raises:
        BackupError: The database cannot be copied within 30 s of waiting for its lock, or is damaged.
    """
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
            # Without a write-ahead log the database is one file, which the manifest's hash covers completely.
            written.execute("PRAGMA journal_mode = DELETE")
            problem = written.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.Error as error:
        raise BackupError(f'database "{source}" cannot be copied: {error}') from error
    if problem != "ok":
        raise BackupError(f'database "{source}" is damaged: {problem}; restore an earlier backup')
    sync_file(target)


def sync_file(path: Path) -> None:
    """Sync the content of a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_tree(directory: Path) -> None:
    """Sync the entries of a directory and of all directories below it to disk."""
    for path, _, _ in os.walk(directory, topdown=False):
        sync_directory(Path(path))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
