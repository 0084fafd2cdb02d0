"""Tests that models of MLflow which are bundles give the answers of a real server."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import FEATURES, rows, tiny_action_bundle, tiny_score_bundle
from mlflow_server import MlflowServer, serve_model, start_mlflow
from servers import settings, start_server

from scorer.bundle.golden_file import read_golden
from scorer.bundle.rules import BundleRules
from scorer.client import Client
from scorer.registry import open_registry

PATIENT = 20.0
COUNT = 60
MAY = [
    "3ds=off|exemption=none",
    "3ds=off|exemption=low",
    "3ds=frictionless|exemption=tra",
    "3ds=frictionless|exemption=none",
]
SCORE_RULES = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount > 150.0"
decision = "decline"
queue = "level_2"

[[rules]]
id = "many"
when = "count_24h >= 4.0"
floor = 0.5
"""
ACTION_RULES = """
name = "exemptions"

[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "Delegated Regulation (EU) 2018/389, article 18"

[[rules]]
id = "challenge"
when = "distance > 30.0"
keep = { "3ds" = ["frictionless"] }
source = "agreement"
rollout = 60.0
"""
# Runs in the environment of MLflow: a model on tables, which are read and written as JSON.
PREDICT = """
import json, sys
import mlflow.pyfunc, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
for line in open(sys.argv[2]):
    call = json.loads(line)
    frame = pandas.DataFrame(call["data"], columns=call["columns"])
    if call.get("example"):
        frame = model.input_example
    try:
        print(json.dumps(model.predict(frame, params=call["params"]).to_dict("records")))
    except Exception as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with start_mlflow(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(scope="module")
def bundles(mlflow: MlflowServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the bundles ``score`` and ``action``, which are live in MLflow."""
    directory = tmp_path_factory.mktemp("bundles")
    tiny_score_bundle(directory / "score", rules=BundleRules(SCORE_RULES))
    tiny_action_bundle(directory / "action", rules=BundleRules(ACTION_RULES))
    store = open_registry(mlflow.location)
    for kind, name in (("score", "fraud-checkout"), ("action", "action-authorise")):
        store.alias(name, "live", store.push(directory / kind))
    return directory


def table() -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of `COUNT` requests, with missing values, ids and eligible actions."""
    data = rows(COUNT, seed=31)
    data[::7, 1] = np.nan
    values = [[None if np.isnan(value) else float(value) for value in row] for row in data]
    return [*FEATURES, "request_id", "eligible"], [
        [*row, f"order-{at}", MAY if at % 3 else None] for at, row in enumerate(values)
    ]


def predict(mlflow: MlflowServer, name: str, calls: list[dict[str, Any]], path: Path) -> list[Any]:
    """Return the predictions of a live model, or the text of the error, for each call."""
    file = path / "calls.jsonl"
    file.write_text("".join(json.dumps(call) + "\n" for call in calls))
    lines = mlflow.run_python(PREDICT, f"models:/{name}@live", str(file)).splitlines()
    return [json.loads(line) for line in lines]


def invoke(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        f"{url}/invocations", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENT) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        error.add_note(error.read().decode()[:3000])
        raise


def test_models_of_mlflow_give_the_answers_of_a_server(
    mlflow: MlflowServer, bundles: Path, tmp_path: Path
) -> None:
    columns, data = table()
    calls = [
        {"columns": columns[:4], "data": [row[:4] for row in data], "params": {}},
        {"columns": columns[:1], "data": [row[:1] for row in data], "params": {"reasons": 0}},
    ]
    scores, amounts = predict(mlflow, "fraud-checkout", calls, tmp_path)
    split = {"columns": columns, "data": data}
    with serve_model(mlflow, "models:/action-authorise@live", tmp_path) as url:
        reply = invoke(url, {"dataframe_split": split, "params": {"checkpoint": "action.authorise"}})
        with pytest.raises(urllib.error.HTTPError) as caught:
            invoke(url, {"dataframe_split": split})
        assert caught.value.code == 400
        assert "the action is drawn for a checkpoint" in caught.value.__notes__[0]
    with (
        start_server(tmp_path, settings(registry=f'url = "{mlflow.location}"')) as server,
        Client(server.address, timeout=PATIENT) as client,
    ):
        client.wait_ready()
        for row, score, amount, action in zip(data, scores, amounts, reply["predictions"], strict=True):
            named = {
                name: value
                for name, value in zip(columns, row, strict=True)
                if name in FEATURES and value is not None
            }
            answer = client.score("fraud.checkout", named, reasons=3)
            assert answer.served.by_model and answer.rules is not None
            assert (answer.margin, answer.score, answer.decision) == (
                score["margin"],
                score["score"],
                score["decision"],
            )
            assert (answer.rules.score, answer.rules.queue or None) == (score["ruled_score"], score["queue"])
            assert [rule.id for rule in answer.rules.fired] == score["rules"]
            assert [(one.code, one.feature, one.contribution) for one in answer.reasons] == [
                tuple(score[f"reason_{place}_{part}"] for part in ("code", "feature", "contribution"))
                for place in range(1, 1 + len(answer.reasons))
            ]
            alone = client.score("fraud.checkout", {"amount": named["amount"]})
            assert (alone.score, alone.decision) == (amount["score"], amount["decision"])
            assert "reason_1_code" not in amount
            chosen = client.select_action(
                "action.authorise", named, request_id=row[4], eligible=row[5], include_pmf=True
            )
            assert chosen.served.by_model and chosen.rules is not None
            assert (chosen.action, chosen.propensity) == (action["action"], action["propensity"])
            assert chosen.expected_reward == action["expected_reward"]
            assert list(chosen.pmf) == np.float32(action["pmf"]).tolist()
            assert [rule.id for rule in chosen.rules.fired] == action["rules"]
    assert len({action["action"] for action in reply["predictions"]}) > 2
    assert len({score["decision"] for score in scores}) > 1
    assert {rule for one in (*scores, *reply["predictions"]) for rule in one["rules"]} == {
        "large",
        "many",
        "tra_limit",
        "challenge",
    }


def test_golden_cases_and_bad_rows(
    mlflow: MlflowServer, built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    """Bundles without rules, whose golden cases have the results of the draw."""
    from bundles import ACTIONS

    store = open_registry(mlflow.location)
    tiny_action_bundle(tmp_path / "bundle", name="action-plain")
    store.alias("action-plain", "live", store.push(tmp_path / "bundle"))
    cases = list(read_golden(tmp_path / "bundle"))
    columns = [*FEATURES, "request_id", "eligible"]
    data = [
        [
            *(None if np.isnan(value) else value for value in case.row),
            case.id,
            [name for name, may in zip(ACTIONS, case.eligible, strict=True) if may],
        ]
        for case in cases
    ]
    params = {"checkpoint": "golden", "reasons": 0}
    wrong = [row.copy() for row in data[:3]]
    wrong[1][5] = ["3ds=none"]
    calls = [
        {"columns": columns, "data": data, "params": params},
        {"columns": columns, "data": wrong, "params": {**params, "bad_rows": "null"}},
        {"columns": columns, "data": wrong, "params": params},
        {"columns": columns, "data": wrong, "params": {**params, "bad_rows": "skip"}},
        {"columns": columns[:4], "data": [row[:4] for row in data], "params": params},
        {"columns": columns, "data": [], "example": True, "params": params},
    ]
    drawn, partial, refused, unknown, without, example = predict(mlflow, "action-plain", calls, tmp_path)
    assert [one["action"] for one in drawn] == [ACTIONS[case.choice] for case in cases]
    for one, case in zip(drawn, cases, strict=True):
        given = iter(case.probabilities)
        assert one["pmf"] == [next(given) if may else 0.0 for may in case.eligible]
    assert partial[0]["action"] == drawn[0]["action"]
    assert (partial[1]["action"], partial[1]["propensity"], partial[1]["pmf"]) == (None, None, None)
    assert 'action "3ds=none" is not in the catalogue' in partial[1]["problem"]
    assert refused.startswith('row 1: eligible "eligible": action "3ds=none" is not in the catalogue')
    assert unknown == 'bad_rows "skip": it is "fail" or "null"; correct the parameter'
    assert "request_id" in without
    assert [one["action"] for one in example] == [one["action"] for one in drawn[1:6]]


def test_a_bundle_of_an_earlier_layout_is_served_and_gets_a_version_with_the_flavour(
    mlflow: MlflowServer, tmp_path: Path
) -> None:
    """Earlier versions stored the bundle in the artifacts ``bundle``, without a flavour."""
    store = open_registry(mlflow.location)
    digest = tiny_score_bundle(tmp_path / "bundle", name="old", variant=2)
    store.push(tmp_path / "bundle")
    (version,) = mlflow.call_rest("GET", "registered-models/get?name=old")["registered_model"][
        "latest_versions"
    ]
    root = mlflow.artifacts / version["source"].partition(":/")[2].removesuffix("/model")
    assert {file.name for file in (root / "model").iterdir()} >= {"MLmodel", "bundle", "requirements.txt"}
    shutil.move(root / "model/bundle", root / "bundle")
    shutil.rmtree(root / "model")
    mlflow.call_rest("DELETE", "model-versions/delete", {"name": "old", "version": version["version"]})
    tags = list(version["tags"])
    mlflow.call_rest(
        "POST",
        "model-versions/create",
        {"name": "old", "run_id": version["run_id"], "tags": tags,
         "source": version["source"].removesuffix("/model") + "/bundle"},
    )  # fmt: skip
    fresh = open_registry(mlflow.location)
    for folder, store in (("old", fresh), ("new", open_registry(mlflow.location))):
        (tmp_path / folder).mkdir()
        store.copy(store.resolve(digest), tmp_path / folder)
        assert {file.name for file in (tmp_path / folder).iterdir()} == {
            file.name for file in (tmp_path / "bundle").iterdir()
        }
        store.push(tmp_path / "bundle")
    versions = mlflow.call_rest("GET", "model-versions/search?filter=name%3D%27old%27")["model_versions"]
    assert sorted(one["source"].rpartition("/")[2] for one in versions) == ["bundle", "model"]
    assert {tag["value"] for one in versions for tag in one["tags"] if tag["key"] == "scorer.digest"} == {
        digest
    }
