"""Jobs in child processes: starting, checking and ending them.

A folder of the data directory contains the job, the progress and the result. The next leader therefore finds
the results, and starts the jobs that have none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from scorer.release import children

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class JobState(Generic[P, R]):
    """The state of a job: one of the three fields is set, or none if it waits."""

    progress: P | None = None
    result: R | None = None
    error: str = ""


class ChildJobs(Generic[P, R]):
    """Jobs by name, each in a process of its own.

    Args:
        module: The module to run, with the folder of the job as its argument.
        root: Directory of the folders.
        read_progress: Reads the progress in a folder.
        read_result: Reads the result in a folder; None if there is none yet.
        at_once: Number of processes that run at the same time.
        environment: Variables of the processes in addition to those of this process.
    """

    def __init__(
        self,
        module: str,
        root: Path,
        *,
        read_progress: Callable[[Path], P],
        read_result: Callable[[Path], R | None],
        at_once: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._module, self._root, self._at_once = module, root, at_once
        self._read_progress, self._read_result = read_progress, read_result
        self._environment = environment or {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def look(self, name: str) -> JobState[P, R] | None:
        """Return the state of a job, or None if it must be started."""
        folder = self._root / name
        result = self._read_result(folder)
        process = self._running.get(name)
        if result is not None:
            self.end(name)
            return JobState(result=result)
        if process is None:
            return None
        if process.poll() is None:
            return JobState(progress=self._read_progress(folder))
        said = (folder / "error.txt").read_text(errors="replace").strip().splitlines()
        why = said[-1] if said else f"its process ended with status {process.returncode}"
        self.end(name)
        return JobState(error=why)

    @property
    def is_full(self) -> bool:
        """Return whether a further job has to wait."""
        return sum(process.poll() is None for process in self._running.values()) >= self._at_once

    def launch(self, name: str, write: Callable[[Path], None]) -> None:
        """Start a job in an empty folder.

        Args:
            name: Name of the job and of its folder.
            write: Writes the job into the folder.
        """
        folder = self._root / name
        shutil.rmtree(folder, ignore_errors=True)
        write(folder)
        self._running[name] = children.start(
            self._module, folder, folder / "error.txt", environment=os.environ | self._environment
        )

    def keep(self, names: Collection[str]) -> None:
        """End the processes of all jobs that are not in `names`."""
        for name in set(self._running) - set(names):
            self.end(name)

    def end(self, name: str) -> None:
        """End the process of a job, if there is one."""
        process = self._running.pop(name, None)
        if process is not None:
            children.end(process)

    def close(self) -> None:
        """End the processes of all jobs."""
        self.keep(())
