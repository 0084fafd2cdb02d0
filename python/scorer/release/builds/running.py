"""Claiming, starting, checking and ending the processes of builds.

A folder of the data directory contains the files, the job and the result of a build. A process of the
platform claims a folder with a file lock. If the process ends, the lock is released, and another process with
the same data directory continues with the build.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from scorer.release import children
from scorer.release.builds import job, limits
from scorer.release.builds.job import BuildResult

AT_ONCE = 1
"""Number of builds that one process of the platform runs at the same time."""
_LOCK = "lock"
_LEFT_SECONDS = 3600.0


@dataclass
class _Claimed:
    lock: int
    process: subprocess.Popen[bytes] | None = None
    until: float = 0.0


class Processes:
    """The builds whose folders this process of the platform has claimed.

    Args:
        root: Directory of the folders.
        seconds: Time limit of one build in seconds.
        clock: Returns monotonic seconds.
    """

    def __init__(self, root: Path, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._seconds, self._clock = root, seconds, clock
        self._claimed: dict[str, _Claimed] = {}

    @property
    def root(self) -> Path:
        """The directory that holds one folder per build."""
        return self._root

    @property
    def claimed(self) -> list[str]:
        """The builds that this process has claimed."""
        return list(self._claimed)

    def folder(self, build: str) -> Path:
        """Return the folder of a build."""
        return self._root / build

    def has_files(self, build: str) -> bool:
        """Return whether this machine has the files of a build."""
        return (self.folder(build) / job.JOB).is_file()

    def claim(self, build: str) -> bool:
        """Claim a build. Return False if another process has it, or this one runs its limit of builds."""
        if build in self._claimed:
            return True
        if len(self._claimed) >= AT_ONCE:
            return False
        try:
            lock = os.open(self.folder(build) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._claimed[build] = _Claimed(lock)
        return True

    def is_started(self, build: str) -> bool:
        """Return whether this process has started the process of a claimed build."""
        return self._claimed[build].process is not None

    def start(self, build: str) -> None:
        """Start the process of a claimed build, from the beginning."""
        folder = self.folder(build)
        shutil.rmtree(folder / job.OUTPUT, ignore_errors=True)
        claimed = self._claimed[build]
        claimed.process = children.start(
            "scorer.release.builds.child", folder, folder / job.ERROR, environment=limits.environment()
        )
        claimed.until = self._clock() + self._seconds

    def result(self, build: str) -> BuildResult | None:
        """Return the result of a build, or None if it has none yet."""
        return job.read_result(self.folder(build))

    def failure(self, build: str) -> str:
        """Return why the process of a started build ended without a result; empty if it still runs."""
        claimed = self._claimed[build]
        assert claimed.process is not None  # noqa: S101 - the caller has started it
        code = claimed.process.poll()
        if code is None:
            if self._clock() < claimed.until:
                return ""
            return (
                f"the build took longer than {self._seconds / 60:g} minutes, which is the limit "
                "(builds.minutes); send a smaller table or model, or ask an operator to raise the limit"
            )
        said = (self.folder(build) / job.ERROR).read_text(errors="replace").strip().splitlines()
        if code == 1 and said:
            return said[-1][:1000]
        if code == -signal.SIGXCPU:
            return (
                "the build took more processor time than builds.minutes allows; send a smaller table or model"
            )
        if code in (-signal.SIGKILL, -signal.SIGABRT) or any("bad_alloc" in line for line in said):
            return (
                "the process that read the files was ended, most likely because they need more memory than "
                "builds.memory_mb allows; send a smaller model or table, or one that is not damaged"
            )
        return f"the process that read the files ended with status {code}; the model or a table is damaged"

    def release(self, build: str, *, remove: bool) -> None:
        """End the process of a build, if there is one, and give up the claim.

        Args:
            build: Id of the build.
            remove: Whether its files are removed.
        """
        claimed = self._claimed.pop(build, None)
        if claimed is not None and claimed.process is not None:
            children.end(claimed.process)
        if remove:
            shutil.rmtree(self.folder(build), ignore_errors=True)
        if claimed is not None:
            os.close(claimed.lock)

    def sweep(self, wanted: Collection[str]) -> None:
        """Remove folders that have not been used for an hour and that no build in `wanted` needs."""
        try:
            found = list(os.scandir(self._root))
        except OSError:
            return
        for entry in found:
            if entry.name in wanted or entry.name in self._claimed:
                continue
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > _LEFT_SECONDS:
                    shutil.rmtree(entry.path, ignore_errors=True)

    def close(self) -> None:
        """End all processes. Their files stay, and the next process of the platform starts them again."""
        for build in self.claimed:
            self.release(build, remove=False)
