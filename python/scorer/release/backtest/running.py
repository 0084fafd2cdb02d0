"""The processes of backtests, by change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from scorer.release.backtest import job
from scorer.release.backtest.job import BacktestProgress, Job, Result
from scorer.release.child_jobs import ChildJobs, JobState

AT_ONCE = 1
"""Backtests that run at the same time; further ones wait."""

Backtest = JobState[BacktestProgress, Result]
"""The state of a backtest."""


class Backtests(ChildJobs[BacktestProgress, Result]):
    """The backtests of changes.

    Args:
        root: Directory of the folders.
        at_once: Number of backtests that run at the same time.
        environment: Variables of the processes in addition to those of this process.
    """

    def __init__(
        self, root: Path, *, at_once: int = AT_ONCE, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(
            "scorer.release.backtest.child",
            root,
            read_progress=job.read_progress,
            read_result=job.read_result,
            at_once=at_once,
            environment=environment,
        )

    def start(self, change: str, wanted: Job) -> None:
        """Start the backtest of a change."""
        self.launch(change, partial(_write, wanted))


def _write(wanted: Job, folder: Path) -> None:
    job.write_job(folder, wanted)
