"""Tests of training on decisions that stay in their files, against training in memory."""

from __future__ import annotations

import dataclasses
import io
import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from learning import contexts, logged, small_task
from typer.testing import CliRunner

from scorer.bundle import inspect
from scorer.cli import app
from scorer.commands.progress import trainings_bar
from scorer.learn.errors import DataError
from scorer.learn.experience import State, concatenate
from scorer.learn.experience_files import files_of, read, read_notes, write
from scorer.learn.experience_store import open_stored
from scorer.learn.training import trainers
from scorer.learn.training.fitting import fit
from scorer.learn.training.out_of_fold import folds
from scorer.learn.training.running import enough_memory, open_experience, trainer_of
from scorer.learn.training.settings import TrainSettings
from scorer.learn.training.tasks import write_task

COUNT = 9_000
PLAN = TrainSettings(
    trees=30, depth=3, learning_rate=0.3, folds=2, judged_weeks=1, tau=(0.0, 1.0), compare=False
)
DISK = PLAN.model_copy(update={"storage": "disk"})


def mixed(count=COUNT, seed=0):
    """Return decisions of which every seventh has no reward, every fifth no shopper, and all few choices."""
    e = logged(count, pmf=lambda c: np.where(c[:, :1] < 0, [[0.6, 0.3, 0.1]], [[0.2, 0.5, 0.3]]), seed=seed)
    rows = np.arange(count)
    missing = rows % 7 == 0
    eligible = np.ones((count, 3), dtype=np.bool_)
    eligible[rows, (e.action + 1) % 3] = rows % 3 != 0
    return dataclasses.replace(
        e,
        eligible=eligible,
        entity=np.where(rows % 5 == 0, "", e.entity),
        state=np.where(missing, State.MISSING, e.state).astype(np.int8),
        reward=np.where(missing, np.nan, e.reward),
        settled_ms=np.where(missing, -1, e.settled_ms),
    )


@pytest.fixture(scope="module")
def experience():
    return mixed()


@pytest.fixture(scope="module")
def places(tmp_path_factory, experience):
    """Write the experience as one file, and as a directory of three files with small row groups."""
    place = tmp_path_factory.mktemp("stored")
    write(experience, place / "one.parquet", {"as_of_ms": 7})
    for at, (start, end) in enumerate(((0, 2_000), (2_000, 2_001), (2_001, COUNT))):
        write(experience.take(slice(start, end)), place / f"many/{at}.parquet", {"as_of_ms": at})
    last = place / "many/2.parquet"
    pq.write_table(pq.read_table(last), last, row_group_size=900)
    (place / "many/.hidden.parquet").write_bytes(b"no Parquet")
    write_task(small_task(), place / "task")
    return place


@pytest.mark.parametrize("name", ["one.parquet", "many"])
def test_files_have_the_decisions_of_memory(places, experience, name):
    stored = open_stored(places / name)
    assert (stored.actions, stored.bundles, stored.context_columns) == (experience.actions, ("logger",), 2)
    chosen = np.random.default_rng(3).random(COUNT) < 0.3
    chosen[2_500:5_000] = False
    for ours, theirs in (
        (stored, experience),
        (stored.settled(), experience.settled()),
        (stored.take(chosen), experience.take(chosen)),
        (stored.settled().take(slice(-40, None)), experience.settled().take(slice(-40, None))),
        (
            stored.between(int(experience.time_ms[70]), int(experience.time_ms[4_000])),
            experience.between(int(experience.time_ms[70]), int(experience.time_ms[4_000])),
        ),
        (stored.take(np.zeros(COUNT, dtype=np.bool_)), experience.take(slice(0, 0))),
    ):
        assert len(ours) == len(theirs)
        for column in ("time_ms", "settled_ms", "action", "propensity", "reward", "state"):
            np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column), column)
        np.testing.assert_array_equal(ours.eligible_count, theirs.eligible_count)
        np.testing.assert_array_equal(ours.took_eligible, theirs.took_eligible)
        blocks = list(ours.blocks(700))
        assert all(0 < len(block) <= 700 for block in blocks)
        for column in ("context", "eligible", "action", "propensity", "reward"):
            found = [getattr(block, column) for block in blocks]
            expected = getattr(theirs, column)
            np.testing.assert_array_equal(np.concatenate([expected[:0], *found]), expected, column)
        np.testing.assert_array_equal(ours.contexts(), theirs.contexts())
        for by in ("entity", "time"):
            plan = PLAN.model_copy(update={"fold_by": by, "folds": 3})
            np.testing.assert_array_equal(folds(ours, plan), folds(theirs, plan))


def test_row_groups_without_a_chosen_decision_are_not_read(places, monkeypatch):
    stored = open_stored(places / "many")
    read_groups = []
    original = pq.ParquetFile.iter_batches

    def watched(self, *arguments, row_groups, **options):
        read_groups.extend(row_groups)
        return original(self, *arguments, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    last = stored.take(np.array([0, COUNT - 1]))
    assert sum(len(block) for block in last.blocks(100)) == 2
    assert read_groups == [0, (COUNT - 2_001) // 900]


def test_reference_contexts_are_an_evenly_spaced_sample(places, experience, monkeypatch):
    monkeypatch.setattr("scorer.learn.experience_store._SAMPLE_BYTES", 1)
    sample = open_stored(places / "many").contexts()
    expected = experience.context[np.linspace(0, COUNT - 1, 1024).astype(int)]
    np.testing.assert_array_equal(sample, expected)


@pytest.fixture(scope="module")
def in_memory(experience):
    return fit(small_task(), experience, PLAN)


def train_stored(places, plan, work, name="many", **more):
    stored = open_experience(places / name, plan)
    with trainer_of(small_task(), plan, stored, work, "sha256:0", **more) as trainer:
        return fit(small_task(), stored, plan, trainer=trainer, data_digest="sha256:0")


def test_external_memory_trains_as_well_as_memory(places, in_memory, tmp_path, monkeypatch):
    monkeypatch.setattr(trainers, "PAGE_BYTES", 10_000)
    trees = []
    stored = train_stored(
        places, DISK, tmp_path / "work", on_tree=lambda done, most: trees.append((done, most))
    )
    assert trees[:30] == [(at, 30) for at in range(1, 31)]
    assert len(trees) == 30 * 5
    assert not (tmp_path / "work").exists()
    for measure, most in (("auc", 0.004), ("log_loss", 0.002), ("brier", 0.001), ("mean_predicted", 0.003)):
        assert stored.metrics[measure] == pytest.approx(in_memory.metrics[measure], abs=most), measure
    assert stored.metrics["mean_reward"] == in_memory.metrics["mean_reward"]
    assert stored.lineage["decisions"] == in_memory.lineage["decisions"]
    assert stored.weights.tau == in_memory.weights.tau
    for ours, theirs in zip(stored.weights.candidates, in_memory.weights.candidates, strict=True):
        assert ours.value == pytest.approx(theirs.value, abs=0.01)
        assert ours.effective_rows == theirs.effective_rows
    given = contexts(500, seed=9)
    _, score = stored.evaluate(given)
    _, expected = in_memory.evaluate(given)
    assert np.abs(score - expected).mean() < 0.02


def test_external_memory_learns_weights_and_missing_values(tmp_path):
    """Weights leave a third of the rows, whose rewards are inverted, almost without effect."""
    e = logged(6_000)
    rows = np.arange(len(e))
    context, reward = e.context.copy(), e.reward.copy()
    context[rows % 4 == 0, 0] = np.nan
    reward[rows % 3 == 0] = 1 - reward[rows % 3 == 0]
    write(dataclasses.replace(e, context=context, reward=reward), tmp_path / "e.parquet")
    weights = np.where(rows % 3 == 0, 0.001, 1.499)
    plan = DISK.model_copy(update={"subsample": 1.0, "colsample": 1.0})
    stored, memory = open_stored(tmp_path / "e.parquet"), read(tmp_path / "e.parquet")
    disk = trainers.DiskTrainer(small_task(), plan, tmp_path)
    expected = trainers.MemoryTrainer(small_task(), plan)
    expected_margins = expected.margins(expected.train(memory, weights), memory)
    ours = disk.margins(disk.train(stored, weights), stored)
    assert np.abs(ours - expected_margins).mean() < 0.05
    unweighted = disk.margins(disk.train(stored, np.ones(len(rows))), stored)
    assert np.abs(unweighted - expected_margins).mean() > 0.5
    # Where the amount is missing, the prediction is that of the actions' means.
    assert np.abs(ours[rows % 4 == 0]).mean() < np.abs(ours[rows % 4 != 0]).mean()


def test_external_memory_gives_the_same_forest_again(places, tmp_path):
    plan = DISK.model_copy(update={"tau": (0.5,), "members": 2})
    first = train_stored(places, plan, tmp_path / "a")
    again = train_stored(places, plan, tmp_path / "b")
    assert first.oracle.booster.save_raw() == again.oracle.booster.save_raw()
    assert [one.save_raw() for one in first.members] == [one.save_raw() for one in again.members]
    assert first.members[0].save_raw() != first.members[1].save_raw()


def test_an_interrupted_training_continues_after_its_finished_forests(places, tmp_path, monkeypatch):
    plan = DISK.model_copy(update={"tau": (0.0,), "folds": 3})
    whole = train_stored(places, plan, tmp_path / "other")
    trained = []
    original = trainers.DiskTrainer.train

    def watched(self, known, weights, seed=None):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(len(known))
        return original(self, known, weights, seed)

    monkeypatch.setattr(trainers.DiskTrainer, "train", watched)
    with pytest.raises(KeyboardInterrupt):
        train_stored(places, plan, tmp_path / "work")
    assert len(list((tmp_path / "work/forests").iterdir())) == 2
    # What a killed process leaves, and a file of the user.
    (tmp_path / "work/pages-x").mkdir()
    (tmp_path / "work/notes").touch()
    monkeypatch.setattr(trainers.DiskTrainer, "train", original)
    done = []
    monkeypatch.setattr(trainers.DiskTrainer, "train", lambda *given: (done.append(0), original(*given))[1])
    resumed = train_stored(places, plan, tmp_path / "work")
    assert len(done) == 2
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["notes"]
    assert resumed.oracle.booster.save_raw() == whole.oracle.booster.save_raw()
    assert resumed.lineage == whole.lineage
    # Other settings use none of the finished forests.
    with pytest.raises(ZeroDivisionError):
        stop_after(places, plan, tmp_path / "third")
    done.clear()
    train_stored(places, plan.model_copy(update={"depth": 2}), tmp_path / "third")
    assert len(done) == 4


def stop_after(places, plan, work):
    """Train all forests, and end with an error, so that they stay."""
    stored = open_experience(places / "many", plan)
    with trainer_of(small_task(), plan, stored, work, "sha256:0") as trainer:
        fit(small_task(), stored, plan, trainer=trainer)
        raise ZeroDivisionError


def test_a_directory_is_read_into_memory_as_one_experience(places, experience):
    both = open_experience(places / "many", PLAN)
    np.testing.assert_array_equal(both.context, experience.context)
    assert both.digest() == concatenate([read(file) for file in files_of(places / "many")]).digest()
    assert read_notes(places / "many") == {"as_of_ms": 0}


def test_the_command_trains_from_a_directory_on_disk(places, tmp_path):
    (tmp_path / "learn.toml").write_text(
        '[train]\ntrees = 10\ndepth = 3\nfolds = 2\ntau = [0.0]\nstorage = "disk"\ncompare = false\n'
    )
    arguments = ["learn", "train", str(places / "many"), "--config", str(tmp_path / "learn.toml"), "--json"]
    arguments += ["--task", str(places / "task"), "--output", str(tmp_path / "candidate")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["decisions"]["count"] == COUNT
    assert (
        inspect(tmp_path / "candidate").manifest.lineage.data_digest == open_stored(places / "many").digest()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["candidate", "learn.toml"]


def test_a_terminal_shows_the_training_and_its_trees(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with trainings_bar(3) as (advance, on_tree):
        on_tree(30, 30)
        advance("fold 1 of 2")
        on_tree(2, 30)
    assert "training: fold 1 of 2, tree 2 of 30" in terminal.getvalue()
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with trainings_bar(3) as (advance, on_tree):
        advance("oracle")
        assert on_tree is None


def test_what_cannot_be_used_is_refused(places, experience, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        open_stored(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="there are no Parquet files"):
        open_stored(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        open_stored(tmp_path)
    (tmp_path / "x.parquet").unlink()
    write(experience, tmp_path / "d/0.parquet")
    write(dataclasses.replace(experience, context=experience.context[:, :1]), tmp_path / "d/1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: its catalogue or its number of columns is not that of"):
        open_stored(tmp_path / "d")
    write(experience.take(slice(0, 0)), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="it has no decisions"):
        open_stored(tmp_path / "empty.parquet")
    # The file is damaged after it was opened.
    write(experience, tmp_path / "later.parquet")
    stored = open_stored(tmp_path / "later.parquet")
    (tmp_path / "later.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"later\.parquet: not a readable Parquet file"):
        train_on(stored, tmp_path / "work")
    with (
        trainer_of(small_task(), DISK, stored, tmp_path / "work", ""),
        pytest.raises(DataError, match="another process uses it; wait for that process, or give another"),
        trainer_of(small_task(), DISK, stored, tmp_path / "work", ""),
    ):
        pass
    with pytest.raises(DataError, match="compare = false"):
        fit(
            small_task(),
            open_stored(places / "many"),
            PLAN.model_copy(update={"compare": True, "tau": (0.0,)}),
        )


def train_on(stored, work):
    with trainer_of(small_task(), DISK, stored, work, "") as trainer:
        trainer.train(stored.settled(), np.ones(len(stored.settled())))


@pytest.mark.parametrize(("engine", "extra"), [("spark", "train,spark"), ("ray", "train,ray")])
def test_a_missing_package_names_the_extra(places, tmp_path, engine, extra):
    plan = PLAN.model_copy(update={"engine": engine})
    stored = open_experience(places / "many", plan)
    with (
        pytest.raises(DataError) as refused,
        trainer_of(small_task(), plan, stored, tmp_path / "work", ""),
    ):
        pass
    assert f'engine = "{engine}" needs the package' in str(refused.value)
    assert f'pip install "scorer[{extra}]"' in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "work").exists()


def test_memory_that_is_not_sufficient_is_an_error_of_one_line():
    with (
        pytest.raises(DataError, match=r'not sufficient; set \[train\] storage = "disk"'),
        enough_memory(PLAN),
    ):
        raise MemoryError
    with pytest.raises(DataError, match="give the process more memory"), enough_memory(DISK):
        raise MemoryError
    with pytest.raises(ValueError, match="other"), enough_memory(PLAN):
        raise ValueError("other")
