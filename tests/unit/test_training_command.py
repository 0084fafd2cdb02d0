"""Tests of `scorer learn train`, from files to a bundle, and of the comparison of the article."""

from __future__ import annotations

import json

import pytest
from learning import logged, small_task
from typer.testing import CliRunner

from examples.simulators.__main__ import app as simulators
from scorer.bundle import inspect
from scorer.cli import app
from scorer.learn import experience_files
from scorer.learn.errors import DataError
from scorer.learn.training.tasks import read_task, write_task

SETTINGS = """
[train]
trees = 15
depth = 3
learning_rate = 0.3
folds = 2
judged_weeks = 1
tau = [0.0, 1.0]
compare_forest_trees = 8
[train.policy]
rule = "squarecb"
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    place = tmp_path_factory.mktemp("train")
    task = small_task()
    write_task(task, place / "task")
    experience_files.write(logged(2_000), place / "experience.parquet", {"as_of_ms": 7})
    (place / "learn.toml").write_text(SETTINGS)
    return place


def run(place, *more):
    arguments = ["learn", "train", str(place / "experience.parquet"), "--config", str(place / "learn.toml")]
    return CliRunner().invoke(app, [*arguments, *map(str, more)])


def test_a_written_task_is_read_unchanged(places):
    read = read_task(places / "task")
    task = small_task()
    assert (read.context, read.action) == (task.context, task.action)
    assert [one.id for one in read.actions] == [one.id for one in task.actions]
    assert read.name == "task"


def test_the_task_of_simulated_payments_can_be_written(tmp_path):
    from examples.simulators.task import authorise_task

    done = CliRunner().invoke(simulators, ["task", "--to", str(tmp_path / "action-authorise")])
    assert done.exit_code == 0, done.output
    read, task = read_task(tmp_path / "action-authorise"), authorise_task()
    assert (read.name, read.context, read.action) == (task.name, task.context, task.action)
    assert [dict(one.attributes) for one in read.actions] == [dict(one.attributes) for one in task.actions]
    assert read.action_rows().tolist() == task.action_rows().tolist()


def test_commands_train_two_generations(places):
    first = run(places, "--task", places / "task", "--output", places / "one")
    assert first.exit_code == 0, first.output
    for report in (
        "AUC",
        "AUCPR",
        "artifact",
        "per decision",
        "logistic regression",
        "random forest",
        "gamma",
    ):
        assert report in first.output
    second = run(places, "--task", places / "one", "--output", places / "two", "--json", "--run-id", "r2")
    assert second.exit_code == 0, second.output
    report = json.loads(second.output)
    info = inspect(places / "two")
    learned = info.manifest.lineage.metrics["learning"]
    assert (report["generation"], learned["generation"]) == (2, 2)
    assert learned["previous"]["bundle"] == inspect(places / "one").digest
    assert learned["join"] == {"as_of_ms": 7}
    assert info.manifest.lineage.run_id == "r2"
    # The same log gives the same oracle, and gamma must not have grown.
    assert learned["gamma"]["gamma"] == learned["gamma"]["previous"]
    models = {one["model"]: one for one in report["comparison"]}
    assert set(models) == {"xgboost", "logistic regression", "random forest"}
    for one in models.values():
        assert 0.5 < one["auc"] < 1
        assert min(one["artifact_bytes"], one["decision_us"]) > 0
        assert 0 < one["aucpr_declines"] < 1
    # The best action changes with the amount. A linear model cannot represent this, but trees can.
    assert models["xgboost"]["auc"] > models["logistic regression"]["auc"] + 0.02
    assert models["logistic regression"]["engine_us"] is None
    assert models["random forest"]["artifact_bytes"] > models["logistic regression"]["artifact_bytes"]
    assert models["random forest"]["engine_us"] > 0
    # Durations are printed and not stored, so that the same training has the same lineage.
    assert all("decision_us" not in one for one in learned["comparison"])


def test_invalid_inputs_are_refused(places, tmp_path):
    def refused(*more):
        done = run(places, *more)
        assert isinstance(done.exception, DataError), done.output
        return str(done.exception)

    (tmp_path / "there").mkdir()
    assert "exists; bundles are immutable" in refused(
        "--task", places / "task", "--output", tmp_path / "there"
    )
    assert "no such directory" in refused("--task", tmp_path / "none", "--output", tmp_path / "x")
    assert "there is no schema.json" in refused("--task", tmp_path, "--output", tmp_path / "x")
    (tmp_path / "schema.json").write_text((places / "task" / "schema.json").read_text())
    assert "there is no actions.json" in refused("--task", tmp_path, "--output", tmp_path / "x")
    (tmp_path / "actions.json").write_text('[{"id": "a", "features": [1, 2]}]')
    assert 'action "a" has 2 features' in refused("--task", tmp_path, "--output", tmp_path / "x")
    assert not (tmp_path / "x").exists()
