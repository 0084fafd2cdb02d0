"""The directory that the loop works in: one folder a generation, one run at a time.

::

    <workspace>/lock                                held by the one run that works here
    <workspace>/generations/20261102T030000Z/       named by the moment it looks at the log from
        experience.parquet, candidate/, ...         what steps made
        join.step.json, ...                         what each made it from: digests of inputs and outputs
    <workspace>/join/                               what the join has read of the log, so that it reads on
    <workspace>/overlay/                            the same for the overlay, which belongs to no generation
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scorer.learn.errors import DataError

_NAME = re.compile(r"\d{8}T\d{6}Z")
_FORM = "%Y%m%dT%H%M%SZ"
_RETRY_SECONDS = 0.2


class BusyError(DataError):
    """Another run uses the workspace."""


class Workspace:
    """The directory that holds the generations of a learning loop."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self, wait_seconds: float = 0.0) -> Iterator[None]:
        """Holds the lock of the workspace. The system releases it when the process ends, however it ends.

        Args:
            wait_seconds: how long to wait for another run to end.

        Raises:
            BusyError: another run has the lock.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + wait_seconds
            while not _try_lock(descriptor):
                if time.monotonic() >= deadline:
                    holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
                    raise BusyError(
                        f'workspace "{self.path}" is used by another run (process {holder}); wait for it '
                        "(`--wait`), or use another workspace"
                    )
                time.sleep(_RETRY_SECONDS)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    @property
    def join_cache(self) -> Path:
        """What the join has read of the log so far."""
        return self.path / "join"

    def generations(self) -> list[Path]:
        """Return every generation (training run), oldest first."""
        try:
            found = [entry for entry in (self.path / "generations").iterdir() if _NAME.fullmatch(entry.name)]
        except FileNotFoundError:
            return []
        return sorted(found)

    def generation(self, as_of_ms: int) -> Path:
        """The folder of the generation that looks from this moment, to the second."""
        name = datetime.fromtimestamp(as_of_ms // 1000, UTC).strftime(_FORM)
        return self.path / "generations" / name

    def prune(self, keep: int) -> None:
        """Deletes all but the newest generations."""
        for old in self.generations()[:-keep]:
            # Renamed first: half a generation must not look like one.
            gone = old.with_name(f".gone-{old.name}")
            old.rename(gone)
            shutil.rmtree(gone)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def as_of_ms(generation: Path) -> int:
    """The moment that a generation looks from."""
    return round(datetime.strptime(generation.name, _FORM).replace(tzinfo=UTC).timestamp() * 1000)


def digest(path: Path) -> str | None:
    """Of a file's bytes, or of all files of a directory with their names; None if it is not there."""
    if path.is_dir():
        lines = [
            f"{file.relative_to(path).as_posix()} {digest(file)}"
            for file in sorted(path.rglob("*"))
            if file.is_file()
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def digest_of(value: Any) -> str:
    """Of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
