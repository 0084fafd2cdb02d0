"""Tests of the job `drift`: an alert begins one generation, which ends in a TEST with its evidence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from loops import AS_OF, POINT, make_loop

from scorer.drift.state import DriftState
from scorer.learn import settings as learn_settings
from scorer.learn.errors import DataError
from scorer.learn.gate.publish import Requested
from scorer.learn.schedule.drift import run_drift
from scorer.learn.schedule.generation import RunReport, run_generation
from scorer.learn.schedule.workspace import Workspace
from scorer.registry import Registry

HOUR_MS = 3_600_000
NOW = AS_OF
EVIDENCE = {"causes": ["feature amount: share of 9 and above rose from 1.00% to 40.00% in the last 24 h"]}


class Platform:
    """Records change requests."""

    def __init__(self) -> None:
        self.requested: list[tuple[str, str, Mapping[str, Any]]] = []

    def request(self, kind: Any, bundle: str, *, evidence: Mapping[str, Any], **texts: str) -> Requested:
        self.requested.append((kind, bundle, {**evidence, **texts}))
        return Requested("CR-1", "booked", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = make_loop(tmp_path_factory.mktemp("drift") / "loop")
    text = (base / "learn.toml").read_text()
    (base / "learn.toml").write_text(text + 'drift_state = "drift.sqlite"\n')
    return base


@pytest.fixture
def loop(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "loop")


def alert(base: Path, *, at_ms: int = NOW - HOUR_MS, checkpoint: str = POINT) -> None:
    state = DriftState(base / "drift.sqlite")
    hour = at_ms // HOUR_MS
    with state.writing() as connection:
        connection.execute(
            "INSERT INTO alerts (checkpoint, lane, opened, last, quantities, evidence) "
            "VALUES (?, 'answer:live', ?, ?, ?, ?)",
            (checkpoint, hour, hour, json.dumps({"feature:amount": hour}), json.dumps(EVIDENCE)),
        )
    state.close()


def run(base: Path, platform: Platform | None = None, *, now_ms: int = NOW) -> RunReport:
    settings = learn_settings.load(base / "learn.toml")
    workspace = Workspace(base / "workspace")
    return run_drift(workspace, settings, base, clock_ms=lambda: now_ms, requests=platform)


def test_an_alert_begins_one_generation_that_ends_in_a_test(loop: Path) -> None:
    alert(loop)
    live, platform = Registry(loop / "registry").aliases()["small@live"], Platform()
    done = run(loop, platform)
    assert [one.step for one in done.steps] == ["join", "train", "evaluate", "gate", "publish"]
    ((kind, bundle, evidence),) = platform.requested
    # The gate would promote this bundle, which is a RELEASE without drift.
    assert done.steps[-1].says["decision"] == "promote"
    assert kind == "test"
    assert evidence["drift"]["causes"] == EVIDENCE["causes"]
    assert evidence["drift"]["alert"] == 1
    assert evidence["title"].endswith("after drift")
    assert EVIDENCE["causes"][0] in evidence["description"]
    registry = Registry(loop / "registry")
    assert registry.aliases()["small@live"] == live
    assert registry.resolve(bundle).digest == bundle
    (waits,) = run(loop, platform, now_ms=NOW + HOUR_MS).steps
    assert waits.says == {"waits": "there is no new alert"}
    alert(loop, at_ms=NOW + HOUR_MS)
    (waits,) = run(loop, platform, now_ms=NOW + 2 * HOUR_MS).steps
    assert waits.says == {"waits": "the last generation after drift began 2.0 h ago"}
    assert len(platform.requested) == 1


def test_without_a_platform_no_lane_serves_the_bundle(loop: Path) -> None:
    alert(loop)
    live = Registry(loop / "registry").aliases()["small@live"]
    done = run(loop)
    aliases = Registry(loop / "registry").aliases()
    assert aliases["small@live"] == live
    assert aliases["small@drift"] == done.steps[-1].says["digest"]
    assert set(aliases) == {"small@live", "small@drift"}


def test_a_candidate_that_waits_is_tested_too(loop: Path) -> None:
    text = (loop / "learn.toml").read_text()
    (loop / "learn.toml").write_text(text.replace("min_rows = 100", "min_rows = 1000000"))
    alert(loop)
    platform = Platform()
    done = run(loop, platform)
    assert done.steps[-1].says["decision"] == "wait"
    assert [one[0] for one in platform.requested] == ["test"]


def test_no_alert_begins_no_generation(loop: Path) -> None:
    alert(loop, checkpoint="fraud.checkout")
    assert run(loop).steps[0].says == {"waits": "there is no new alert"}
    alert(loop, at_ms=NOW - 60 * HOUR_MS)
    assert run(loop).steps[0].says == {"waits": "alert 2 is 60 h old"}
    assert Workspace(loop / "workspace").generations() == []


def test_a_generation_after_drift_continues_after_a_kill(loop: Path) -> None:
    alert(loop)
    settings, platform = learn_settings.load(loop / "learn.toml"), Platform()
    workspace = Workspace(loop / "workspace")

    class KilledError(Exception):
        pass

    def request(*_: Any, **__: Any) -> Requested:
        raise KilledError

    broken = Platform()
    broken.request = request  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        run(loop, broken)
    (folder,) = workspace.generations()
    done = run(loop, platform, now_ms=NOW + HOUR_MS)
    assert done.folder == folder
    assert [one.state for one in done.steps] == ["kept"] * 4 + ["done"]
    assert len(platform.requested) == 1
    again = run_generation(workspace, settings, loop, as_of_ms=NOW, requests=platform)
    assert [one.state for one in again.steps] == ["kept"] * 5


def test_a_state_that_is_not_set_or_absent_is_refused(loop: Path) -> None:
    with pytest.raises(DataError, match="does not exist; start `scorer drift run` first"):
        run(loop)
    text = (loop / "learn.toml").read_text()
    (loop / "learn.toml").write_text(text.replace('drift_state = "drift.sqlite"\n', ""))
    with pytest.raises(DataError, match=r"schedule.drift_state is not set; name the file"):
        run(loop)
