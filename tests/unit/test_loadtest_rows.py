"""Tests of features to send, from files and from schemas, and of settings and cases."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scorer.client import CheckpointInfo, FeatureInfo
from scorer.loadtest import LoadTestError
from scorer.loadtest.rows import MAX_ROWS, dense, generate_rows, read_rows
from scorer.loadtest.settings import LoadSettings, case_file, make_settings

INFO = CheckpointInfo(
    checkpoint="fraud.checkout",
    kind="score",
    bundle="sha256:0",
    bundle_name="b",
    lane_table=1,
    lanes=(),
    fingerprint=9,
    features=(
        FeatureInfo("amount", "number", missing="refuse", minimum=0.0, maximum=100.0),
        FeatureInfo("age", "number", minimum=18.0),
        FeatureInfo("drift", "number", maximum=-5.0),
        FeatureInfo(
            "country", "category", categories=("NL", "DE"), unknown_category="missing", missing="refuse"
        ),
        FeatureInfo("returning", "flag"),
    ),
    actions=(),
    thresholds=(),
    policy="",
    sla_p99_ms=10,
    max_batch_rows=100,
)


def test_generated_rows_match_the_schema():
    rows = generate_rows(INFO, 2000, seed=3)
    assert rows == generate_rows(INFO, 2000, seed=3)
    assert rows != generate_rows(INFO, 2000, seed=4)
    amounts = [row["amount"] for row in rows]
    assert all(0 <= amount <= 100 for amount in amounts)
    assert min(amounts) < 10 < 90 < max(amounts)
    assert {row["country"] for row in rows} == {"NL", "DE"}
    assert {row["returning"] for row in rows} == {True, False, None}
    ages = [row["age"] for row in rows]
    assert 50 < ages.count(None) < 150
    assert all(age is None or age > 18 for age in ages)
    assert all(row["drift"] is None or row["drift"] < -5 for row in rows)


def test_a_dense_row_has_the_order_of_the_schema():
    row = dense({"country": "DE", "amount": 5, "returning": True}, INFO)
    assert [None if math.isnan(value) else value for value in row] == [5.0, None, None, 1.0, 1.0]
    assert math.isnan(dense({"country": "FR"}, INFO)[3])
    with pytest.raises(LoadTestError, match='has no feature "colour"'):
        dense({"colour": 1}, INFO)


def test_rows_are_read_from_parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    table = pa.table(
        {
            "unrelated": ["x", "y"],
            "returning": [1, 0],
            "amount": [3, 4],
            "age": [math.nan, 30.5],
            "country": pa.array(["NL", None]).dictionary_encode(),
        }
    )
    pq.write_table(table, path)
    assert read_rows(path, INFO) == [
        {"amount": 3.0, "age": None, "country": "NL", "returning": True},
        {"amount": 4.0, "age": 30.5, "country": None, "returning": False},
    ]


def test_rows_are_read_from_npy_and_jsonl(tmp_path):
    array = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.save(tmp_path / "rows.npy", array)
    assert read_rows(tmp_path / "rows.npy", INFO) == array.tolist()
    lines = ['{"amount": 1, "country": "NL"}', "", "[1, null, 3, 0, 1]"]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    named, vector = read_rows(tmp_path / "rows.jsonl", INFO)
    assert named == {"amount": 1, "country": "NL"}
    assert math.isnan(vector[1])


def test_long_files_are_truncated(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((MAX_ROWS + 5, 5)))
    assert len(read_rows(tmp_path / "rows.npy", INFO)) == MAX_ROWS
    (tmp_path / "rows.jsonl").write_text("[1,2,3,0,1]\n" * (MAX_ROWS + 5))
    assert len(read_rows(tmp_path / "rows.jsonl", INFO)) == MAX_ROWS
    pq.write_table(
        pa.table({"amount": range(MAX_ROWS + 5), "country": ["NL"] * (MAX_ROWS + 5)}), tmp_path / "r.parquet"
    )
    assert len(read_rows(tmp_path / "r.parquet", INFO)) == MAX_ROWS


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.csv", "a,b", r"rows come from a \.parquet, \.npy or \.jsonl file"),
        ("absent.npy", None, "no such file"),
        ("rows.npy", b"junk", "rows.npy: "),
        ("rows.npy", np.zeros((2, 3)), r"has shape \(2, 3\); fraud\.checkout needs \[rows, 5\]"),
        ("rows.npy", np.zeros(5), r"has shape \(5,\)"),
        ("rows.npy", np.zeros((0, 5)), "has no rows"),
        ("rows.parquet", b"PAR1 no", "rows.parquet: "),
        (
            "rows.parquet",
            {"age": [1.0], "country": ["NL"]},
            'has no column "amount", which fraud.checkout needs',
        ),
        ("rows.parquet", {"other": [1.0]}, 'has no column "amount", "country"'),
        ("rows.jsonl", "", "has no rows"),
        ("rows.jsonl", "[1,2]\n", "rows.jsonl:1: has 2 values; fraud.checkout needs 5"),
        ("rows.jsonl", '{"a":1}\n{"a"\n', "rows.jsonl:2: "),
        ("rows.jsonl", "7\n", "rows.jsonl:1: is neither an object of names nor an array"),
    ],
)
def test_files_without_rows_are_refused(tmp_path, name, content, words):
    path = tmp_path / name
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif isinstance(content, dict):
        pq.write_table(pa.table(content), path)
    elif content is not None:
        write(path, content)
    with pytest.raises(LoadTestError, match=words) as caught:
        read_rows(path, INFO)
    assert "\n" not in str(caught.value)


# -- settings --------------------------------------------------------------------------

MINIMAL = {"target": "localhost:1", "rate": 10}


@pytest.mark.parametrize(
    ("given", "methods"),
    [
        ("score", {"score": 1.0}),
        ("mix", {"score": 8.0, "select_action": 2.0}),
        ("score=3, batch=1", {"score": 3.0, "batch": 1.0}),
        ("score,noop", {"score": 1.0, "noop": 1.0}),
    ],
)
def test_methods_are_parsed(given, methods):
    assert make_settings(MINIMAL | {"methods": given}).methods == methods


def test_a_long_run_has_longer_windows():
    assert make_settings(MINIMAL).window == 1.0
    assert make_settings(MINIMAL | {"seconds": 60}).window == 10.0
    assert make_settings(MINIMAL | {"seconds": 60, "window_seconds": 2}).window == 2.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rate": 0}, "rate: 0: input should be greater than 0"),
        ({"rate": math.nan}, "rate: nan: input should be"),
        ({"rate": 2_000_000}, "rate: 2000000: input should be less than"),
        ({"seconds": math.inf}, "seconds: inf"),
        ({"warmup_seconds": -1}, "warmup_seconds: -1"),
        ({"connections": 0}, "connections: 0"),
        ({"threads": 65}, "threads: 65"),
        ({"arrivals": "bursty"}, "arrivals: 'bursty': input should be 'uniform' or 'poisson'"),
        ({"features": "sparse"}, "features: 'sparse'"),
        ({"methods": "train"}, 'method: "train" is unknown; use noop, score, select_action, batch, mix'),
        ({"methods": "score=0"}, "method.score: '0'"),
        ({"methods": "score=x"}, "method.score: 'x'"),
        ({"timeout_ms": 0}, "timeout_ms: 0"),
        ({"colour": 1}, "colour: is no setting of a load test"),
    ],
)
def test_invalid_settings_are_refused(given, words):
    with pytest.raises(LoadTestError) as caught:
        make_settings(MINIMAL | given)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_all_problems_are_reported_together():
    with pytest.raises(LoadTestError, match=r"target: is required; rate: -1: .*; seconds: 0: "):
        make_settings({"rate": -1, "seconds": 0})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such case"),
        ("description = ", "case.toml: "),
        ("description = 'x'\ngoal = 'y'", "load: is required"),
        ("description = 'x'\ngoal = 'y'\nextra = 1\n[load]\n", "extra: is no setting"),
    ],
)
def test_invalid_cases_are_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / "case.toml").write_text(text)
    with pytest.raises(LoadTestError, match=words) as caught:
        case_file(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_case_finds_its_rows_in_its_folder(tmp_path):
    (tmp_path / "case.toml").write_text("description = 'x'\ngoal = 'y'\n[load]\nrows = 'rows.jsonl'\n")
    assert case_file(tmp_path).load == {"rows": str(tmp_path / "rows.jsonl")}
    assert case_file(tmp_path / "case.toml") == case_file(tmp_path)


def test_settings_are_read_unchanged_from_json():
    settings = make_settings(MINIMAL | {"methods": "mix"})
    assert LoadSettings.model_validate(json.loads(settings.model_dump_json())) == settings
