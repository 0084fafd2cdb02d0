"""Tests that Spark and Ray train forests as good as those trained in memory: local clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import batch_engines
import components
import numpy as np
import pyarrow.parquet as pq
import pytest
from learning import contexts, logged, small_task

from scorer.bundle import Bundle
from scorer.learn.experience_files import write
from scorer.learn.training.fitting import fit
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.tasks import write_task
from scorer.learn.training.trained import Trained

COMMAND = Path(__file__).parents[1] / "support/engines/scorer_command.py"
COUNT = 6_000
# All rows and columns in each tree, so that only the order of the rows and the bins differ.
PLAN = TrainSettings(
    trees=20, depth=3, learning_rate=0.3, subsample=1.0, colsample=1.0, folds=2, tau=(0.5,), compare=False
)
SETTINGS = """
[train]
trees = 20
depth = 3
learning_rate = 0.3
subsample = 1.0
colsample = 1.0
folds = 2
tau = [0.5]
compare = false
"""
SPARK = """
engine = "spark"
workers = 2
cluster = "local[2]"
[train.cluster_options]
"spark.driver.memory" = "1g"
"spark.ui.enabled" = false
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
"spark.sql.shuffle.partitions" = 2
"""
RAY = """
engine = "ray"
workers = 2
[train.cluster_options]
num_cpus = 3
include_dashboard = false
object_store_memory = 157286400
"""


@pytest.fixture
def memory(tmp_path: Path) -> Trained:
    """Write decisions in two files with several row groups, and train on them in memory."""
    experience = logged(COUNT, pmf=lambda context: np.tile([[0.6, 0.3, 0.1]], (len(context), 1)))
    for at, (start, end) in enumerate(((0, 2_500), (2_500, COUNT))):
        path = tmp_path / f"experience/{at}.parquet"
        write(experience.take(slice(start, end)), path)
        pq.write_table(pq.read_table(path), path, row_group_size=800)
    write_task(small_task(), tmp_path / "task")
    return fit(small_task(), experience, PLAN)


def train(engine: str, settings: str, place: Path) -> dict[str, Any]:
    """Run `scorer learn train` in the environment of an engine and in a network of its own."""
    (place / "learn.toml").write_text(SETTINGS + settings)
    arguments = ["learn", "train", str(place / "experience"), "--config", str(place / "learn.toml"), "--json"]
    arguments += ["--task", str(place / "task"), "--output", str(place / "candidate")]
    # Trackers and workers listen on every interface, so they get a network that ends with their processes.
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    alone += ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    said = batch_engines.run_program(engine, COMMAND, arguments, place, prefix=alone)
    report: dict[str, Any] = json.loads(said[said.index("{\n") :])
    assert not (place / ".candidate.training").exists()
    return report


def check(report: dict[str, Any], memory: Trained, place: Path) -> None:
    """Compare an engine's training with that in memory: same decisions, figures within noise."""
    assert report["decisions"]["settled"] == COUNT
    found, expected = report["out_of_fold"], memory.metrics
    assert found["mean_reward"] == expected["mean_reward"]
    for measure, most in (("auc", 0.006), ("log_loss", 0.003), ("brier", 0.002), ("mean_predicted", 0.004)):
        assert found[measure] == pytest.approx(expected[measure], abs=most), measure
    assert report["weights"]["effective_rows"] == pytest.approx(memory.weights.effective_rows)
    given = contexts(500, seed=9)
    _, score = Bundle.load(place / "candidate").evaluate(given)
    _, expected_score = memory.evaluate(given)
    assert np.abs(score - expected_score).mean() < 0.02


@pytest.mark.timeout(600)
def test_spark_trains_as_well_as_memory(tmp_path: Path, memory: Trained) -> None:
    components.require("PySpark")
    components.require("unshare and setpriv as root")
    check(train("spark", SPARK, tmp_path), memory, tmp_path)


@pytest.mark.timeout(600)
def test_ray_trains_as_well_as_memory(tmp_path: Path, memory: Trained) -> None:
    """CI does not install Ray; `make test-ray` does, and runs this test."""
    if not batch_engines.python_of("ray").exists():
        pytest.skip("Ray is not installed; `make test-ray` installs it and runs this test")
    components.require("unshare and setpriv as root")
    check(train("ray", RAY, tmp_path), memory, tmp_path)
