"""Tests of functions in WebAssembly modules: builder, files, training rows, rules and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from pyarrow import parquet
from trained import BANDS, CONTEXT, CREATED, LINEAGE, contexts, labels_of, train

from scorer.bundle import (
    Bundle,
    CustomFunction,
    FunctionCall,
    SchemaFile,
    build_score_bundle,
    inspect,
    revise,
    transform,
    verify,
)
from scorer.bundle.graph import program_graph
from scorer.bundle.models import TransformStep
from scorer.bundle.rules import BundleRules
from scorer.cli import main
from scorer.errors import BundleError
from scorer.explain.counterfactual import ActionableFeature, find_counterfactual

MODULE = Path(__file__).parents[2] / "examples" / "functions" / "payment_functions.wasm"
FUNCTIONS = [
    CustomFunction("surprise", MODULE, ["amount", "mean_amount"], export="amount_surprise"),
    CustomFunction("luhn_digit", MODULE.read_bytes(), ["number"], fuel=2_000),
]
STEPS: list[TransformStep] = [
    FunctionCall(name="surprise", inputs=["amount", "hour"], output="surprise"),
    FunctionCall(name="luhn_digit", inputs=["hour"], output="digit"),
]
NAMES = [*(feature.name for feature in CONTEXT), "surprise", "digit"]
RULES = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "surprising"
when = "surprise(amount, hour) > 0.5"
decision = "decline"

[[rules]]
id = "digit"
when = "luhn_digit(hour) == 4.0"
floor = 0.95
"""


def reference(rows: np.ndarray) -> np.ndarray:
    """Return the two columns that the steps add, computed by numpy."""
    amount, hour = rows[:, 0].astype(np.float64), rows[:, 1].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        surprise = np.where(amount > 3 * hour, (amount - 3 * hour) / amount, 0.0)
    surprise[~(hour > 0)] = np.nan
    digits = [-1.0 if np.isnan(one) else luhn(int(one)) for one in hour]
    return np.stack([surprise, digits], axis=1).astype(np.float32)


def luhn(number: int) -> int:
    digits = [int(digit) for digit in reversed(str(number))]
    doubled = [sum(divmod(2 * digit, 10)) if at % 2 == 0 else digit for at, digit in enumerate(digits)]
    return -sum(doubled) % 10


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
        "functions": FUNCTIONS,
    }
    build_score_bundle(path, **{**settings, **changes})
    return verify(path)


@pytest.fixture(scope="module")
def model() -> Any:
    rows = contexts(1500)
    return train(transform(CONTEXT, STEPS, rows, functions=FUNCTIONS), labels_of(rows), NAMES)


def test_training_rows_have_the_columns_of_the_source() -> None:
    rows = contexts(2000, 4)
    found = transform(CONTEXT, STEPS, rows, functions=FUNCTIONS)
    np.testing.assert_array_equal(found[:, :4], rows)
    np.testing.assert_array_equal(found[:, 4:], reference(rows))


def test_scores_are_those_of_the_library_on_added_columns(tmp_path: Path, model: Any) -> None:
    bundle = build(tmp_path / "bundle", model)
    rows = contexts(700, 9)
    seen = np.concatenate([rows, reference(rows)], axis=1)
    expected = model.predict(xgboost.DMatrix(seen, feature_names=NAMES))
    np.testing.assert_array_equal(bundle.score(rows).scores.astype(np.float32), expected)


def test_the_bundle_lists_functions_and_shares_equal_modules(tmp_path: Path, model: Any) -> None:
    build(tmp_path / "bundle", model)
    inspection = inspect(tmp_path / "bundle")
    files = inspection.manifest.files
    assert {name for name in files if "function" in name} == {"functions.json", "function-01.wasm"}
    assert (tmp_path / "bundle" / "function-01.wasm").read_bytes() == MODULE.read_bytes()
    described = [(one.name, one.export, one.parameters, one.fuel) for one in inspection.functions]
    assert described == [
        ("surprise", "amount_surprise", ["amount", "mean_amount"], 10_000),
        ("luhn_digit", None, ["number"], 2_000),
    ]
    nodes = program_graph(inspection.manifest.program, len(CONTEXT))
    assert (nodes[1].settings, nodes[1].columns) == ("surprise(), luhn_digit()", ("surprise", "digit"))


def test_rules_of_a_revision_call_functions_of_the_bundle(tmp_path: Path, model: Any) -> None:
    build(tmp_path / "bundle", model)
    revise(tmp_path / "bundle", tmp_path / "next", rules=BundleRules(RULES), created_at=CREATED)
    bundle = verify(tmp_path / "next")
    rows = contexts(300, 3)
    rows[:, 0] = rows[:, 0].round()
    added = reference(rows)
    assert bundle.rules is not None
    scores = bundle.score(rows).scores
    ruled = bundle.rules.evaluate(
        rows, scores=scores, seconds=np.zeros(len(rows), np.int64), ids=[""] * len(rows)
    )
    expected = [([0] if surprise > 0.5 else []) + ([1] if digit == 4.0 else []) for surprise, digit in added]
    assert ruled.applied == expected
    assert [0, 1] in expected
    assert ruled.unknown == [int(np.isnan(surprise)) for surprise in added[:, 0]]
    assert not any(ruled.errors)
    np.testing.assert_array_equal(
        ruled.scores, np.where(added[:, 1] == 4.0, np.maximum(scores, 0.95), scores)
    )
    wrong = BundleRules(RULES.replace("surprise(amount, hour)", "surprise(amount)"))
    with pytest.raises(BundleError, match=r"surprise\(\) takes 2 arguments and not 1"):
        revise(tmp_path / "bundle", tmp_path / "wrong", rules=wrong)


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        ([], 'function "surprise" is not in functions.json'),
        ([CustomFunction("surprise", b"no module", ["a", "b"])], "function-01.wasm: is not a valid module"),
        (
            [CustomFunction("surprise", MODULE, ["a", "b"])],
            'exports no function "surprise", but amount_surprise',
        ),
        ([CustomFunction("luhn_digit", MODULE, [])], "0 parameters are stated, the module's function has 1"),
        ([CustomFunction("luhn_digit", MODULE, ["a"], fuel=10**6)], "fuel 1000000 is not from 1 to 100000"),
        ([CustomFunction("luhn_digit", Path("gone.wasm"), ["a"])], 'module "gone.wasm" cannot be read'),
        (
            [CustomFunction(f"f{at}", bytes([at]), ["a"]) for at in range(17)],
            "17 modules, at most 16",
        ),
    ],
)
def test_functions_that_do_not_fit_are_refused_before_a_bundle_exists(
    functions: list[CustomFunction], problem: str, tmp_path: Path, model: Any
) -> None:
    with pytest.raises(BundleError) as refused:
        build(tmp_path / "bundle", model, functions=functions)
    assert problem in str(refused.value)
    assert not (tmp_path / "bundle").exists()


def test_counterfactuals_refuse_arguments_of_functions(tmp_path: Path, model: Any) -> None:
    build(tmp_path / "bundle", model)
    with pytest.raises(BundleError, match='computes the column "surprise" from "hour"'):
        find_counterfactual(tmp_path / "bundle", contexts(1)[0], [ActionableFeature("hour")])


def test_the_command_line_builds_functions_from_toml_and_shows_them(
    tmp_path: Path, model: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save_model(tmp_path / "model.ubj")
    (tmp_path / "own.wasm").write_bytes(MODULE.read_bytes())
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
[[functions]]
name = "surprise"
module = "own.wasm"
export = "amount_surprise"
parameters = ["amount", "mean_amount"]
[[functions]]
name = "luhn_digit"
module = "own.wasm"
parameters = ["number"]
[[steps]]
function = "custom"
name = "surprise"
inputs = ["amount", "hour"]
output = "surprise"
[[steps]]
function = "custom"
name = "luhn_digit"
inputs = ["hour"]
output = "digit"
[[features]]
name = "amount"
missing = "refuse"
minimum = 0
maximum = 50000
[[features]]
name = "hour"
minimum = 0
maximum = 23
[[features]]
name = "country"
type = "category"
categories = ["NL", "DE", "FR"]
unknown_category = "missing"
[[features]]
name = "night"
type = "flag"
[[thresholds]]
from = 0.0
label = "approve"
[[thresholds]]
from = 0.5
label = "decline"
""")

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["scorer", "bundle", *arguments])
        try:
            code = main()
        except SystemExit as stopped:
            code = stopped.code
        return int(code or 0)

    assert run("build", str(tmp_path / "fraud.toml"), "--output", str(tmp_path / "out")) == 0
    capsys.readouterr()
    assert run("inspect", str(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert "surprise(amount, mean_amount)" in shown
    assert "function-01.wasm" in shown
    assert run("graph", str(tmp_path / "out"), "--format", "json") == 0
    nodes = json.loads(capsys.readouterr().out)
    assert nodes[1]["settings"] == "surprise(), luhn_digit()"
