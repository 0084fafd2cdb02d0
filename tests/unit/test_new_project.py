"""Tests of the templates of projects: names, places, and their own commands from data to an answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from servers import environment, scorer_in_process, start_server
from waiting import PATIENCE

from scorer.templates.project import project_files

KINDS = ("fraud", "action")
SYSTEM_PORTS = {
    "SCORER_SERVER__LISTEN": "127.0.0.1:0",
    "SCORER_SERVER__CONTROL_LISTEN": "127.0.0.1:0",
    "SCORER_SERVER__METRICS_LISTEN": "127.0.0.1:0",
}


def run(project: Path, *command: str) -> str:
    """Run a command of a project as its README gives it, with this interpreter first in PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        check=False,
        cwd=project,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=PATIENCE * 4,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_runs_its_commands_from_data_to_an_answer(tmp_path: Path, kind: str) -> None:
    project = tmp_path / "my-shop"
    made = scorer_in_process("new", kind, "my-shop", "--directory", str(project))
    assert made.returncode == 0, made.stderr
    readme = (project / "README.md").read_text()
    steps = [line.split()[1] for line in readme.splitlines() if line.startswith("make ")]
    assert steps == ["data", "train", "bundle", "check", "publish", "serve"]
    out = run(project, "make", *steps[:-1])
    assert "1 passed" in out, "make check runs the project's own test"
    assert "my-shop@live -> " in out
    # Answers do not depend on the latency of a busy machine.
    settings = (
        (project / "scorer.toml").read_text().replace("p99_ms = 5.0", 'p99_ms = 1000.0\nmode = "observe"')
    )
    with start_server(project, settings, env=SYSTEM_PORTS) as server:
        answer = run(project, sys.executable, "request.py", server.address)
    if kind == "fraud":
        decision, score, *words = answer.split()
        assert decision in ("approve", "review", "decline")
        assert 0 <= float(score) <= 1
        assert words[:2] == ["because", "of"]
        return
    action, _, _, propensity = answer.split()
    assert action in ("off-none", "off-tra", "challenge-none")
    assert 0 < float(propensity) <= 1
    # The README's next step: the decision and its outcome are the experience of the next generation.
    joined = run(
        project,
        "scorer",
        "learn",
        "join",
        "--log",
        "decisions",
        "--registry",
        "registry",
        "-o",
        "next.parquet",
    )
    assert "1" in joined


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_lists_the_files_and_writes_nothing(tmp_path: Path, kind: str) -> None:
    done = scorer_in_process("new", kind, "shop", "--directory", str(tmp_path / "shop"), "--dry-run")
    assert done.returncode == 0
    listed = [Path(line).relative_to(tmp_path / "shop").as_posix() for line in done.stdout.splitlines()]
    assert listed == list(project_files(kind, "shop"))  # type: ignore[arg-type]
    assert {".gitignore", "task/shop/schema.json", "ci.example.yml", "Makefile"} <= set(listed)
    assert not (tmp_path / "shop").exists()
    assert not any("@NAME@" in text for text in project_files(kind, "shop").values())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Shop", "1shop", "-shop", "shop-", "a--b", "a/b", "..", "a" * 41, "å"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    done = scorer_in_process("new", "fraud", "--directory", str(tmp_path / "shop"), "--", name)
    assert done.returncode == 1
    assert done.stderr.startswith("error: project name ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_folder_with_content_is_refused(tmp_path: Path, dry: tuple[str, ...]) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    file.write_text("mine")
    for place in (folder, file):
        done = scorer_in_process("new", "action", "shop", "--directory", str(place), *dry)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "is not an empty folder" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert file.read_text() == "mine"
