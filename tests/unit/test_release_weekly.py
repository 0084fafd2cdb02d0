"""Tests of comparisons over time on the platform: their process, states, pages, REST and SDK."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lakes import ship_logs
from versions import CHECKPOINT, History
from weekly_logs import CONFIGURED, write_log

from scorer.learn.comparison.results import read_comparison
from scorer.log.source.addresses import TABLE
from scorer.log.source.locations import TableAccess
from scorer.log.source.settings import SourceSettings
from scorer.release.errors import ConflictError, InvalidError, NotFoundError, ThrottledError
from scorer.release.requests import NewWeekly
from scorer.release.weekly import child, job
from scorer.release.weekly.service import WeeklyComparisons
from scorer.release.weekly_answers import WeeklyComparison


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    directory = tmp_path_factory.mktemp("weekly")
    history = History(directory, built_bundles, settings=CONFIGURED)
    write_log(directory / "live-1-log", built_bundles["score-1"])
    yield history
    history.world.platform.close()


def done(history: History, started: WeeklyComparison, **asked: Any) -> WeeklyComparison:
    """Wait until a comparison has ended."""
    weekly, actor = history.world.service.weekly, history.world.actor("viewer")
    for _ in range(1_200):
        found = weekly.get(actor, CHECKPOINT, started.id, **asked)
        if found.state in ("done", "failed"):
            return found
        time.sleep(0.05)
    pytest.fail(f"the comparison is {found.state} after a minute")


def test_a_comparison_runs_in_a_process_and_is_stored(history: History) -> None:
    weekly, actor = history.world.service.weekly, history.world.actor("viewer")
    wanted = NewWeekly(versions=[history.live, history.second])
    started = weekly.start(actor, CHECKPOINT, wanted)
    assert started.state in ("waiting", "running", "done") and started.result is None
    found = done(history, started)
    assert found.state == "done" and found.result is not None, found.error
    assert [one.digest for one in found.result.versions] == [history.live, history.second]
    assert found.result.versions[1].algorithm == "xgboost"
    assert len(found.result.weeks) == 8
    settled = [week for week in found.result.weeks if week.settled]
    assert settled and not found.result.weeks[-1].settled
    assert {one.name for one in found.result.figures} == {"weeks-backtest", "weeks-served", "best", "pairs"}
    served = [one for one in found.result.values if one.week is None and one.basis == "served"]
    assert served[0].rows > 0 and served[1].reason == "it served no decision"
    assert {(one.left, one.right) for one in found.result.pairs} == {(history.live, history.second)}
    # The same request within the hour is the same comparison.
    assert weekly.start(actor, CHECKPOINT, wanted).id == started.id
    by_data = weekly.get(actor, CHECKPOINT, started.id, metric="auc", by="data").result
    assert by_data is not None and by_data.figures[0].columns[1] == "data"
    with pytest.raises(InvalidError, match='no metric "x"'):
        weekly.get(actor, CHECKPOINT, started.id, metric="x")


def test_requests_that_cannot_be_compared_are_refused(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    weekly, actor = history.world.service.weekly, history.world.actor("viewer")
    with pytest.raises(InvalidError, match="given twice"):
        weekly.start(actor, CHECKPOINT, NewWeekly(versions=[history.live, history.live]))
    with pytest.raises(NotFoundError):
        weekly.start(actor, CHECKPOINT, NewWeekly(versions=["sha256:0000ffff"]))
    with pytest.raises(NotFoundError):
        # A bundle of a project that the caller is no member of.
        weekly.start(actor, CHECKPOINT, NewWeekly(versions=[history.other]))
    with pytest.raises(NotFoundError, match="no checkpoint"):
        weekly.start(actor, "fraud.none", NewWeekly(versions=[history.live]))
    with pytest.raises(NotFoundError, match="no comparison"):
        weekly.get(actor, CHECKPOINT, "0" * 16)
    readouts = history.world.service.readouts
    monkeypatch.setattr(readouts, "logs", dict)
    with pytest.raises(ConflictError, match="no decision log"):
        weekly.start(actor, CHECKPOINT, NewWeekly(versions=[history.live]))


def test_waiting_comparisons_are_limited_and_run_one_after_the_other(history: History) -> None:
    weekly = history.world.service.weekly
    own = WeeklyComparisons(weekly._parts)
    # A directory of its own, where the process that runs never ends.
    own._root = weekly._root.parent / "waiting"
    started: list[str] = []
    own._jobs = FakeJobs(own._root, started)  # type: ignore[assignment]
    actor = history.world.actor("viewer")
    states = [
        own.start(actor, CHECKPOINT, NewWeekly(versions=[history.live], weeks=weeks)).state
        for weeks in range(1, 10)
    ]
    assert states == ["running"] + ["waiting"] * 8 and len(started) == 1
    with pytest.raises(ThrottledError, match="8 comparisons wait"):
        own.start(actor, CHECKPOINT, NewWeekly(versions=[history.live], weeks=20))
    # The next platform finds the jobs that were not done.
    later = WeeklyComparisons(weekly._parts)
    later._root = own._root
    again: list[str] = []
    later._jobs = FakeJobs(own._root, again)  # type: ignore[assignment]
    later.tick()
    assert len(again) == 1 and len(later._waiting) == 7


class FakeJobs:
    """Processes that run until the test ends."""

    def __init__(self, root: Path, started: list[str]) -> None:
        self._root, self._started = root, started

    def look(self, name: str) -> Any:
        from scorer.release.child_jobs import JobState

        return JobState(progress=job.WeeklyProgress("scores", 0.5)) if name in self._started else None

    @property
    def is_full(self) -> bool:
        return bool(self._started)

    def launch(self, name: str, write: Any) -> None:
        write(self._root / name)
        self._started.append(name)


def test_the_process_reports_its_failure_in_one_line(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weekly, actor = history.world.service.weekly, history.world.actor("viewer")
    found = done(history, weekly.start(actor, CHECKPOINT, NewWeekly(versions=[history.live, history.second])))
    wanted = job.read_job(weekly._root / found.id)
    assert wanted is not None
    job.write_job(tmp_path / "ok", wanted)
    assert child.main([str(tmp_path / "ok")]) == 0
    assert read_comparison(tmp_path / "ok" / job.RESULT).checkpoint == CHECKPOINT
    assert job.read_progress(tmp_path / "ok").step
    gone = job.WeeklyJob(wanted.comparison, (str(tmp_path / "none"),), wanted.bundles)
    job.write_job(tmp_path / "gone", gone)
    assert child.main([str(tmp_path / "gone")]) == 1
    assert child.main([str(tmp_path / "empty")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "none" in lines[0] and "holds no job.json" in lines[1]


def test_a_comparison_of_shipped_tables_is_that_of_the_logs(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipper copies the log; a platform that reads the tables finds the same weeks and values."""
    pytest.importorskip("deltalake", reason="needs the package deltalake")
    weekly, actor = history.world.service.weekly, history.world.actor("viewer")
    readouts = history.world.service.readouts
    lake = tmp_path / "lake"
    places = readouts.logs()
    ship_logs({name: Path(place) for name, place in places.items()}, lake, records=400)
    access = TableAccess(tmp_path / "index.sqlite", SourceSettings())
    for name, value in access.variables().items():
        monkeypatch.setenv(name, value)
    results = []
    for kind, logs in (("logs", places), ("tables", {name: f"{TABLE}{lake}#{name}" for name in places})):
        monkeypatch.setattr(readouts, "logs", lambda logs=logs: logs)
        own = WeeklyComparisons(weekly._parts)
        own._root = tmp_path / kind
        # The test is the process, so that it does not depend on the priority of a child.
        own._jobs = FakeJobs(own._root, [])  # type: ignore[assignment]
        started = own.start(actor, CHECKPOINT, NewWeekly(versions=[history.live, history.second]))
        assert child.main([str(own._root / started.id)]) == 0
        results.append(read_comparison(own._root / started.id / job.RESULT))
    of_logs, of_tables = results
    assert any(week.settled for week in of_tables.weeks)
    assert of_tables.weeks == of_logs.weeks
    assert of_tables.values == of_logs.values
    assert of_tables.pairs == of_logs.pairs
    assert of_tables.best == of_logs.best
    assert of_tables.left_out == of_logs.left_out


def test_a_failed_comparison_has_its_reason_and_can_be_started_again(history: History) -> None:
    weekly, actor = history.world.service.weekly, history.world.actor("viewer")
    wanted = NewWeekly(versions=[history.first], weeks=3)
    started = weekly.start(actor, CHECKPOINT, wanted)
    weekly._jobs.end(started.id)
    (weekly._root / started.id / job.ERROR).write_text("the disk is full")
    failed = weekly.get(actor, CHECKPOINT, started.id)
    assert (failed.state, failed.error) == ("failed", "the disk is full")
    again = weekly.start(actor, CHECKPOINT, wanted)
    assert again.id == started.id and done(history, again).state == "done"


def test_the_page_the_downloads_and_the_sdk_have_the_comparison(history: History) -> None:
    import httpx

    from scorer.sdk import PlatformClient

    world = history.world
    token = world.tokens["viewer"]
    own = f"/checkpoints/{CHECKPOINT}/comparison"
    with world.served() as url, PlatformClient(url, token=token) as client:
        started = client.start_comparison(CHECKPOINT, [history.live, history.second])
        done(history, started)
        found = client.comparison(CHECKPOINT, started.id, metric="precision")
        assert found.result is not None and found.result.figures[0].title.startswith("Precision")
        with httpx.Client(base_url=url, timeout=60) as browser:
            text = browser.get("/login").text
            csrf = text.split('name="csrf" value="')[1].split('"')[0]
            browser.post("/login", data={"csrf": csrf, "token": token})
            choice = browser.get(own)
            assert choice.status_code == 200 and history.second in choice.text
            csrf = choice.text.split('name="csrf" value="')[1].split('"')[0]
            # The page lists the newest version first.
            sent = {"csrf": csrf, "versions": [history.second, history.live], "weeks": "8"}
            answer = browser.post(own, data=sent)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith(f"{own}/{started.id}")
            page = browser.get(f"{own}/{started.id}", params={"metric": "recall"})
            assert page.status_code == 200
            for words in (
                "it served no decision",
                "Paired differences",
                "not settled",
                "would have been best",
            ):
                assert words in page.text, words
            csv = browser.get(f"{own}/{started.id}/figures/weeks-backtest.csv")
            assert csv.text.splitlines()[0] == "week,version,value,low,high,missing_because"
            assert browser.get(f"{own}/{started.id}/figures/x.csv").status_code == 404
            none = browser.post(own, data={"csrf": csrf, "weeks": "8"})
            assert none.status_code == 422 and "versions" in none.text
