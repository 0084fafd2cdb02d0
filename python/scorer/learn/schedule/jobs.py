"""The jobs of `[schedule]` and their times: one implementation for the command, a cron, and the server.

`Schedule.run_due` runs each job that is due once, one after the other: all jobs use the same workspace, of
which one run has the lock. What was done is known from the workspace, so a schedule may be stopped and
started at any time. Each run is a process (`scorer learn run`): its memory ends with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scorer.cron import latest, occurrences
from scorer.durable import write_atomically
from scorer.learn.schedule_settings import Job, ScheduleSettings

STATE = "schedule.json"
_LONGEST_WAIT = 30.0
"""Seconds between two looks at the clock, which may be set, or stand still while the machine sleeps."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The end of a job's run.

    Attributes:
        code: exit code of the process; negative: the signal that ended it.
        message: the last line that the process printed.
    """

    code: int
    message: str


RunJob = Callable[[Job], JobResult]


def _utc_now() -> datetime:
    return datetime.now(UTC)


def next_times(settings: ScheduleSettings, now: datetime) -> Mapping[Job, datetime]:
    """The first time of each job after `now`, in UTC."""
    after = now + timedelta(microseconds=1)
    return {job: next(occurrences(line, settings.timezone, after)) for job, line in settings.jobs.items()}


def last_missed(
    settings: ScheduleSettings, job: Job, state: Mapping[str, Any], now: datetime
) -> datetime | None:
    """The latest time at which a job should have started since its last run.

    Args:
        settings: `[schedule]`.
        job: one of its jobs.
        state: the job's entry of the state file.
        now: aware.

    Returns:
        A time in UTC; None if the job ran then, or if all that it missed is older than `late_seconds`.
    """
    since = datetime.fromisoformat(state.get("due") or state.get("since") or now.isoformat())
    reach = min(now - since, timedelta(seconds=settings.late_seconds))
    return latest(settings.jobs[job], settings.timezone, now, reach) if reach > timedelta() else None


def read_state(workspace: Path) -> Mapping[str, Mapping[str, Any]]:
    """The state file, by job; empty where no schedule has run."""
    try:
        state: Mapping[str, Mapping[str, Any]] = json.loads((workspace / STATE).read_bytes())
    except FileNotFoundError:
        return {}
    return state


class Schedule:
    """The jobs of a workspace.

    Args:
        settings: `[schedule]`.
        workspace: the directory of the loop.
        run_job: runs one job to its end.
        clock: the current time, aware.
    """

    def __init__(
        self,
        settings: ScheduleSettings,
        workspace: Path,
        run_job: RunJob,
        *,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._settings = settings
        self._workspace = workspace
        self._run_job = run_job
        self._clock = clock
        self._stopped = threading.Event()

    def run_due(self) -> Mapping[Job, JobResult]:
        """Runs every job that is due, in the order of the settings, once however many times it missed.

        The first call for a job only notes when the schedule began. A run that did not end before its process
        was killed counts as missed.
        """
        state = self._state()
        self._write(state)
        results: dict[Job, JobResult] = {}
        for job in self._settings.jobs:
            due = last_missed(self._settings, job, state[job], self._clock())
            if due is None or self._stopped.is_set():
                continue
            state[job] |= {"state": "running", "started": self._text_of_now()}
            self._write(state)
            result = results[job] = self._run_job(job)
            state[job] |= {
                "state": "done" if result.code == 0 else "failed",
                "code": result.code,
                "says": result.message,
                "ended": self._text_of_now(),
                "due": due.isoformat(),
            }
            self._write(state)
        return results

    def run(self) -> None:
        """Runs jobs at their times until `stop`."""
        seconds = 0.0
        while not self.wait_stopped(min(seconds, _LONGEST_WAIT)):
            self.run_due()
            now = self._clock()
            upcoming = next_times(self._settings, now).values()
            seconds = min(((at - now).total_seconds() for at in upcoming), default=_LONGEST_WAIT)

    def stop(self) -> None:
        """Makes `run` return after the job that runs; no further job starts."""
        self._stopped.set()

    def wait_stopped(self, seconds: float) -> bool:
        """Waits until `stop` or so many seconds; returns whether the schedule was stopped."""
        return self._stopped.wait(seconds)

    def _state(self) -> dict[str, dict[str, Any]]:
        earlier, now = read_state(self._workspace), self._clock().isoformat()
        return {job: {"since": now, **earlier.get(job, {})} for job in self._settings.jobs}

    def _write(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        upcoming = next_times(self._settings, self._clock())
        text = {
            job: {**state[job], "cron": line, "next": str(upcoming[job])}
            for job, line in self._settings.jobs.items()
        }
        self._workspace.mkdir(parents=True, exist_ok=True)
        content = json.dumps(text, indent=1).encode() + b"\n"
        path = self._workspace / STATE
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content)

    def _text_of_now(self) -> str:
        return self._clock().isoformat(timespec="seconds")


class JobProcesses:
    """Runs a job as `scorer learn run`.

    Args:
        workspace: the directory of the loop.
        config: learn.toml; None: every default.
        program: in place of this interpreter's ``scorer``.
    """

    def __init__(self, workspace: Path, config: Path | None, *, program: Sequence[str] | None = None) -> None:
        self._base = [*(program or (sys.executable, "-m", "scorer.cli")), "learn", "run", str(workspace)]
        if config is not None:
            self._base += ["--config", str(config)]
        self._running: subprocess.Popen[str] | None = None
        self._changing = threading.Lock()
        self._stopped = False

    def __call__(self, job: Job) -> JobResult:
        """Runs one job to its end."""
        arguments = [] if job == "generation" else ["--step", job]
        with self._changing:
            process = subprocess.Popen(  # noqa: S603 - the operator's own interpreter and settings
                [*self._base, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self._running = process
            if self._stopped:
                process.terminate()
        with process:
            out, errors = process.communicate()
        self._running = None
        lines = (errors if process.returncode else out).strip().splitlines()
        return JobResult(process.returncode, lines[-1] if lines else "")

    def stop(self) -> None:
        """Ends the job that runs and every later one: the next run does the interrupted step anew."""
        with self._changing:
            self._stopped = True
            if self._running is not None:
                self._running.terminate()
