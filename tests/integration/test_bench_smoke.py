"""Tests that the benchmark's groups run to their end, and that lines of a short run are not published."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import components
import pytest

from loadtests.figures import UnpublishableError, publishable, read

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", ["swaps", "policy", "engine"])
def test_a_benchmark_group_runs_and_its_smoke_results_cannot_be_published(group: str, tmp_path: Path) -> None:
    if group == "engine":
        components.require("bench peers")
    command = [sys.executable, "-m", "loadtests.bench", group, "--smoke", "--results", str(tmp_path)]
    options = [] if group == "swaps" else ["--decisions", "10000"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (file,) = tmp_path.glob("*.jsonl")
    run = read(file)
    assert {figure.group for figure in run.figures} == {group}
    assert all(figure.commit and figure.cpu for figure in run.figures)
    with pytest.raises(UnpublishableError, match="marked smoke"):
        publishable(run)
