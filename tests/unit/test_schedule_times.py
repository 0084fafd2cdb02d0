"""Tests of the times of jobs: next times, missed runs, one job at a time."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner
from waiting import wait_until

from scorer.commands.learn import app
from scorer.config.problems import InvalidSettingsError
from scorer.learn import settings as learn_settings
from scorer.learn.schedule.jobs import (
    JobProcesses,
    JobResult,
    Schedule,
    last_missed,
    next_times,
    read_state,
)
from scorer.learn.schedule_settings import ScheduleSettings

# A Friday.
NOW = datetime(2026, 10, 23, 12, 2, 30, tzinfo=UTC)


def at(day: int, hour: int, minute: int = 0, month: int = 10) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


def test_the_next_times_are_correct() -> None:
    assert next_times(ScheduleSettings(), NOW) == {"generation": at(26, 3), "overlay": at(23, 12, 5)}
    # The clocks are set back on the 25th. Jobs still run at 03:00 local time.
    local = ScheduleSettings(timezone="Europe/Amsterdam", jobs={"generation": "0 3 * * *"})
    zone = ZoneInfo("Europe/Amsterdam")
    times, now = [], NOW
    for _ in range(4):
        now = next_times(local, now)["generation"]
        times.append(now)
    assert times == [at(24, 1), at(25, 2), at(26, 2), at(27, 2)]
    assert {one.astimezone(zone).hour for one in times} == {3}


@pytest.mark.parametrize(
    ("weekday", "day"), [("0", 25), ("7", 25), ("1", 26), ("5", 30), ("6", 24), ("sun", 25), ("fri", 30)]
)
def test_weekdays_equal_those_of_crontab(weekday: str, day: int) -> None:
    settings = ScheduleSettings(jobs={"generation": f"0 3 * * {weekday}"})
    assert next_times(settings, NOW) == {"generation": at(day, 3)}


def test_missed_runs_are_detected() -> None:
    settings = ScheduleSettings(
        jobs={"overlay": "*/5 * * * *", "generation": "0 3 * * mon"}, late_seconds=3600
    )

    def missed(job: Any, due: datetime) -> datetime | None:
        return last_missed(settings, job, {"due": due.isoformat()}, NOW)

    assert missed("overlay", at(23, 12)) is None, "the job ran at its last time"
    assert missed("overlay", at(23, 11, 55)) == at(23, 12)
    assert missed("overlay", at(1, 0)) == at(23, 12), "only the latest of many missed runs counts"
    assert missed("generation", at(12, 3)) is None, "a run that is days late is skipped until its next time"
    late = ScheduleSettings(jobs=settings.jobs, late_seconds=7 * 86_400)
    assert last_missed(late, "generation", {"due": at(12, 3).isoformat()}, NOW) == at(19, 3)
    assert last_missed(settings, "overlay", {"since": NOW.isoformat()}, NOW) is None, (
        "a new job has missed no run"
    )


class Clock:
    """A clock that the test sets.

    `jobs` records the jobs that ran, and `during` may change the time meanwhile.
    """

    def __init__(self) -> None:
        self.now = NOW
        self.jobs: list[str] = []
        self.during: Callable[[str], None] = lambda job: None
        self.codes = {"generation": 3}

    def run(self, job: str) -> JobResult:
        self.jobs.append(job)
        self.during(job)
        return JobResult(self.codes.get(job, 0), f"{job} says")

    def schedule(self, settings: ScheduleSettings, workspace: Path) -> Schedule:
        return Schedule(settings, workspace, self.run, clock=lambda: self.now)


def test_a_due_job_runs_once(tmp_path: Path) -> None:
    clock = Clock()
    schedule = clock.schedule(ScheduleSettings(), tmp_path)
    assert schedule.run_due() == {}, "the first call only records the start"
    clock.now = NOW + timedelta(hours=2)
    assert list(schedule.run_due()) == ["overlay"]
    clock.now += timedelta(seconds=20)
    assert schedule.run_due() == {}
    clock.now = at(26, 3, 10)
    done = clock.schedule(ScheduleSettings(), tmp_path).run_due()
    assert {job: one.code for job, one in done.items()} == {"generation": 3, "overlay": 0}
    assert clock.jobs == ["overlay", "generation", "overlay"]
    state = read_state(tmp_path)
    assert state["generation"]["state"] == "failed"
    assert state["generation"]["due"] == at(26, 3).isoformat()
    assert state["overlay"]["next"] == str(at(26, 3, 15))


def test_times_that_pass_during_a_job_give_one_run(tmp_path: Path) -> None:
    clock = Clock()
    schedule = clock.schedule(ScheduleSettings(), tmp_path)
    schedule.run_due()

    def take_two_hours(job: str) -> None:
        assert read_state(tmp_path)[job]["state"] == "running"
        clock.now += timedelta(hours=2) if job == "generation" else timedelta()

    clock.during = take_two_hours
    clock.now = at(26, 3)
    schedule.run_due()
    assert clock.jobs == ["generation", "overlay"], (
        "the jobs run one after the other because they share a workspace"
    )
    assert read_state(tmp_path)["overlay"]["due"] == at(26, 5).isoformat()


def test_an_interrupted_run_counts_as_missed(tmp_path: Path) -> None:
    clock = Clock()
    schedule = clock.schedule(ScheduleSettings(), tmp_path)
    schedule.run_due()
    clock.now = at(23, 12, 5)

    def die(job: str) -> None:
        raise KeyboardInterrupt

    clock.during = die
    with pytest.raises(KeyboardInterrupt):
        schedule.run_due()
    clock.during = lambda job: None
    assert list(clock.schedule(ScheduleSettings(), tmp_path).run_due()) == ["overlay"]


def test_the_loop_runs_jobs_until_it_is_stopped(tmp_path: Path) -> None:
    clock = Clock()
    schedule = clock.schedule(ScheduleSettings(), tmp_path)
    (tmp_path / "schedule.json").write_text(
        json.dumps(
            {"overlay": {"due": at(23, 11, 40).isoformat()}, "generation": {"due": at(12, 3).isoformat()}}
        )
    )
    clock.during = lambda job: schedule.stop()
    thread = threading.Thread(target=schedule.run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert clock.jobs == ["overlay"], "the generation was missed too long ago"


def test_a_job_is_a_process_and_its_last_line_is_the_message(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; print('first'); print(*sys.argv[1:])"]
    ran = JobProcesses(tmp_path, Path("/x/learn.toml"), program=program)("overlay")
    assert ran == JobResult(0, f"learn run {tmp_path} --config /x/learn.toml --step overlay")
    ran = JobProcesses(tmp_path, None, program=program)("generation")
    assert ran.message == f"learn run {tmp_path}"
    failing = [sys.executable, "-c", "import sys; sys.exit('error: no')"]
    assert JobProcesses(tmp_path, None, program=failing)("train") == JobResult(1, "error: no")


def test_stopping_ends_the_running_job(tmp_path: Path) -> None:
    processes = JobProcesses(tmp_path, None, program=[sys.executable, "-c", "import signal; signal.pause()"])
    ended: list[JobResult] = []
    thread = threading.Thread(target=lambda: ended.append(processes("generation")))
    thread.start()
    wait_until(lambda: processes._running is not None)
    processes.stop()
    thread.join(30)
    assert [one.code for one in ended] == [-15]
    assert processes("overlay").code == -15, "no further job is started"


def test_the_command_runs_due_jobs_and_shows_them(tmp_path: Path) -> None:
    config = tmp_path / "learn.toml"
    config.write_text('[schedule.jobs]\noverlay = "* * * * *"\n')
    arguments = ["schedule", str(tmp_path / "work"), "--config", str(config)]
    once = CliRunner().invoke(app, [*arguments, "--once"])
    assert (once.exit_code, once.stdout) == (0, "nothing is due\n")
    status = CliRunner().invoke(app, [*arguments, "--status", "--json"])
    assert json.loads(status.stdout)["overlay"]["since"]


def test_bad_times_are_refused() -> None:
    for text, named in (
        ('jobs = { often = "0 3 * * *" }', "schedule"),
        ('jobs = { overlay = "often" }', "five"),
        ('jobs = { overlay = "0 3 * * 8" }', "day-of-week"),
        ('timezone = "Europe/Nowhere"', "schedule"),
        ("keep = 1", "schedule"),
    ):
        with pytest.raises(InvalidSettingsError, match=named):
            learn_settings.parse(f"[schedule]\n{text}\n")
