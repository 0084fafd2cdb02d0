"""Jobs in child processes whose results are stored: one at a time, a bounded number waits.

A folder of the data directory contains the job, the progress and the result, or the reason of a failure. A
job that was not done when the platform ended is started again by the next platform.
"""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

from scorer.release.child_jobs import ChildJobs, JobState
from scorer.release.errors import ThrottledError

J = TypeVar("J")
P = TypeVar("P")
R = TypeVar("R")

_WAITING: Final = 8
"""Limit on the jobs that wait; further ones are rejected."""
_KEPT: Final = 200
"""Limit on the stored jobs; the oldest ones are deleted."""
_LOADED: Final = 8
"""Results in memory."""


@dataclass(frozen=True)
class JobFiles(Generic[J, P, R]):
    """The files of a kind of job, and the functions that read and write them.

    Attributes:
        module: The module of the process.
        what: Plural of the kind of job, for messages.
        job: Name of the file of a job.
        result: Name of the file of a result.
        error: Name of the file with the reason of a failure.
        read_job: Reads the job of a folder; None if there is none.
        write_job: Writes the job of a folder.
        read_progress: Reads the progress.
        read_result: Reads the result; None if there is none yet.
    """

    module: str
    what: str
    job: str
    result: str
    error: str
    read_job: Callable[[Path], J | None]
    write_job: Callable[[Path, J], None]
    read_progress: Callable[[Path], P]
    read_result: Callable[[Path], R | None]


class StoredJobs(Generic[J, P, R]):
    """Jobs by id, each in a process of its own.

    Args:
        root: Directory of the folders.
        files: What the folders contain.
        environment: Variables of the processes in addition to those of this process.
    """

    def __init__(
        self, root: Path, files: JobFiles[J, P, R], environment: Mapping[str, str] | None = None
    ) -> None:
        self._root, self._files = root, files
        self._jobs = ChildJobs[P, R](
            files.module,
            root,
            read_progress=files.read_progress,
            read_result=self._result,
            environment=environment,
        )
        self._waiting: OrderedDict[str, J] = OrderedDict()
        self._results: OrderedDict[str, R] = OrderedDict()
        # The ticker and requests of pages use one object.
        self._lock = threading.RLock()

    def tick(self) -> None:
        """Start a job that waits, continue those that an earlier process left, and delete old ones."""
        with self._lock:
            for folder in self._stored():
                name = folder.name
                # A job without a result or an error was ended with its process.
                if name in self._waiting or self._is_settled(folder) or len(self._waiting) >= _WAITING:
                    continue
                if self._state(name) == JobState() and (found := self._files.read_job(folder)) is not None:
                    self._waiting[name] = found
            self._advance()
            for folder in self._stored()[_KEPT:]:
                if folder.name not in self._waiting and self._is_settled(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                    self._results.pop(folder.name, None)

    def close(self) -> None:
        """End the process of a running job. It is started again by the next platform."""
        with self._lock:
            self._waiting.clear()
            self._jobs.close()

    def _enqueue(self, name: str, make: Callable[[], J]) -> None:
        """Add a job unless it waits, runs or is done; a failed one is started again.

        Args:
            name: Id of the job.
            make: Makes the job.

        Raises:
            ThrottledError: Too many jobs wait.
        """
        with self._lock:
            state = self._state(name)
            if name not in self._waiting and state.progress is None and state.result is None:
                if len(self._waiting) >= _WAITING:
                    raise ThrottledError(
                        f"{_WAITING} {self._files.what} wait; try again when they have ended"
                    )
                (self._root / name / self._files.error).unlink(missing_ok=True)
                own = make()
                self._files.write_job(self._root / name, own)
                self._waiting[name] = own
            self._advance()

    def _advance(self) -> None:
        """Note what has ended, and start the next one."""
        if not self._waiting or self._jobs.is_full:
            return
        name, wanted = self._waiting.popitem(last=False)
        self._jobs.launch(name, partial(self._write, wanted))

    def _write(self, wanted: J, folder: Path) -> None:
        self._files.write_job(folder, wanted)

    def _state(self, name: str) -> JobState[P, R]:
        state = self._jobs.look(name)
        failed = self._root / name / self._files.error
        if state is None:
            # The process has ended with an error earlier, or it waits.
            text = failed.read_text(errors="replace") if failed.is_file() else ""
            return JobState(error=text)
        if state.error:
            failed.write_text(state.error)
        return state

    def _is_settled(self, folder: Path) -> bool:
        return (folder / self._files.result).is_file() or (folder / self._files.error).is_file()

    def _stored(self) -> list[Path]:
        """Return the folders of all jobs, the newest first."""
        try:
            folders = [one for one in self._root.iterdir() if (one / self._files.job).is_file()]
        except FileNotFoundError:
            return []
        return sorted(folders, key=lambda one: (one / self._files.job).stat().st_mtime, reverse=True)

    def _result(self, folder: Path) -> R | None:
        known = self._results.get(folder.name)
        if known is None:
            known = self._files.read_result(folder)
            if known is not None:
                self._results[folder.name] = known
                while len(self._results) > _LOADED:
                    self._results.popitem(last=False)
        return known
