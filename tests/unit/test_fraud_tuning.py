"""Tuning of fraud models: a study that is killed and continues, pruning, budgets, and the page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import fraud_tables as small
import optuna
import pytest
from fraud_tables import SMALL, TASK
from optuna.trial import TrialState
from typer.testing import CliRunner

from scorer.commands.learn.fraud import app
from scorer.learn.errors import DataError
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.task import write_score_task
from scorer.learn.fraud.tuning import STUDY, best_settings, read_study, tune
from scorer.learn.fraud.tuning_page import tuning_page

TUNE = {"trials": 4, "workers": 1, "folds": 2, "rows": 2_000, "warm_up": 2}


def plan(**update) -> FraudSettings:
    return FraudSettings.model_validate(SMALL.model_dump() | {"tune": TUNE | update})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.write(tmp_path_factory.mktemp("data") / "data.parquet")


# Starts a study, and ends itself by SIGKILL when the third trial has a value of its first fold.
_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from optuna.trial import Trial
from fraud_tables import SMALL, TASK
from scorer.learn.fraud import tuning
from scorer.learn.fraud.settings import FraudSettings

if __name__ == "__main__":
    report = Trial.report

    def kill(self, value, step):
        report(self, value, step)
        if self.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    Trial.report = kill
    tune = {"trials": 4, "workers": 1, "folds": 2, "rows": 2_000, "warm_up": 2}
    plan = FraudSettings.model_validate(SMALL.model_dump() | {"tune": tune})
    tuning.tune(Path(sys.argv[1]), TASK, plan, Path(sys.argv[2]))
"""


def test_a_killed_study_continues_with_the_trial_that_it_left(data, tmp_path):
    script, path = tmp_path / "killed.py", tmp_path / "study.sqlite"
    script.write_text(_KILLED)
    support = os.path.dirname(small.__file__)  # noqa: PTH120
    done = subprocess.run(
        [sys.executable, str(script), str(data), str(path), support],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = read_study(path).trials
    assert [one.state for one in left] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.RUNNING]

    counts: list[int] = []
    found = tune(data, TASK, plan(), path, advance=counts.append)
    assert found.resumed == 1
    assert found.began == 2
    assert counts == [3, 4]
    states = [one.state for one in found.study.trials]
    assert states[:3] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]
    assert set(states[3:]) <= {TrialState.COMPLETE, TrialState.PRUNED}
    again = found.study.trials[3]
    assert again.params == left[2].params
    assert again.intermediate_values[0] == left[2].intermediate_values[0]

    # Nothing is left to do.
    found = tune(data, TASK, plan(), path)
    assert (found.began, found.resumed) == (0, 0)

    with pytest.raises(DataError, match="is of other data, windows or settings"):
        tune(data, TASK, plan(folds=1), path)
    chosen = best_settings(path, SMALL)
    assert chosen.depth == found.study.best_params["depth"]
    assert chosen.trees == found.study.best_params["trees"]
    assert chosen.delay_days == SMALL.delay_days

    page = tuning_page(found.study, data="data.parquet")
    assert f"Trial {found.study.best_trial.number} is the best" in page
    assert page.count("<svg") == 3


def test_the_first_trial_has_the_given_settings_and_the_time_ends_the_run(data, tmp_path):
    # The clock is read once at the beginning and once before each trial.
    times = iter([0.0, 1.0, 59.0, 61.0, 61.0, 61.0])
    found = tune(data, TASK, plan(minutes=1.0), tmp_path / "study", clock=lambda: next(times))
    assert found.began == 2
    first = found.study.trials[0].params
    assert (first["depth"], first["trees"], first["learning_rate"]) == (3, 30, 0.2)
    with pytest.raises(DataError, match="no trial is complete"):
        tune(data, TASK, plan(minutes=1e-9), tmp_path / "other")


def test_a_trial_that_is_behind_the_median_is_pruned(data, tmp_path, monkeypatch):
    monkeypatch.setattr(optuna.pruners.MedianPruner, "prune", lambda *_: True)
    found = tune(data, TASK, plan(folds=1, trials=1), tmp_path / "one")
    assert [one.state for one in found.study.trials] == [TrialState.COMPLETE]
    with pytest.raises(DataError, match="no trial is complete"):
        tune(data, TASK, plan(trials=2), tmp_path / "two")
    trials = read_study(tmp_path / "two").trials
    assert [one.state for one in trials] == [TrialState.PRUNED, TrialState.PRUNED]
    assert [sorted(one.intermediate_values) for one in trials] == [[0], [0]]


def test_a_study_that_is_in_use_or_no_study_is_refused(data, tmp_path):
    import fcntl

    path = tmp_path / "study"
    with (tmp_path / ".study.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="is used by another process"):
            tune(data, TASK, plan(), path)
    with pytest.raises(DataError, match="no such file"):
        read_study(path)
    path.write_text("no database")
    with pytest.raises(DataError, match="not a study of this command"):
        read_study(path)


def test_the_command_writes_the_page_and_train_uses_the_best_trial(data, tmp_path):
    write_score_task(TASK, tmp_path / "fraud-test")
    config, study = tmp_path / "learn.toml", tmp_path / "study.sqlite"
    config.write_text(
        "[fraud]\ntrees = 20\nlearning_rate = 0.2\ndepth = 2\nthreads = 1\n"
        "delay_days = 3\nbaseline = 'amount'\n"
        "[fraud.columns]\nentity = 'customer'\n[fraud.tune]\nfolds = 1\nrows = 2000\n"
    )
    same = [str(data), "--task", str(tmp_path / "fraud-test"), "-c", str(config)]
    run = CliRunner().invoke
    done = run(app, ["tune", *same, "--study", str(study), "--trials", "2", "--workers", "2"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "study.html").read_text().startswith("<!doctype html>")
    done = run(app, ["train", *same, "--study", str(study), "-o", str(tmp_path / "candidate")])
    assert done.exit_code == 0, done.output
    best = optuna.load_study(study_name=STUDY, storage=f"sqlite:///{study}").best_params
    manifest = (tmp_path / "candidate" / "manifest.json").read_text()
    assert f'"trees":{best["trees"]}' in manifest.replace(" ", "")
