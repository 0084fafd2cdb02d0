"""The learning loop beside the server: its schedule in a thread of the server, each job a process.

Only the clock runs in the server's process: training neither holds the interpreter that the control plane
needs nor leaves its memory behind.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from scorer.errors import ServerError
from scorer.events import EventLog
from scorer.learn.schedule_settings import Job

# Jobs have the lowest priority on the machine that answers requests.
_PROGRAM = ("nice", "-n", "19", sys.executable, "-m", "scorer.cli")
_STOP_SECONDS = 5.0
_RETRY_SECONDS = 60.0


class ServerSchedule:
    """A schedule that was started.

    Args:
        workspace: the directory of the loop.
        config: learn.toml; None: every default.
        events: receives the start and the end of each job.

    Raises:
        InvalidSettingsError: learn.toml cannot be used.
        ServerError: a package that learning needs is not installed.
    """

    def __init__(self, workspace: Path, config: Path | None, events: EventLog) -> None:
        try:
            from scorer.learn import settings
            from scorer.learn.schedule.jobs import JobProcesses, JobResult, Schedule
        except ModuleNotFoundError as error:
            raise ServerError(
                f'learning.workspace is set, and the package "{error.name}" is not installed; install '
                "scorer[train], or let another machine run `scorer learn run` (docs/schedule.md)"
            ) from None
        chosen = settings.load(config, warn=lambda line: events.warning("deprecated", setting=line)).schedule
        processes = JobProcesses(workspace, config, program=_PROGRAM)

        def run_job(job: Job) -> JobResult:
            events.info("learning_begins", job=job)
            result = processes(job)
            report = events.info if result.code == 0 else events.warning
            report("learning_ended", job=job, code=result.code, says=result.message)
            return result

        self._processes = processes
        self._schedule = Schedule(chosen, workspace, run_job)
        self._events = events
        self._thread = threading.Thread(target=self._run, name="learning", daemon=True)
        self._thread.start()
        events.info("learning_scheduled", workspace=str(workspace), jobs=dict(chosen.jobs))

    def stop(self) -> None:
        """Starts no further job and ends the one that runs; the next run continues there."""
        self._schedule.stop()
        self._processes.stop()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._schedule.wait_stopped(0):
            try:
                self._schedule.run()
            except Exception as error:
                # For example a full disk: the server serves on, and learning resumes when there is space.
                self._events.warning("learning_failed", error=str(error))
                self._schedule.wait_stopped(_RETRY_SECONDS)
