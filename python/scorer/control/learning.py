"""The learning loop beside the server: its schedule in a thread here, each job a process of its own.

Nothing of it runs in this process but the clock: training neither holds the interpreter that the
control plane needs nor leaves its memory behind.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.errors import ServerError
from scorer.events import EventLog

if TYPE_CHECKING:
    from scorer.learn.schedule.scheduler import Processes, Ran, Schedule

# The loop gives way to whatever answers requests.
_PROGRAM = ("nice", "-n", "19", sys.executable, "-m", "scorer.cli")


class Learning:
    """A schedule that was started.

    Args:
        workspace: of the loop.
        config: learn.toml; None: every default.
        events: told when a job begins and how it ended.

    Raises:
        InvalidSettingsError: learn.toml cannot be used.
        ServerError: what learning needs is not installed.
    """

    def __init__(self, workspace: Path, config: Path | None, events: EventLog) -> None:
        try:
            from apscheduler.schedulers.background import BackgroundScheduler

            from scorer.learn import settings
            from scorer.learn.schedule.scheduler import Processes, Schedule
        except ModuleNotFoundError as error:
            raise ServerError(
                f'learning.workspace is set, and the package "{error.name}" is not installed; install '
                "scorer[train], or let another machine run `scorer learn schedule`"
            ) from None
        self._events = events
        self._processes: Processes = Processes(workspace, config, program=_PROGRAM)
        chosen = settings.load(config).schedule
        self._schedule: Schedule = Schedule(
            chosen, workspace, self._run, scheduler=BackgroundScheduler(daemon=True)
        )
        self._schedule.start()
        events.info("learning_scheduled", workspace=str(workspace), jobs=dict(chosen.jobs))

    def stop(self) -> None:
        """Starts no further job and ends those that run; the next run goes on where they were."""
        self._schedule.stop()
        self._processes.stop()

    def _run(self, job: str) -> Ran:
        self._events.info("learning_begins", job=job)
        ran = self._processes(job)
        tell = self._events.info if ran.code == 0 else self._events.warning
        tell("learning_ended", job=job, code=ran.code, says=ran.says)
        return ran
