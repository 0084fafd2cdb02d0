"""Tests of transforms in bundles: functions against numpy, and models that are trained on added columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from pyarrow import parquet
from trained import (
    ACTION_FEATURES,
    ACTIONS,
    BANDS,
    CONTEXT,
    CREATED,
    LINEAGE,
    SALT,
    contexts,
    labels_of,
    train,
)

from scorer.bundle import (
    Arithmetic,
    Bucket,
    Bundle,
    CategoryTable,
    Clip,
    DatePart,
    Feature,
    FeatureRatio,
    Log1p,
    MissingFlag,
    PolicySpec,
    ReasonEntry,
    ReasonsFile,
    SchemaFile,
    Standardise,
    TableLookup,
    added_columns,
    build_action_bundle,
    build_score_bundle,
    fit_target_table,
    inspect,
    transform,
    verify,
)
from scorer.bundle.models import TransformStep
from scorer.cli import main
from scorer.errors import BundleError
from scorer.explain.counterfactual import ActionableFeature, find_counterfactual

TABLES = {"risk": CategoryTable(values={"NL": 0.25, "FR": 0.7}, default=0.1)}
STEPS: list[TransformStep] = [
    Clip(feature="amount", high=1000),
    Bucket(feature="amount", edges=[10, 20.1, 50], output="class"),
    MissingFlag(feature="hour", output="hour_unknown"),
    TableLookup(feature="country", table="risk", output="risk"),
    Arithmetic(function="multiply", left="amount", right="risk", output="loss"),
    FeatureRatio(left="amount", right="hour", zero=-1.0, output="per_hour"),
    Log1p(feature="amount", output="log_amount"),
]
NAMES = [*(feature.name for feature in CONTEXT), *added_columns(STEPS)]


def reference(rows: np.ndarray) -> np.ndarray:
    """Return what `STEPS` define, computed by numpy in float64 and rounded once."""
    amount = np.minimum(rows[:, 0], np.float32(1000))
    hour, country = rows[:, 1], rows[:, 2]
    wide = amount.astype(np.float64)
    risk = np.select([country == 0, country == 2], [0.25, 0.7], 0.1).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = wide / hour.astype(np.float64)
        ratio = np.where(np.isinf(ratio.astype(np.float32)) | (hour == 0), -1.0, ratio)
    added = [
        np.searchsorted(np.float32([10, 20.1, 50]), amount, side="right"),
        np.isnan(hour),
        risk,
        wide * risk.astype(np.float64),
        ratio,
        np.log1p(wide),
    ]
    return np.stack([amount, hour, country, rows[:, 3], *added], axis=1).astype(np.float32)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["scorer", "bundle", *arguments])
    try:
        code = main()
    except SystemExit as stopped:
        code = stopped.code
    return int(code or 0)


def build(path: Path, model: Any, **changes: Any) -> Bundle:
    data = contexts(600)
    settings: dict[str, Any] = {
        "name": "fraud",
        "model": model,
        "schema": SchemaFile(features=CONTEXT),
        "bands": BANDS,
        "training": data[:400],
        "validation": data[400:],
        "lineage": LINEAGE,
        "created_at": CREATED,
        "golden_cases": 256,
        "steps": STEPS,
        "tables": TABLES,
    }
    build_score_bundle(path, **{**settings, **changes})
    return verify(path)


@pytest.fixture(scope="module")
def model() -> Any:
    rows = contexts(1500)
    return train(transform(CONTEXT, STEPS, rows, TABLES), labels_of(rows), NAMES)


def test_functions_are_those_of_numpy() -> None:
    rows = contexts(2000, 4)
    rows[:6, 0] = [0, 10, np.float32(20.1), np.nextafter(np.float32(20.1), np.float32(0)), 50, 1000]
    rows[7:20, 1] = 0
    # The quotient of an amount and the smallest float32 is not finite in float32.
    rows[20:30, 1] = np.float32(1e-45)
    found, expected = transform(CONTEXT, STEPS, rows, TABLES), reference(rows)
    assert NAMES[4:] == ["class", "hour_unknown", "risk", "loss", "per_hour", "log_amount"]
    np.testing.assert_array_equal(found[:, :9], expected[:, :9])
    # numpy's logarithm may differ from the engine's in the last bit.
    np.testing.assert_array_max_ulp(found[:, 9], expected[:, 9])


def test_parts_of_dates_are_those_of_the_calendar() -> None:
    features = [Feature(name="time", minimum=-2e9, maximum=2e10)]
    steps = [
        DatePart(feature="time", part=part, offset=offset, output=f"{part}{offset}")
        for part in ("hour", "weekday", "day")
        for offset in (0, 19_800)
    ]
    times = np.random.default_rng(1).integers(-2_000_000_000, 20_000_000_000, 3000).astype(np.float32)
    found = transform(features, steps, times[:, None])
    start = datetime(1970, 1, 1, tzinfo=UTC)
    for time, parts in zip(times, found[:, 1:], strict=True):
        for at, offset in enumerate((0, 19_800)):
            moment = start + timedelta(seconds=int(time) + offset)
            assert parts[at::2].tolist() == [moment.hour, moment.weekday(), moment.day]


def test_a_model_of_added_columns_is_served_bit_for_bit(tmp_path: Path, model: Any) -> None:
    reasons = ReasonsFile(features={"loss": ReasonEntry(code="R3")})
    bundle = build(tmp_path / "t", model, reasons=reasons)
    rows = contexts(1000, 8)
    seen = reference(rows)
    seen[:, 9] = transform(CONTEXT, STEPS, rows, TABLES)[:, 9]
    margins = model.predict(xgboost.DMatrix(seen, feature_names=NAMES), output_margin=True)
    out = bundle.score(rows)
    np.testing.assert_array_equal(out.margins, margins.astype(np.float64))
    np.testing.assert_array_equal([bundle.score(row[None]).margins[0] for row in rows[:30]], margins[:30])
    # Explanations name the columns of the forest.
    assert bundle.columns == NAMES
    assert bundle.reason_codes == [*NAMES[:7], "R3", *NAMES[8:]]
    start, contributions = bundle.explain(rows[0])
    expected = model.predict(xgboost.DMatrix(seen[:1], feature_names=NAMES), pred_contribs=True)[0]
    np.testing.assert_allclose(contributions, expected[:-1], atol=1e-5)
    assert start == pytest.approx(expected[-1], abs=1e-5)
    inspection = inspect(tmp_path / "t")
    assert inspection.tables is not None
    assert inspection.tables.tables == TABLES
    # Golden cases contain the edges of buckets and clips.
    assert inspection.manifest.program[0].model_dump()["steps"][1]["edges"] == [10, 20.1, 50]


def test_an_action_bundle_with_added_columns(tmp_path: Path) -> None:
    schema = SchemaFile(features=CONTEXT, action_features=ACTION_FEATURES)
    own = np.array([action.features for action in ACTIONS], np.float32)
    for number, step in enumerate(
        (
            Arithmetic(function="multiply", left="night", right="three_ds", output="both"),
            TableLookup(feature="exemption", table="cost", output="cost"),
        )
    ):
        steps: list[TransformStep] = [Clip(feature="amount", high=500), step]
        tables = {"cost": CategoryTable(values={"tra": 1.5}, default=0.25)} if number else {}
        contexts_of_training = contexts(1200)
        taken = np.random.default_rng(2).integers(0, len(ACTIONS), 1200)
        whole = np.concatenate([contexts_of_training, own[taken]], axis=1)
        names = [*(feature.name for feature in schema.columns), step.output]
        oracle = train(transform(schema.columns, steps, whole, tables), labels_of(whole), names)
        build_action_bundle(
            tmp_path / f"a{number}",
            name="authorise",
            model=oracle,
            schema=schema,
            actions=ACTIONS,
            policy=PolicySpec(rule="squarecb", gamma=20, floor=0.05, salt=SALT),
            training=contexts_of_training[:600],
            validation=contexts_of_training[600:],
            lineage=LINEAGE,
            steps=steps,
            tables=tables,
            created_at=CREATED,
        )
        _, rewards = verify(tmp_path / f"a{number}").evaluate(contexts_of_training[:50])
        for action, features in enumerate(own):
            rows = np.concatenate([contexts_of_training[:50], np.tile(features, (50, 1))], axis=1)
            seen = transform(schema.columns, steps, rows, tables)
            expected = oracle.predict(xgboost.DMatrix(seen, feature_names=names))
            np.testing.assert_array_equal(rewards[:, action], expected.astype(np.float64))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [TableLookup(feature="country", table="no", output="x")],
            r'step 0 \(table\): tables\.json has no table "no"',
        ),
        (
            [Clip(feature="amount", high=5), MissingFlag(feature="amt", output="x")],
            r"step 1 \(missing\): feature",
        ),
        ([MissingFlag(feature="hour", output="night")], '"night" is already a column of the row'),
        ([DatePart(feature="per", part="day", output="x")], '"per" is not in the schema'),
        ([DatePart(feature="amount", part="day", offset=10**6, output="x")], "offset 1000000"),
    ],
)
def test_steps_that_do_not_fit_are_refused(steps: list[TransformStep], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        transform(CONTEXT, steps, contexts(10), TABLES)


def test_a_model_of_other_columns_is_refused(tmp_path: Path, model: Any) -> None:
    with pytest.raises(
        BundleError, match="takes 10 features, the schema has 4 with the columns that steps add"
    ):
        build(tmp_path / "x", model, steps=[])
    renamed = [*STEPS[:-1], Log1p(feature="amount", output="logarithm")]
    with pytest.raises(BundleError, match='column 9 is "log_amount", the schema has "logarithm"'):
        build(tmp_path / "x", model, steps=renamed)
    with pytest.raises(BundleError, match='table "other": no step of a transform uses it'):
        build(tmp_path / "x", model, tables={**TABLES, "other": TABLES["risk"]})


def test_a_target_table_draws_rare_categories_towards_the_mean() -> None:
    values = ["NL"] * 6 + ["DE"] * 2 + [None, None]
    labels = [1, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    table = fit_target_table(values, labels, smoothing=4)
    assert table.default == pytest.approx(0.5)
    assert table.values == pytest.approx({"NL": (3 + 2) / 10, "DE": (2 + 2) / 6})
    with pytest.raises(BundleError, match="1 values and 2 labels"):
        fit_target_table(["NL"], [0, 1])
    with pytest.raises(BundleError, match="smoothing 0 or above"):
        fit_target_table(["NL"], [0], smoothing=-1)


def test_counterfactuals_refuse_features_of_added_columns(tmp_path: Path) -> None:
    rows = contexts(1500)
    steps: list[TransformStep] = [
        Clip(feature="amount", high=100),
        MissingFlag(feature="hour", output="unknown"),
    ]
    names = [*(feature.name for feature in CONTEXT), "unknown"]
    bundle = build(
        tmp_path / "t", train(transform(CONTEXT, steps, rows), labels_of(rows), names), steps=steps, tables={}
    )
    scores = bundle.score(rows).scores
    row = rows[int(np.argmax(scores))]
    with pytest.raises(BundleError, match='computes the column "unknown" from "hour"'):
        find_counterfactual(tmp_path / "t", row, [ActionableFeature("hour")])
    # Clips keep the order of values, so the thresholds of the amount are known.
    found = find_counterfactual(
        tmp_path / "t", row, [ActionableFeature("amount"), ActionableFeature("night")]
    )
    every = np.tile(row, (4000, 1))
    every[:, 0] = np.repeat(np.linspace(0, 200, 2000), 2)
    every[:, 3] = np.arange(4000) % 2
    exists = bool((bundle.score(every).bands == 0).any())
    assert found.exhaustive
    assert (found.found is not None) == exists


def test_the_command_line_builds_and_shows_transforms(
    tmp_path: Path, model: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save_model(tmp_path / "model.ubj")
    rows = contexts(500)
    country = [None if np.isnan(code) else CONTEXT[2].categories[int(code)] for code in rows[:, 2]]
    table = {name: rows[:, at] for at, name in enumerate(NAMES[:4])} | {"country": country}
    parquet.write_table(pa.table(table), tmp_path / "data.parquet")
    (tmp_path / "fraud.toml").write_text("""
[bundle]
name = "fraud"
kind = "score"
model = "model.ubj"
golden_cases = 256
[data]
training = "data.parquet"
validation = "data.parquet"
[tables.risk]
default = 0.1
values = { NL = 0.25, FR = 0.7 }
[[steps]]
function = "clip"
feature = "amount"
high = 1000
[[steps]]
function = "bucket"
feature = "amount"
edges = [10, 20.1, 50]
output = "class"
[[steps]]
function = "missing"
feature = "hour"
output = "hour_unknown"
[[steps]]
function = "table"
feature = "country"
table = "risk"
output = "risk"
[[steps]]
function = "multiply"
left = "amount"
right = "risk"
output = "loss"
[[steps]]
function = "ratio"
left = "amount"
right = "hour"
zero = -1
output = "per_hour"
[[steps]]
function = "log1p"
feature = "amount"
output = "log_amount"
[[features]]
name = "amount"
missing = "refuse"
minimum = 0
maximum = 50000
[[features]]
name = "hour"
[[features]]
name = "country"
type = "category"
categories = ["NL", "DE", "FR"]
[[features]]
name = "night"
type = "flag"
[[thresholds]]
from = 0
label = "approve"
""")
    assert run(monkeypatch, "build", str(tmp_path / "fraud.toml"), "-o", str(tmp_path / "out")) == 0
    margins = build(tmp_path / "same", model).score(rows).margins
    np.testing.assert_array_equal(verify(tmp_path / "out").score(rows).margins, margins)
    capsys.readouterr()
    assert run(monkeypatch, "inspect", str(tmp_path / "out")) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "transform > forest" in shown
    for words in ("clip amount high=1000", "ratio amount, hour zero=-1", "table country table=risk"):
        assert words in shown, shown


def test_standardise_can_add_a_column() -> None:
    rows = contexts(100)
    found = transform(CONTEXT, [Standardise(feature="hour", mean=12, scale=6, output="z")], rows)
    np.testing.assert_array_equal(found[:, :4], rows)
    np.testing.assert_array_equal(found[:, 4], ((rows[:, 1].astype(np.float64) - 12) / 6).astype(np.float32))
