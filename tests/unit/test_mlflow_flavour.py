"""Tests of the files of MLflow's pyfunc flavour, and of the golden cases in its input example."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bundles import ACTIONS, FEATURES, score_bundle_of, tiny_action_bundle, tiny_score_bundle

from scorer.batch.scoring import BatchColumns, BatchScorer
from scorer.bundle import Feature
from scorer.bundle.check import read_schema, verify
from scorer.bundle.golden_file import read_golden
from scorer.bundle.rules import BundleRules
from scorer.errors import BundleError
from scorer.registry.mlflow.flavour import RoleColumns, needs_id, write_flavour

RULES = 'name = "all"\n[[rules]]\nid = "late"\nwhen = "hour > 20.0"\nsource = "agreement"\n'
ALLOW = RULES + 'keep = { "3ds" = ["frictionless"] }\n'
DECIDE = RULES.replace("[[rules]]", 'decisions = ["decline", "review", "approve"]\n[[rules]]')


def written(bundle: Path, directory: Path) -> dict[str, str]:
    directory.mkdir()
    names = write_flavour(directory, verify(bundle), bundle, read_schema(bundle).features)
    assert sorted(names) == sorted(file.name for file in directory.iterdir())
    return {name: (directory / name).read_text() for name in names}


def test_golden_cases_are_read_as_the_engine_scores_them(built_bundles: dict[str, Path]) -> None:
    score, action = (verify(built_bundles[f"{kind}-1"]) for kind in ("score", "action"))
    cases = list(read_golden(built_bundles["score-1"]))
    rows = np.array([case.row for case in cases], np.float32)
    out = score.score(rows)
    assert len(cases) == 256
    assert [case.scores for case in cases] == [(value,) for value in out.scores.tolist()]
    assert [case.choice for case in cases] == out.bands.tolist()
    assert {(case.eligible, case.probabilities) for case in cases} == {((), ())}

    for case in read_golden(built_bundles["action-1"]):
        chosen = action.select(
            np.array(case.row, np.float32),
            checkpoint="golden",
            decision_id=case.id,
            eligible=np.array(case.eligible),
        )
        assert (chosen.index, len(case.eligible)) == (case.choice, len(ACTIONS))
        assert [p for p, may in zip(chosen.pmf, case.eligible, strict=True) if may] == list(
            case.probabilities
        )


def test_a_file_that_is_not_of_golden_cases_is_refused(
    built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "golden.bin"
    shutil.copyfile(built_bundles["action-1"] / "golden.bin", file)
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(BundleError, match="ends within a golden case"):
        list(read_golden(tmp_path))
    file.write_bytes(b"X" + content[1:])
    with pytest.raises(BundleError, match="is no file of golden cases"):
        list(read_golden(tmp_path))


@pytest.mark.parametrize("rules", [False, True])
@pytest.mark.parametrize("kind", ["score", "action"])
def test_the_signature_has_the_columns_of_batch_scoring(tmp_path: Path, kind: str, rules: bool) -> None:
    bundle = tmp_path / "bundle"
    if kind == "score":
        tiny_score_bundle(bundle, rules=BundleRules(DECIDE + 'decision = "review"\n') if rules else None)
        columns = BatchColumns(reasons=3)
    else:
        tiny_action_bundle(bundle, rules=BundleRules(ALLOW) if rules else None)
        columns = BatchColumns(id="request_id", checkpoint="c", eligible="eligible", pmf=True, reasons=3)
    signature = json.loads(written(bundle, tmp_path / "flavour")["MLmodel"])["signature"]
    scorer = BatchScorer(verify(bundle), bundle, columns)
    kinds = {
        pa.string(): "string",
        pa.float64(): "double",
        pa.list_(pa.string()): "string",
        pa.list_(pa.float64()): "double",
        pa.list_(pa.bool_()): "boolean",
    }
    expected = [
        (field.name, pa.types.is_list(field.type), kinds[field.type])
        for field in scorer.output_schema(pa.schema([]))
    ]
    outputs = json.loads(signature["outputs"])
    assert [
        (one["name"], one["type"] == "array", one.get("items", one)["type"]) for one in outputs
    ] == expected
    inputs = {one["name"]: one for one in json.loads(signature["inputs"])}
    assert list(inputs) == [*scorer.inputs]
    params = {one["name"]: one["default"] for one in json.loads(signature["params"])}
    assert params == {
        "reasons": 3,
        "bad_rows": "fail",
        **({"checkpoint": ""} if kind == "action" else {}),
        **({"at": 0} if rules else {}),
    }


def test_the_input_example_has_the_values_that_callers_give(tmp_path: Path) -> None:
    features = [
        Feature(name="amount", missing="refuse"),
        Feature(name="night", type="flag"),
        Feature(name="country", type="category", categories=["NL", "FR", "DE"]),
        Feature(name="request_id"),
    ]
    bundle = tmp_path / "bundle"
    score_bundle_of(bundle, features)
    files = written(bundle, tmp_path / "flavour")
    example = json.loads(files["input_example.json"])
    assert example["columns"] == [feature.name for feature in features]
    cases = list(read_golden(bundle))[1:6]
    for row, case in zip(example["data"], cases, strict=True):
        for value, code, feature in zip(row, case.row, features, strict=True):
            if math.isnan(code):
                assert value is None
            elif feature.type == "category":
                assert value == feature.categories[int(code)]
            else:
                assert (value, type(value)) == (code, bool if feature.type == "flag" else float)
    inputs = json.loads(json.loads(files["MLmodel"])["signature"]["inputs"])
    assert [(one["type"], one["required"]) for one in inputs] == [
        ("double", True),
        ("boolean", False),
        ("string", False),
        ("double", False),
    ]
    assert RoleColumns.beside(features) == RoleColumns("scorer_request_id", "eligible")
    assert files["requirements.txt"].splitlines()[-1].startswith("scorer==")
    assert not any(name in files["requirements.txt"] for name in ("xgboost", "scikit", "treelite"))


def test_a_rollout_of_a_rule_needs_the_id(tmp_path: Path) -> None:
    rules = BundleRules(DECIDE + 'decision = "review"\nrollout = 50.0\n')
    tiny_score_bundle(tmp_path / "bundle", rules=rules)
    assert needs_id(verify(tmp_path / "bundle"))
    files = written(tmp_path / "bundle", tmp_path / "flavour")
    example = json.loads(files["serving_input_example.json"])["dataframe_split"]
    assert example["columns"] == [*FEATURES, "request_id"]
    assert example["data"][0][-1] == "golden-1"
