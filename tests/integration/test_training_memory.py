"""Training on more decisions than the process may hold: on disk it succeeds, in memory it cannot."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learning import DAY_MS, logged, small_task

from examples.columns import column
from scorer.bundle import Bundle
from scorer.learn.experience_files import write
from scorer.learn.training.tasks import write_task

PROGRAM = Path(__file__).parents[1] / "support/engines/limited_training.py"
LIMIT_MIB = 640
"""For training, on top of the interpreter and its libraries."""
FILES, ROWS, COLUMNS = 12, 50_000, 300
SETTINGS = "[train]\ntrees = 3\ndepth = 3\nlearning_rate = 0.5\nfolds = 2\ntau = [0.0]\ncompare = false\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Write 686 MiB of contexts, in a file for each week, and the settings of both ways."""
    task = small_task()
    more = tuple(column(f"x{at}", minimum=0.0, maximum=40.0) for at in range(COLUMNS - len(task.context)))
    write_task(dataclasses.replace(task, context=task.context + more), tmp_path / "task")
    for week in range(FILES):
        e = logged(ROWS, seed=week, days=7)
        # Few values, so that the files are small.
        noise = np.random.default_rng(week).integers(0, 40, (ROWS, len(more))).astype(np.float32)
        e = dataclasses.replace(
            e,
            decision_id=np.array([f"{week}-{at}" for at in range(ROWS)]),
            time_ms=e.time_ms + 7 * DAY_MS * week,
            settled_ms=e.settled_ms + 7 * DAY_MS * week,
            context=np.concatenate([e.context, noise], axis=1),
        )
        write(e, tmp_path / f"experience/{week}.parquet")
    for storage in ("disk", "memory"):
        (tmp_path / f"{storage}.toml").write_text(f'{SETTINGS}storage = "{storage}"\n')
    assert FILES * ROWS * COLUMNS * 4 > LIMIT_MIB << 20
    return tmp_path


def train(place: Path, storage: str) -> dict[str, Any]:
    """Train in a process whose memory is limited, and return its report or its error."""
    arguments = [place / "experience", place / f"{storage}.toml", place / "task", place / storage]
    # Further threads would need memory for their stacks, in proportion to the machine's cores.
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, PROGRAM, str(LIMIT_MIB), *arguments],
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_data_set_larger_than_the_memory_is_trained_on_disk(place: Path) -> None:
    refused = train(place, "memory")
    assert refused == {
        "error": "training: the memory of this process is not sufficient; "
        'set [train] storage = "disk", which leaves the decisions in their files'
    }
    report = train(place, "disk")
    assert "error" not in report
    assert report["decisions"]["settled"] == FILES * ROWS
    # The amount decides between two of three actions; the other columns are noise.
    assert report["out_of_fold"]["auc"] > 0.75
    context = np.zeros((2, COLUMNS), dtype=np.float32)
    context[:, 0] = (-2.5, 2.5)
    _, score = Bundle.load(place / "disk").evaluate(context)
    assert score.argmax(axis=1).tolist() == [0, 1]
    assert not list(place.glob(".*.training"))
