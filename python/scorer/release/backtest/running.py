"""Starting, checking and ending the processes of backtests.

A folder of the data directory contains the job, the progress and the result of a change. The next leader
therefore finds the results, and starts the backtests that have none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from scorer.release import children
from scorer.release.backtest import job
from scorer.release.backtest.job import BacktestProgress, Job, Result

AT_ONCE = 1
"""Backtests that run at the same time; further ones wait."""


@dataclass(frozen=True, slots=True)
class Backtest:
    """The state of a backtest: one of the three fields is set, or none if it waits."""

    progress: BacktestProgress | None = None
    result: Result | None = None
    error: str = ""


class Backtests:
    """The backtests of changes.

    Args:
        root: Directory of the folders.
        at_once: Number of backtests that run at the same time.
        environment: Variables of the processes in addition to those of this process.
    """

    def __init__(
        self, root: Path, *, at_once: int = AT_ONCE, environment: Mapping[str, str] | None = None
    ) -> None:
        self._root, self._at_once = root, at_once
        self._environment = environment or {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def look(self, change: str) -> Backtest | None:
        """Return the state of a change's backtest, or None if it must be started."""
        folder = self._root / change
        result = job.read_result(folder)
        process = self._running.get(change)
        if result is not None:
            self.end(change)
            return Backtest(result=result)
        if process is None:
            return None
        if process.poll() is None:
            return Backtest(progress=job.read_progress(folder))
        said = (folder / "error.txt").read_text(errors="replace").strip().splitlines()
        why = said[-1] if said else f"its process ended with status {process.returncode}"
        self.end(change)
        return Backtest(error=why)

    @property
    def is_full(self) -> bool:
        """Return whether a further backtest has to wait."""
        return sum(process.poll() is None for process in self._running.values()) >= self._at_once

    def start(self, change: str, wanted: Job) -> None:
        """Start the backtest of a change."""
        folder = self._root / change
        shutil.rmtree(folder, ignore_errors=True)
        job.write_job(folder, wanted)
        errors = folder / "error.txt"
        self._running[change] = children.start(
            "scorer.release.backtest.child",
            folder,
            errors,
            environment=os.environ | self._environment,
        )

    def keep(self, changes: Collection[str]) -> None:
        """End the backtests of all changes that are not in `changes`."""
        for change in set(self._running) - set(changes):
            self.end(change)

    def end(self, change: str) -> None:
        """End the process of a change, if there is one."""
        process = self._running.pop(change, None)
        if process is not None:
            children.end(process)

    def close(self) -> None:
        """End the processes of all backtests."""
        self.keep(())
