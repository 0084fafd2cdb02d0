"""When jobs run: next times, coalescing, one at a time, what was missed while nobody was there."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from freezer import Clock, frozen
from waiting import wait_until

from scorer.config.problems import InvalidSettingsError
from scorer.learn import settings as learn_settings
from scorer.learn.errors import DataError
from scorer.learn.schedule import scheduler
from scorer.learn.schedule.scheduler import Ran, Schedule, last_missed, next_times, read_state, run_due
from scorer.learn.schedule.settings import ScheduleSettings

# A Friday.
NOW = datetime(2026, 10, 23, 12, 2, 30, tzinfo=UTC)


def at(day: int, hour: int, minute: int = 0, month: int = 10) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


def test_next_times() -> None:
    assert next_times(ScheduleSettings(), NOW) == {"generation": at(26, 3), "overlay": at(23, 12, 5)}
    # The clocks go back on the 25th: three in the morning stays three in the morning.
    local = ScheduleSettings(timezone="Europe/Amsterdam", jobs={"generation": "0 3 * * *"})
    zone = ZoneInfo("Europe/Amsterdam")
    found, when = [], NOW
    for _ in range(4):
        when = next_times(local, when)["generation"] + timedelta(seconds=1)
        found.append(when - timedelta(seconds=1))
    assert [one.astimezone(UTC) for one in found] == [at(24, 1), at(25, 2), at(26, 2), at(27, 2)]
    assert {one.astimezone(zone).hour for one in found} == {3}


def test_missed_runs() -> None:
    settings = ScheduleSettings(
        jobs={"overlay": "*/5 * * * *", "generation": "0 3 * * mon"}, late_seconds=3600
    )

    def missed(job: Any, due: datetime) -> datetime | None:
        return last_missed(settings, job, {"due": due.isoformat()}, NOW)

    assert missed("overlay", at(23, 12)) is None, "it ran at its last time"
    assert missed("overlay", at(23, 11, 55)) == at(23, 12)
    assert missed("overlay", at(1, 0)) == at(23, 12), "the latest of many"
    assert missed("generation", at(12, 3)) is None, "days late: left out until its next time"
    late = ScheduleSettings(jobs=settings.jobs, late_seconds=7 * 86_400)
    assert last_missed(late, "generation", {"due": at(12, 3).isoformat()}, NOW) == at(19, 3)
    assert last_missed(settings, "overlay", {"since": NOW.isoformat()}, NOW) is None, (
        "new: nothing was missed"
    )


def test_once_does_what_is_due_each_job_once(tmp_path: Path) -> None:
    settings, ran = ScheduleSettings(), []

    def run(job: str) -> Ran:
        ran.append(job)
        return Ran(0 if job == "overlay" else 3, f"{job} says")

    assert run_due(settings, tmp_path, run, NOW) == {}, "the first time only begins to count"
    later = NOW + timedelta(hours=2)
    assert list(run_due(settings, tmp_path, run, later)) == ["overlay"]
    assert run_due(settings, tmp_path, run, later + timedelta(seconds=20)) == {}
    monday = at(26, 3, 10)
    done = run_due(settings, tmp_path, run, monday)
    assert {job: one.code for job, one in done.items()} == {"generation": 3, "overlay": 0}
    assert ran == ["overlay", "generation", "overlay"]
    state = read_state(tmp_path)
    assert state["generation"]["state"] == "failed"
    assert state["generation"]["due"] == at(26, 3).isoformat()


class Jobs:
    """Runs that a test lets end."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, job: str) -> Ran:
        self.started.append(job)
        assert self.may_end.wait(30)
        return Ran(0, f"run {len(self.started)}")


@pytest.fixture
def clock() -> Any:
    with frozen(NOW) as clock:
        yield clock


def test_a_busy_job_is_not_started_twice_and_missed_runs_become_one(tmp_path: Path, clock: Clock) -> None:
    jobs = Jobs()
    settings = ScheduleSettings(jobs={"overlay": "*/5 * * * *"})
    schedule = Schedule(settings, tmp_path, jobs, scheduler=BackgroundScheduler())
    schedule.start()
    try:
        jobs.may_end.clear()
        clock.go(schedule, at(23, 12, 5))
        wait_until(lambda: read_state(tmp_path)["overlay"].get("state") == "running")
        wait_until(lambda: jobs.started == ["overlay"])
        clock.go(schedule, at(23, 12, 10))
        wait_until(lambda: read_state(tmp_path)["overlay"].get("left_out") == 1)
        assert jobs.started == ["overlay"], "one at a time"
        jobs.may_end.set()
        wait_until(lambda: read_state(tmp_path)["overlay"]["state"] == "done")
        # The machine sleeps for half an hour: six runs are missed and made up for by one.
        clock.go(schedule, at(23, 12, 41))
        wait_until(lambda: len(jobs.started) == 2)
        wait_until(lambda: read_state(tmp_path)["overlay"].get("says") == "run 2")
        state = read_state(tmp_path)["overlay"]
        assert state["due"] == at(23, 12, 40).isoformat()
        assert state["next"] == str(at(23, 12, 45))
    finally:
        schedule.stop()


def test_what_was_missed_while_nobody_was_there_is_made_up_for(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "schedule.json").write_text(
        json.dumps(
            {"overlay": {"due": at(23, 11, 40).isoformat()}, "generation": {"due": at(12, 3).isoformat()}}
        )
    )
    jobs = Jobs()
    schedule = Schedule(ScheduleSettings(), tmp_path, jobs, scheduler=BackgroundScheduler())
    schedule.start()
    try:
        wait_until(lambda: read_state(tmp_path)["overlay"].get("state") == "done")
        assert jobs.started == ["overlay"]
    finally:
        schedule.stop()


def test_a_job_is_a_process_and_says_its_last_line(tmp_path: Path) -> None:
    import sys

    program = [sys.executable, "-c", "import sys; print('first'); print(*sys.argv[1:])"]
    ran = scheduler.Processes(tmp_path, Path("/x/learn.toml"), program=program)("overlay")
    assert ran == Ran(0, f"learn run {tmp_path} --config /x/learn.toml --step overlay")
    ran = scheduler.Processes(tmp_path, None, program=program)("generation")
    assert ran.says == f"learn run {tmp_path}"
    failing = [sys.executable, "-c", "import sys; sys.exit('error: no')"]
    assert scheduler.Processes(tmp_path, None, program=failing)("train") == Ran(1, "error: no")


def test_stopping_ends_what_runs(tmp_path: Path) -> None:
    import sys

    processes = scheduler.Processes(
        tmp_path, None, program=[sys.executable, "-c", "import signal; signal.pause()"]
    )
    ended: list[Ran] = []
    thread = threading.Thread(target=lambda: ended.append(processes("generation")))
    thread.start()
    wait_until(lambda: processes._running)
    processes.stop()
    thread.join(30)
    assert [one.code for one in ended] == [-15]
    assert processes("overlay").code == -15, "nothing starts any more"


def test_bad_times(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no time"):
        next_times(ScheduleSettings(jobs={"overlay": "often"}), NOW)
    for text in ('jobs = { often = "0 3 * * *" }', 'timezone = "Europe/Nowhere"', "keep = 1"):
        with pytest.raises(InvalidSettingsError, match="schedule"):
            learn_settings.parse(f"[schedule]\n{text}\n")
