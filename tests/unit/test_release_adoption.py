"""Tests of analyses of adoption on the platform: their process, states, page, downloads, REST and SDK."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
from platforms import SETTINGS
from versions import CHECKPOINT, History

from examples.simulators.adoption import AdoptionWorld, simulate_adoption
from scorer.causal.results import read_result
from scorer.release.adoption import child, job
from scorer.release.adoption_answers import AdoptionAnalysis
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.requests import NewAdoptionAnalysis
from scorer.sdk import PlatformClient

pytestmark = pytest.mark.timeout(300)  # a process with low priority computes
WORLD = AdoptionWorld(effect="chained", units=800, adopting=3, share=0.15, seed=2)
TASK = (
    '[causal]\nadoptions = "adoptions.parquet"\nproduct = "product"\ncurrency = "USD"\nreplications = 199\n'
)


def configured(folder: Path) -> str:
    """Return the platform's settings with two tasks, of which one has no table."""
    tables = {"optimiser": "values", "broken": "none"}
    tasks = "\n".join(
        f'adoption.{name}.data = "{folder}/{table}.parquet"\nadoption.{name}.task = "{folder}/task.toml"'
        for name, table in tables.items()
    )
    return SETTINGS.replace(f'[checkpoints."{CHECKPOINT}"]', f'[checkpoints."{CHECKPOINT}"]\n{tasks}')


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    directory = tmp_path_factory.mktemp("adoption")
    simulated = simulate_adoption(WORLD)
    pq.write_table(simulated.values(), directory / "values.parquet")
    pq.write_table(simulated.adoptions(), directory / "adoptions.parquet")
    (directory / "task.toml").write_text(TASK)
    history = History(directory, built_bundles, settings=configured(directory))
    yield history
    history.world.platform.close()


def done(history: History, analysis: str) -> AdoptionAnalysis:
    """Wait until an analysis has ended."""
    service, actor = history.world.service.adoption, history.world.actor("viewer")
    for _ in range(4_000):
        found = service.get(actor, CHECKPOINT, analysis)
        if found.state in ("done", "failed"):
            return found
        time.sleep(0.05)
    pytest.fail(f"the analysis is {found.state} after 200 seconds")


def test_an_analysis_runs_in_a_process_and_is_stored(history: History) -> None:
    service, actor = history.world.service.adoption, history.world.actor("viewer")
    names = [(one.name, one.product, one.newest) for one in service.tasks(actor, CHECKPOINT).items]
    assert names == [("optimiser", "product", None), ("broken", "product", None)]
    started = service.start(actor, CHECKPOINT, NewAdoptionAnalysis(task="optimiser"))
    found = done(history, started.id)
    assert found.state == "done" and found.result is not None, found.error
    assert found.result.verdict == "unreliable"
    assert "chain" in {one.name for one in found.result.reasons}
    assert {one.name for one in found.result.figures} >= {
        "path",
        "difference",
        "methods",
        "balance",
        "chains",
    }
    assert ("chain", "failed") in {(one.name, one.state) for one in found.result.checks}
    # The same tables and settings give the stored result.
    assert service.start(actor, CHECKPOINT, NewAdoptionAnalysis(task="optimiser")).id == started.id
    assert service.tasks(actor, CHECKPOINT).items[0].newest == started.id


def test_tasks_of_others_and_unknown_ones_are_not_found(history: History) -> None:
    service, actor = history.world.service.adoption, history.world.actor("viewer")
    with pytest.raises(NotFoundError, match="there are optimiser, broken"):
        service.start(actor, CHECKPOINT, NewAdoptionAnalysis(task="x"))
    with pytest.raises(InvalidError, match=r"task broken: .*none\.parquet"):
        service.start(actor, CHECKPOINT, NewAdoptionAnalysis(task="broken"))
    with pytest.raises(NotFoundError, match="no checkpoint"):
        service.tasks(actor, "fraud.none")
    with pytest.raises(NotFoundError, match="no analysis"):
        service.get(actor, CHECKPOINT, "0" * 16)


def test_the_process_reports_its_failure_by_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated = simulate_adoption(AdoptionWorld(units=120, seed=3))
    values = simulated.values()
    pq.write_table(values, tmp_path / "values.parquet")
    pq.write_table(simulated.adoptions(), tmp_path / "adoptions.parquet")
    (tmp_path / "task.toml").write_text(TASK.replace("[causal]", "[causal]\nthreshold = 1.0"))
    given = job.AdoptionJob(CHECKPOINT, "x", str(tmp_path / "values.parquet"), str(tmp_path / "task.toml"))
    job.write_job(tmp_path / "ok", given)
    assert job.read_job(tmp_path / "ok") == given
    assert child.main([str(tmp_path / "ok")]) == 0
    assert read_result(tmp_path / "ok" / job.RESULT).product == "product"
    assert job.read_progress(tmp_path / "ok").step
    pq.write_table(values.slice(0, 40).take([0, 0, 1]), tmp_path / "values.parquet")
    job.write_job(tmp_path / "bad", given)
    assert child.main([str(tmp_path / "bad")]) == 1
    assert child.main([str(tmp_path / "empty")]) == 1
    said = capsys.readouterr().err
    assert "rejected" not in said and "holds no job.json" in said.splitlines()[-1]
    assert not (tmp_path / "bad" / job.RESULT).exists()


def test_the_page_the_downloads_and_the_sdk_have_the_analysis(history: History) -> None:
    world = history.world
    token = world.tokens["viewer"]
    own = f"/checkpoints/{CHECKPOINT}/adoption"
    with world.served() as url, PlatformClient(url, token=token) as client:
        assert [one.name for one in client.adoption_tasks(CHECKPOINT).items] == ["optimiser", "broken"]
        started = client.analyse_adoption(CHECKPOINT, "optimiser")
        done(history, started.id)
        found = client.adoption(CHECKPOINT, started.id)
        assert found.result is not None and found.result.effects[0].horizon == 3
        assert found.result.effects[0].mean.low is not None
        with httpx.Client(base_url=url, timeout=60) as browser:
            text = browser.get("/login").text
            csrf = text.split('name="csrf" value="')[1].split('"')[0]
            browser.post("/login", data={"csrf": csrf, "token": token})
            choice = browser.get(own)
            assert choice.status_code == 200 and "optimiser" in choice.text
            csrf = choice.text.split('name="csrf" value="')[1].split('"')[0]
            answer = browser.post(own, data={"csrf": csrf, "task": "optimiser"})
            assert answer.status_code == 303
            assert answer.headers["location"].startswith(f"{own}/{started.id}")
            page = browser.get(f"{own}/{started.id}")
            assert page.status_code == 200
            for words in ("unreliable", "chain", "not additive", "placebo in time", "Effects by cohort"):
                assert words in page.text, words
            csv = browser.get(f"{own}/{started.id}/figures/path.csv")
            assert csv.text.splitlines()[0] == "month,adopters,synthetic"
            assert browser.get(f"{own}/{started.id}/figures/x.csv").status_code == 404
            assert "Value of adoption" in browser.get(f"/checkpoints/{CHECKPOINT}").text
            wrong = browser.post(own, data={"csrf": csrf, "task": "broken"})
            assert wrong.status_code == 422 and "none.parquet" in wrong.text
