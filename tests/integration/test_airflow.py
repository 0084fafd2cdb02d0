"""Test of the learning DAG in a real Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import components
import pytest
from loops import make_loop
from servers import ROOT

from scorer.learn.schedule.workspace import Workspace
from scorer.registry import Registry

PROGRAM = ROOT / ".build/airflow/bin/airflow"
DAGS = ROOT / "deploy/airflow"


def airflow(home: Path, base: Path, *arguments: str) -> str:
    """Run one `airflow` command until it exits; return its output."""
    inherited = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("SCORER_", "AIRFLOW", "PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [PROGRAM, *arguments],
        env={
            **inherited,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PATH": f"{PROGRAM.parent}{os.pathsep}{inherited.get('PATH', '')}",
            # In a separate environment: Airflow does not have access to the project's packages.
            "SCORER_COMMAND": f"env PYTHONPATH='{ROOT / 'python'}' '{sys.executable}' -m scorer.cli",
            "SCORER_WORKSPACE": str(base / "work"),
            "SCORER_LEARN_CONFIG": str(base / "learn.toml"),
        },
        cwd=home,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    story = f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    assert done.returncode == 0, story
    return story


@pytest.mark.timeout(600)
def test_the_dag_runs_the_loop_once(tmp_path: Path) -> None:
    components.require("Airflow")
    home = tmp_path / "airflow"
    home.mkdir()
    base = make_loop(tmp_path / "base")
    registry = Registry(base / "registry")
    before = registry.resolve("small@live").digest
    airflow(home, base, "db", "migrate")
    dag = ("--dagfile-path", str(DAGS / "scorer_learning.py"))
    airflow(home, base, "dags", "test", "scorer_learning", "2026-02-14T00:00:00+00:00", *dag)

    (folder,) = Workspace(base / "work").generations()
    assert folder.name == "20260214T000000Z", "the directory is named after the time of the run"
    after = registry.resolve("small@live").digest
    assert after != before
    records = sorted(path.name for path in folder.glob("*.step.json"))
    assert records == [f"{name}.step.json" for name in ("evaluate", "gate", "join", "publish", "train")]
