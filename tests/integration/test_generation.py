"""Tests of a generation from a decision log: join, train, evaluate, gate, publish, also after kills."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from learning import contexts
from loops import AS_OF, DAY, ROWS, START, make_loop, write_log
from servers import scorer_in_process

from scorer.bundle import Bundle, revise
from scorer.bundle.models import OverlaySpec
from scorer.learn import settings as learn_settings
from scorer.learn.errors import DataError
from scorer.learn.schedule.generation import STEPS, run_generation
from scorer.learn.schedule.workspace import Workspace
from scorer.registry import Registry

SOME_OVERLAY = OverlaySpec(segment="country", limit=2.0, everywhere={"route": {"A": 0.5}}, segments={})


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_loop(tmp_path_factory.mktemp("loop"))


@pytest.fixture
def base(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "base")


class _Killed(BaseException):
    pass


def go(base: Path, *, at: Callable[[str], None] = lambda _: None, **more: Any) -> Any:
    settings = learn_settings.load(base / "learn.toml")
    return run_generation(Workspace(base / "work"), settings, base, as_of_ms=AS_OF, at=at, **more)


def outcome_of(base: Path) -> dict[str, Any]:
    """Return the results of a run that do not depend on its time or on interruptions."""
    (folder,) = Workspace(base / "work").generations()
    registry = Registry(base / "registry")
    return {
        "live": registry.resolve("small@live").digest,
        "history": [(c.alias, c.digest, c.action) for c in registry.history()],
        "records": {
            name: {
                k: v
                for k, v in json.loads((folder / f"{name}.step.json").read_text()).items()
                if k != "seconds"
            }
            for name in STEPS
        },
    }


@pytest.fixture(scope="module")
def whole(template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str], Path]:
    """A generation without interruption: its results, its number of boundaries and its directory."""
    base = shutil.copytree(template, tmp_path_factory.mktemp("whole") / "base")
    boundaries: list[str] = []
    ran = go(base, at=boundaries.append)
    assert [one.state for one in ran.steps] == ["done"] * 5
    return outcome_of(base), boundaries, base


def test_a_generation_trains_a_better_candidate_and_publishes_it(
    whole: tuple[dict[str, Any], list[str], Path],
) -> None:
    result, _, base = whole
    (folder,) = Workspace(base / "work").generations()
    reports = {name: record["says"] for name, record in result["records"].items()}
    assert reports["join"]["decisions"] == ROWS
    assert reports["train"]["taught"] + reports["train"]["held_back"] == ROWS
    assert 0 < reports["train"]["held_back"] < ROWS / 2
    assert reports["gate"]["decision"] == "promote"
    assert reports["evaluate"]["rows"] == reports["train"]["held_back"]
    assert reports["evaluate"]["difference"] > 0
    published = Bundle.load(folder / "verdict/bundle")
    assert published.digest == result["live"] == reports["publish"]["digest"]
    pmf, _ = published.evaluate(contexts(100, seed=3))
    assert pmf[:, 0].mean() > 0.9, "the candidate chooses the action that is authorised more often"
    assert (folder / "verdict/report.html").is_file()
    assert [one.state for one in go(base).steps] == ["kept"] * 5


@pytest.mark.fault_case(79)
def test_a_generation_that_is_killed_at_every_boundary_ends_in_the_same_state(
    base: Path, whole: tuple[dict[str, Any], list[str], Path]
) -> None:
    wanted, boundaries, _ = whole
    assert len(boundaries) >= 15

    # One directory, killed at one boundary after the other. Each process completes one more step.
    for left in range(1, len(boundaries) + 1):
        reached: list[str] = []

        def die(boundary: str, reached: list[str] = reached, left: int = left) -> None:
            reached.append(boundary)
            if boundary == boundaries[left - 1]:
                raise _Killed

        with pytest.raises(_Killed):
            go(base, at=die)
    go(base)
    assert outcome_of(base) == wanted


def test_the_command_continues_a_generation_and_then_starts_a_new_one(base: Path) -> None:
    learn = ["--config", str(base / "learn.toml"), "--json"]
    work = str(base / "work")
    moment = "2026-02-14T00:00"

    def step(*arguments: str) -> Any:
        done = scorer_in_process("learn", "run", work, *arguments, *learn)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    refused = scorer_in_process("learn", "run", work, "--step", "train", *learn)
    assert refused.returncode == 1
    assert 'begin with the step "join"' in refused.stderr
    assert [s["state"] for s in step("--as-of", moment, "--step", "join")["steps"]] == ["done"]
    assert [s["state"] for s in step("--step", "train")["steps"]] == ["done"]
    ran = step("--as-of", moment)
    assert [s["state"] for s in ran["steps"]] == ["kept", "kept", "done", "done", "done"]
    assert ran["folder"].endswith("20260214T000000Z")
    assert [s["state"] for s in step("--as-of", moment)["steps"]] == ["kept"] * 5


def test_a_generation_that_cannot_be_completed_is_abandoned(base: Path) -> None:
    settings = learn_settings.load(base / "learn.toml")

    def step(hours: float) -> str:
        ran = run_generation(
            Workspace(base / "work"),
            settings,
            base,
            step="join",
            clock_ms=lambda: AS_OF + round(hours * 3_600_000),
        )
        return str(ran.folder.name)

    first = step(0)
    assert step(23) == first, "the generation was continued"
    assert step(25) != first, "the generation is too old, so that a new one was started"


def test_an_alias_that_was_moved_meanwhile_is_not_changed(base: Path) -> None:
    registry = Registry(base / "registry")
    for name in STEPS[:-1]:
        go(base, step=name)
    other = revise(base / "first", base / "other", caps=None, overlay=SOME_OVERLAY).digest
    registry.push(base / "other")
    registry.alias("small", "live", other, reason="by hand")
    with pytest.raises(DataError, match="judge it against what is live now"):
        go(base)
    assert registry.resolve("small@live").digest == other


def test_the_overlay_publishes_a_revision_of_the_live_bundle_between_generations(base: Path) -> None:
    """After the last generation the issuers change: the action that was best is now declined."""
    from scorer.learn.schedule.overlay import run_overlay

    def overlay(day: float) -> Any:
        settings = learn_settings.load(base / "learn.toml")
        moment = START + round(day * DAY)
        (*_, last) = run_overlay(Workspace(base / "work"), settings, base, as_of_ms=moment).steps
        return last

    go(base, step="join")
    assert "is under way" in overlay(15.1).says["waits"]
    go(base)
    registry = Registry(base / "registry")
    oracle = registry.resolve("small@live")
    assert oracle.path is not None
    write_log(
        base / "decisions", oracle.path, rows=1500, seed=5, segment=2, first_day=15.2, days=2.0, turned=True
    )

    moved = overlay(17.5)
    assert moved.step == "revise"
    revision = registry.resolve("small@live")
    assert revision.digest == moved.says["digest"] != oracle.digest
    assert revision.path is not None
    assert (revision.path / "forest.bin").read_bytes() == (oracle.path / "forest.bin").read_bytes()
    sample = contexts(200, seed=9)
    before, after = (
        Bundle.load(path).evaluate(sample)[0][:, 0].sum() for path in (oracle.path, revision.path)
    )
    assert after < before / 2, "the overlay follows the change"
    assert overlay(17.5).says["digest"] == revision.digest, "a repeated run gives the same result"
