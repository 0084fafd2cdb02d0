"""APScheduler over the loop's jobs: cron times, one run at a time, missed ones made up for once.

Jobs are held in memory and made from the settings at every start: what was done is known from the
workspace, not from the scheduler, so nothing is lost with it. Each run is a process of its own
(`scorer learn run`): its memory goes with it, and it can be killed.
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
from typing import TYPE_CHECKING, Any

from scorer.durable import write_atomically
from scorer.learn.schedule.settings import Job, ScheduleSettings

if TYPE_CHECKING:
    from apscheduler.events import JobExecutionEvent
    from apscheduler.schedulers.base import BaseScheduler
    from apscheduler.triggers.cron import CronTrigger

STATE = "schedule.json"


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a job's run."""

    code: int
    says: str


Run = Callable[[str], Ran]


def trigger(cron: str, timezone: str) -> CronTrigger:
    """When a job runs.

    Raises:
        DataError: it is no crontab line.
    """
    from apscheduler.triggers.cron import CronTrigger

    from scorer.learn.errors import DataError

    try:
        return CronTrigger.from_crontab(cron, timezone=timezone)
    except ValueError as error:
        raise DataError(
            f'"{cron}" is no time ({error}); write minute, hour, day, month, day of the week: "0 3 * * mon"'
        ) from None


def next_times(settings: ScheduleSettings, now: datetime) -> Mapping[Job, datetime | None]:
    """When each job runs next."""
    return {
        job: trigger(cron, settings.timezone).get_next_fire_time(None, now)
        for job, cron in settings.jobs.items()
    }


class Schedule:
    """The jobs on a scheduler, and their state as a file that anybody may read.

    Args:
        settings: `[schedule]`.
        workspace: of the loop.
        run: does a job; by default as a process.
        scheduler: in place of one that blocks.
    """

    def __init__(
        self,
        settings: ScheduleSettings,
        workspace: Path,
        run: Run,
        *,
        scheduler: BaseScheduler | None = None,
    ) -> None:
        from apscheduler.events import (
            EVENT_JOB_ERROR,
            EVENT_JOB_EXECUTED,
            EVENT_JOB_MAX_INSTANCES,
            EVENT_JOB_MISSED,
        )
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.blocking import BlockingScheduler

        self._settings = settings
        self._workspace = workspace
        self._run = run
        earlier, now = read_state(workspace), datetime.now(UTC)
        self._state: dict[str, dict[str, Any]] = {
            job: {"since": now.isoformat(), **earlier.get(job, {})} for job in settings.jobs
        }
        self._writing = threading.Lock()
        self.scheduler = scheduler or BlockingScheduler(timezone=settings.timezone)
        self.scheduler.configure(
            executors={"default": ThreadPoolExecutor(max(1, len(settings.jobs)))},
            job_defaults={
                "coalesce": True,
                "max_instances": 1,
                "misfire_grace_time": settings.late_seconds,
            },
            timezone=settings.timezone,
        )
        for job, cron in settings.jobs.items():
            # Nobody was there at its last time: the scheduler sees a misfire, and makes up for it or not.
            missed = last_missed(settings, job, self._state[job], now)
            first = {} if missed is None else {"next_run_time": missed}
            self.scheduler.add_job(self._do, trigger(cron, settings.timezone), args=[job], id=job, **first)
        self.scheduler.add_listener(self._ended, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        self.scheduler.add_listener(self._left_out, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)

    def start(self) -> None:
        """Runs until `stop`."""
        self._write()
        self.scheduler.start()

    def stop(self) -> None:
        """Starts no further run; those under way are ended by whoever made them."""
        if self.scheduler.running:
            self.scheduler.shutdown(wait=False)

    # --- inside ---

    def _do(self, job: str) -> Ran:
        self._note(job, state="running", started=_now())
        return self._run(job)

    def _ended(self, event: JobExecutionEvent) -> None:
        found = event.retval
        if isinstance(found, Ran):
            state = "done" if found.code == 0 else "failed"
            values: dict[str, Any] = {"state": state, "code": found.code, "says": found.says}
        else:
            values = {"state": "failed", "says": str(event.exception)}
        # Only now: a run that this process did not live to see the end of counts as missed.
        self._note(event.job_id, **values, due=event.scheduled_run_time.isoformat(), ended=_now())

    def _left_out(self, event: Any) -> None:
        known = self._state[event.job_id]
        self._note(event.job_id, left_out=known.get("left_out", 0) + 1, last_left_out=_now())

    def _note(self, job: str, **values: Any) -> None:
        with self._writing:
            self._state[job] |= values
        self._write()

    def _write(self) -> None:
        now = datetime.now(UTC)
        upcoming = next_times(self._settings, now)
        with self._writing:
            self._workspace.mkdir(parents=True, exist_ok=True)
            text = {
                job: {**self._state[job], "cron": cron, "next": str(upcoming[job] or "never")}
                for job, cron in self._settings.jobs.items()
            }
            write_atomically(self._workspace / STATE, json.dumps(text, indent=1).encode() + b"\n")


def read_state(workspace: Path) -> Mapping[str, Mapping[str, Any]]:
    """What the scheduler wrote last; empty where it never ran."""
    try:
        found: Mapping[str, Mapping[str, Any]] = json.loads((workspace / STATE).read_bytes())
    except FileNotFoundError:
        return {}
    return found


class Processes:
    """Runs a job as `scorer learn run`, and takes its last line for what it says.

    Args:
        workspace: of the loop.
        config: learn.toml.
        program: in place of this interpreter's ``scorer``.
    """

    def __init__(self, workspace: Path, config: Path | None, *, program: Sequence[str] | None = None) -> None:
        self._base = [*(program or (sys.executable, "-m", "scorer.cli")), "learn", "run", str(workspace)]
        if config is not None:
            self._base += ["--config", str(config)]
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def __call__(self, job: str) -> Ran:
        """Runs it to its end."""
        arguments = [] if job == "generation" else ["--step", job]
        with subprocess.Popen(  # noqa: S603 - the operator's own interpreter and settings
            [*self._base, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            self._running.add(process)
            if self._stopped:
                process.terminate()
            out, errors = process.communicate()
            self._running.discard(process)
        lines = (errors if process.returncode else out).strip().splitlines()
        return Ran(process.returncode, lines[-1] if lines else "")

    def stop(self) -> None:
        """Ends what runs: a step that is cut off is done anew by the next run."""
        self._stopped = True
        for process in list(self._running):
            process.terminate()


def last_missed(
    settings: ScheduleSettings, job: Job, state: Mapping[str, Any], now: datetime
) -> datetime | None:
    """The latest time at which a job should have started since it last did, unless it is too late."""
    since = datetime.fromisoformat(state.get("due") or state.get("since") or now.isoformat())
    start = max(since, now - timedelta(seconds=settings.late_seconds)) + timedelta(microseconds=1)
    every, missed = trigger(settings.jobs[job], settings.timezone), None
    at = every.get_next_fire_time(None, start)
    while at is not None and at <= now:
        missed, at = at, every.get_next_fire_time(at, at)
    return missed


def run_due(settings: ScheduleSettings, workspace: Path, run: Run, now: datetime) -> Mapping[str, Ran]:
    """Does what is due, each job once, and ends: for a machine whose own cron keeps the time."""
    earlier = read_state(workspace)
    state = {job: {"since": now.isoformat(), **earlier.get(job, {})} for job in settings.jobs}
    done: dict[str, Ran] = {}
    for job in settings.jobs:
        missed = last_missed(settings, job, state[job], now)
        if missed is not None:
            done[job] = run(job)
            state[job] |= {
                "due": missed.isoformat(),
                "state": "done" if done[job].code == 0 else "failed",
                "code": done[job].code,
                "says": done[job].says,
                "ended": _now(),
            }
    upcoming = next_times(settings, now)
    workspace.mkdir(parents=True, exist_ok=True)
    text = {job: {**state[job], "cron": settings.jobs[job], "next": str(upcoming[job])} for job in state}
    write_atomically(workspace / STATE, json.dumps(text, indent=1).encode() + b"\n")
    return done


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
