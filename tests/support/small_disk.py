"""A small file system that tests can fill: a tmpfs of a few megabytes, mounted for one test."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SmallDisk:
    """A mounted file system; `fill` takes all of its space, `free` gives it back."""

    path: Path

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def fill(self) -> None:
        """Write until the file system has no byte left (ENOSPC)."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error

    def free(self) -> None:
        """Remove what `fill` wrote."""
        self._filler.unlink()


@contextmanager
def small_disk(path: Path, megabytes: int = 8) -> Iterator[SmallDisk]:
    """Mount a tmpfs on a new directory until the context ends, even if files are still open."""
    path.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    subprocess.run(["mount", *options], check=True, capture_output=True, timeout=10)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True, timeout=10)


def can_mount() -> bool:
    """Return whether this process may mount file systems.

    The function tries it in a separate mount namespace.
    """
    if os.geteuid() != 0:
        return False
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    except FileNotFoundError:
        return False
