"""Explanations of a running server: parity with XGBoost, both kinds and clients, the command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from bundles import ACTIONS, FEATURES, action_features, fraud_model, oracle_model, rows
from servers import RunningServer, start_server
from typer.testing import CliRunner

import scorer.aio
from scorer.bundle import Bundle
from scorer.cli import app
from scorer.client import (
    CheckpointNotFoundError,
    Client,
    ClientError,
    InvalidRequestError,
    MarginExplanation,
)
from scorer.registry import Registry

PATIENT = 60.0
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("explain")
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.alias("action-authorise", "live", registry.push(built_bundles["action-1"]))
    with start_server(directory) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        yield client


def named(row: Any) -> dict[str, float]:
    return dict(zip(FEATURES, map(float, row), strict=True))


def contribs(model: Any, values: Any) -> Any:
    """Return XGBoost's contributions, ``[rows, features + 1]``; the last column is the expectation."""
    matrix = xgboost.DMatrix(values, feature_names=model.feature_names, nthread=1)
    return model.predict(matrix, pred_contribs=True)


def check(found: MarginExplanation, expected: Any) -> None:
    amounts = np.array(list(found.contributions.values()))
    np.testing.assert_allclose(amounts, expected[:-1], rtol=0, atol=TOLERANCE)
    assert found.baseline == pytest.approx(expected[-1], abs=TOLERANCE)
    assert found.baseline + amounts.sum() == pytest.approx(found.margin, abs=TOLERANCE)


def test_a_score_is_explained_as_xgboost_does(client: Client, built_bundles: dict[str, Path]) -> None:
    data = rows(40, seed=21)
    data[3, 1] = np.nan
    offline = Bundle.load(built_bundles["score-1"])
    for row, expected in zip(data, contribs(fraud_model(1), data), strict=True):
        answer = client.score("fraud.checkout", row)
        found = client.explain("fraud.checkout", row, bundle=answer.served.bundle, reasons=2)
        assert found.bundle == offline.digest
        assert (found.explanation.margin, found.explanation.score) == (answer.margin, answer.score)
        assert tuple(found.explanation.contributions) == FEATURES
        check(found.explanation, expected)
        largest = sorted(found.explanation.contributions.items(), key=lambda one: -abs(one[1]))[:2]
        assert [(one.feature, one.contribution) for one in found.explanation.reasons] == largest
        assert found.against is None and found.difference is None


def test_an_action_and_its_difference_from_another(client: Client) -> None:
    row = rows(1, seed=22)[0]
    answer = client.select_action("action.authorise", named(row))
    other = ACTIONS[(answer.action_index + 2) % len(ACTIONS)]
    found = client.explain("action.authorise", named(row), action=answer.action, against=other)
    both = np.array([[*row, *action_features(ACTIONS.index(action))] for action in (answer.action, other)])
    expected = contribs(oracle_model(1), both.astype(np.float32))
    assert found.against is not None and found.difference is not None
    assert (found.explanation.action, found.against.action, found.difference.action) == (
        answer.action,
        other,
        "",
    )
    assert found.explanation.score == answer.expected_reward
    check(found.explanation, expected[0])
    check(found.against, expected[1])
    check(found.difference, expected[0] - expected[1])
    assert found.difference.contributions["three_ds"] != 0 or found.difference.contributions["exemption"] != 0


def test_every_form_of_features_and_both_clients_agree(client: Client, server: RunningServer) -> None:
    row = rows(1, seed=23)[0]
    by_name = client.explain("fraud.checkout", named(row)).explanation
    assert client.explain("fraud.checkout", row).explanation == by_name

    async def explained() -> MarginExplanation:
        async with scorer.aio.Client(server.address, timeout=PATIENT) as other:
            return (await other.explain("fraud.checkout", row)).explanation

    assert asyncio.run(explained()) == by_name


GOOD = dict.fromkeys(FEATURES, 1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"checkpoint": "fraud.chekout"}, CheckpointNotFoundError, "fraud.chekout"),
        ({"features": GOOD | {"colour": 1.0}}, InvalidRequestError, "colour"),
        ({"bundle": "live"}, InvalidRequestError, "bundle: it is not a digest"),
        ({"bundle": "sha256:" + "0" * 64}, ClientError, "does not answer or observe"),
        ({"action": ACTIONS[0]}, InvalidRequestError, "of kind score"),
        ({"action": 3}, InvalidRequestError, "action, against and bundle are strings"),
        ({"reasons": 33}, InvalidRequestError, "reasons"),
        ({"checkpoint": "action.authorise"}, InvalidRequestError, "name an action"),
    ],
)
def test_a_refusal_is_one_line(client: Client, arguments: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error) as caught:
        client.explain(**{"checkpoint": "fraud.checkout", "features": GOOD, **arguments})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_prints_the_largest_contribution_first(server: RunningServer, tmp_path: Path) -> None:
    features = tmp_path / "payment.json"
    features.write_text(json.dumps(named(rows(1, seed=24)[0]) | {"hour": None}))
    command = ["explain", "row", "fraud.checkout", str(features), "--server", server.address]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    amounts = found["explanation"]["contributions"]
    total = found["explanation"]["baseline"] + sum(amounts.values())
    assert total == pytest.approx(found["explanation"]["margin"], abs=TOLERANCE)
    text = CliRunner().invoke(app, command).stdout
    largest = max(amounts, key=lambda name: abs(amounts[name]))
    table = text[text.index("contribution") :].splitlines()
    assert found["bundle"] in text and table[2].split()[0] == largest, text
    wrong = CliRunner().invoke(app, [*command, "--action", "x"])
    assert wrong.exit_code == 1
    assert "kind score" in str(wrong.exception or wrong.output)
