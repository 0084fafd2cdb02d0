"""Tests of data sets on record: checks, drift to the last one, and the way from a bundle to its data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bundles import tiny_score_bundle
from fraud_tables import DAY_MS, TASK, columns, write
from servers import scorer_in_process

from scorer.bundle.lineage import digest_of
from scorer.learn.datasets.records import DatasetStore
from scorer.learn.errors import DataError
from scorer.learn.fraud.task import write_score_task


@pytest.fixture
def task(tmp_path: Path) -> Path:
    write_score_task(TASK, tmp_path / "task")
    return tmp_path / "task"


def run(command: str, file: Path, task: Path, purpose: str, *more: str):
    store = ("--store", str(task.parent / "records"))
    return scorer_in_process(
        "datasets",
        command,
        str(file),
        "--name",
        "fraud",
        "--purpose",
        purpose,
        "--task",
        str(task),
        *store,
        *more,
    )


def findings(outcome) -> dict[str, str]:
    assert outcome.returncode == 0, outcome.stderr
    return {one["name"]: one["effect"] for one in json.loads(outcome.stdout)["findings"]}


def test_a_data_set_is_recorded_once_with_its_window_and_labels(tmp_path: Path, task: Path) -> None:
    given = columns()
    file = write(tmp_path / "a.parquet", given)
    checked = run("check", file, task, "training", "--json")
    assert findings(checked) == {}
    assert not (tmp_path / "records").exists(), "check records nothing"
    for _ in range(2):
        assert run("add", file, task, "training").returncode == 0
    (record,) = DatasetStore(tmp_path / "records").records()
    assert record.digest == digest_of(file)
    assert (record.rows, record.excluded, record.positive) == (6_000, 0, int(given["label"].sum()))
    assert record.label_rate == pytest.approx(float(given["label"].mean()))
    times = given["decided_at_ms"]
    assert (record.begins_ms, record.ends_ms) == (times.min(), times.max())
    counts = {one.name: one.counts for one in record.columns}
    assert counts["country"][:3] == tuple(np.bincount(given["country"].astype(int)).tolist())
    assert all(sum(count[:-1]) == 6_000 and count[-1] == 0 for count in counts.values())
    listed = scorer_in_process("datasets", "list", "--store", str(tmp_path / "records"))
    assert "fraud" in listed.stdout and record.digest[7:19] in listed.stdout


def test_drift_to_the_last_of_the_same_purpose_is_reported_or_rejects(tmp_path: Path, task: Path) -> None:
    assert run("add", write(tmp_path / "a.parquet"), task, "training").returncode == 0
    same = write(tmp_path / "same.parquet", columns(seed=1))
    assert findings(run("check", same, task, "training", "--json")) == {}, "another sample is no drift"
    changed = columns(seed=2)
    file = write(tmp_path / "b.parquet", changed, noise=changed["noise"] + np.float32(1.0))
    assert findings(run("check", file, task, "drift", "--json")) == {}, "no earlier one of this purpose"
    assert findings(run("check", file, task, "training", "--json")) == {"drift noise": "reported"}
    refused = run("add", file, task, "training", "--changes", "reject")
    assert refused.returncode == 1
    assert '"noise" has a PSI of ' in refused.stderr
    assert len(DatasetStore(tmp_path / "records").records()) == 1


def test_a_label_rate_that_doubles_is_drift(tmp_path: Path, task: Path) -> None:
    given = columns()
    assert run("add", write(tmp_path / "a.parquet", given), task, "training").returncode == 0
    label = given["label"].copy()
    label[np.random.default_rng(3).random(len(label)) < 0.25] = 1
    file = write(tmp_path / "b.parquet", given, label=label, label_known_ms=None)
    assert findings(run("check", file, task, "training", "--json")) == {"drift label": "reported"}


def test_evaluation_data_of_the_time_of_training_is_reported(tmp_path: Path, task: Path) -> None:
    assert run("add", write(tmp_path / "a.parquet"), task, "training").returncode == 0
    same = write(tmp_path / "b.parquet", columns(seed=1))
    assert findings(run("check", same, task, "evaluation", "--json")) == {"window": "reported"}
    later = columns(seed=1)
    later["decided_at_ms"] += 60 * DAY_MS
    later["label_known_ms"] += 60 * DAY_MS * (later["label_known_ms"] > 0)
    file = write(tmp_path / "c.parquet", later)
    assert findings(run("check", file, task, "evaluation", "--json")) == {}


LEAK = columns()["label"].astype(np.float32)
BAD = {
    "a range": ({"velocity": np.full(6_000, -1, np.float32)}, '"velocity" that the schema rejects'),
    "a duplicate": ({"decision_id": np.array(["d"] * 6_000)}, "repeat the id and label"),
    "leakage": ({"noise": LEAK}, '"noise" alone separates the labels'),
    "no positive label": ({"label": np.zeros(6_000, np.int8)}, "of the labels are positive"),
    "a missing column": ({"velocity": None}, "column velocity is missing"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_a_rule_rejects_is_not_recorded(tmp_path: Path, task: Path, case: str) -> None:
    changes, reason = BAD[case]
    refused = run("add", write(tmp_path / "a.parquet", **changes), task, "training")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert reason in refused.stderr
    assert not (tmp_path / "records").exists()


def test_rows_are_excluded_by_rule(tmp_path: Path, task: Path) -> None:
    amount = columns()["amount"].copy()
    amount[:10] = -1
    config = tmp_path / "learn.toml"
    config.write_text('[fraud.checks]\nout_of_range = "exclude"\n')
    file = write(tmp_path / "a.parquet", amount=amount, label=None, decided_at_ms=None)
    assert run("check", file, task, "batch").returncode == 1
    kept = run("check", file, task, "batch", "--config", str(config), "--json")
    assert findings(kept) == {"range amount": "excluded"}
    assert json.loads(kept.stdout)["excluded"] == 10


def test_an_unlisted_category_and_a_missing_feature_are_refused_without_labels(
    tmp_path: Path, task: Path
) -> None:
    country = np.array(["NL"] * 5_999 + ["XX"])
    refused = run("check", write(tmp_path / "a.parquet", country=country), task, "drift")
    assert 'row 5,999: feature "country"' in refused.stderr
    refused = run("check", write(tmp_path / "b.parquet", noise=None), task, "drift")
    assert 'feature "noise"' in refused.stderr


def test_a_bundle_leads_to_the_record_of_its_data(tmp_path: Path, task: Path) -> None:
    file = write(tmp_path / "a.parquet")
    assert run("add", file, task, "training").returncode == 0
    store = ("--store", str(tmp_path / "records"))
    tiny_score_bundle(tmp_path / "bundle", lineage={"data_digest": digest_of(file)})
    shown = scorer_in_process("datasets", "show", str(tmp_path / "bundle"), *store, "--json")
    (record,) = json.loads(shown.stdout)
    assert record["digest"] == digest_of(file)
    by_digest = scorer_in_process("datasets", "show", record["digest"][7:17], *store)
    assert by_digest.stdout.startswith(f"fraud for training: {record['digest']}\n6,000 rows")
    for reference in ("sha256:" + "0" * 64, record["digest"][7:12], "nothing"):
        assert scorer_in_process("datasets", "show", reference, *store).returncode == 1
    (path,) = (tmp_path / "records").iterdir()
    path.write_text("{}")
    with pytest.raises(DataError, match="not a record of this version"):
        DatasetStore(tmp_path / "records").records()
