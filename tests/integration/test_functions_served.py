"""Tests that functions have the same values and faults on a server, offline, in backtests and in the log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bundles import ACTIONS, FEATURES, rows
from faulting import CHECKOUT, IN_RULE, faulted, faulting_action_bundle, faulting_score_bundle
from pyarrow import csv, parquet
from servers import ACTION, SCORE, scorer, settings, start_server

from scorer.batch import BatchColumns, BatchScorer
from scorer.client import BatchScore, Client, PaymentDecision, Score, SelectedAction
from scorer.registry import Registry

PATIENT = 20.0
COUNT = 150
FRAUD, CHOICE = "fraud.checkout", "action.authorise"


@dataclass
class World:
    """The answers of a server to the same rows at all its methods, and its log."""

    directory: Path
    data: Any
    scores: list[Score]
    again: list[Score]
    batch: BatchScore
    choices: list[SelectedAction]
    both: dict[int, PaymentDecision]

    @property
    def expected(self) -> list[list[str]]:
        """The functions without a result, by row."""
        return [faulted(hour) for hour in self.data[:, 1]]

    def table(self, prefix: str) -> pa.RecordBatch:
        columns = {name: pa.array(self.data[:, at].astype(np.float64)) for at, name in enumerate(FEATURES)}
        return pa.record_batch({**columns, "id": [f"{prefix}{at}" for at in range(COUNT)]})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    directory = tmp_path_factory.mktemp("server")
    faulting_score_bundle(directory / "score")
    faulting_action_bundle(directory / "action")
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(directory / "score"))
    registry.alias("action-authorise", "live", registry.push(directory / "action"))
    fallback = f'fallback = {{ action = "{ACTIONS[0]}" }}\n'
    data = rows(COUNT, seed=31)
    named = [{name: float(value) for name, value in zip(FEATURES, row, strict=True)} for row in data]
    with (
        start_server(directory, settings(SCORE + ACTION + fallback)) as server,
        Client(server.address, timeout=PATIENT) as client,
    ):
        client.wait_ready()
        once, again = (
            [client.score(FRAUD, row, request_id=f"score-{at}") for at, row in enumerate(named)] for _ in "12"
        )
        world = World(
            directory,
            data,
            once,
            again,
            client.score_batch(FRAUD, data, request_id="batch"),
            [client.select_action(CHOICE, row, request_id=f"choice-{at}") for at, row in enumerate(named)],
            {
                at: client.decide(FRAUD, CHOICE, named[at], request_id=f"both-{at}", action_if_declined=True)
                for at in range(0, COUNT, 5)
            },
        )
        server.stop()
    return world


def test_the_rows_have_every_combination_of_faults(world: World) -> None:
    assert {tuple(one) for one in world.expected} == {
        (),
        ("step",),
        ("condition",),
        ("step", "condition"),
    }


def test_scores_alone_in_batches_and_offline_are_the_same(world: World) -> None:
    offline = BatchScorer.load(world.directory / "score").score(world.table("score-")).to_pylist()
    assert [one["faulted_functions"] for one in offline] == world.expected
    batch = world.batch
    assert batch.served.faulted_functions == ("step", "condition")
    assert batch.faulted_rows == {at: tuple(one) for at, one in enumerate(world.expected) if one}
    assert batch.rules is not None
    for at, (expected, row, answer) in enumerate(zip(world.expected, offline, world.scores, strict=True)):
        assert answer.served.by_model and list(answer.served.faulted_functions) == expected
        assert (answer.margin, answer.score) == (row["margin"], row["score"])
        assert (batch.margins[at], batch.scores[at]) == (row["margin"], row["score"])
        assert (answer.decision, batch.decisions[at]) == (row["decision"], row["decision"])
        assert answer.rules is not None
        assert (answer.rules.errors, batch.rules[at].errors) == (("condition" in expected),) * 2
    assert world.again == world.scores, "a retry returns the first answer"
    assert len({row["decision"] for row in offline}) == 3


def test_actions_and_decisions_of_both_kinds_are_the_same(world: World) -> None:
    columns = BatchColumns(id="id", checkpoint=CHOICE)
    offline = BatchScorer.load(world.directory / "action", columns).score(world.table("choice-")).to_pylist()
    assert [one["faulted_functions"] for one in offline] == world.expected
    for expected, row, answer in zip(world.expected, offline, world.choices, strict=True):
        assert answer.served.by_model and list(answer.served.faulted_functions) == expected
        assert (answer.action, answer.propensity) == (row["action"], row["propensity"])
        assert answer.expected_reward == row["expected_reward"]
        assert answer.rules is not None and answer.rules.errors == int("condition" in expected)
    for at, both in world.both.items():
        assert both.action is not None and both.score.margin == world.scores[at].margin
        for part in (both.score, both.action):
            assert list(part.served.faulted_functions) == world.expected[at]


def test_the_command_scores_files_with_the_same_column(world: World, tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_batches([world.table("score-")]), tmp_path / "rows.parquet")
    for name in ("scores.parquet", "scores.csv"):
        done = scorer(
            "score", "rows.parquet", "--bundle", str(world.directory / "score"), "-o", name, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    column = parquet.read_table(tmp_path / "scores.parquet")["faulted_functions"]
    assert column.to_pylist() == world.expected
    assert csv.read_csv(tmp_path / "scores.csv")["faulted_functions"].to_pylist() == [
        ";".join(one) for one in world.expected
    ]


def test_the_log_verifies_and_exports_the_functions_without_a_result(world: World, tmp_path: Path) -> None:
    where = world.directory
    verified = scorer(
        "log", "verify", "--log", "decisions", "--bundles", "registry/bundles", "--json", cwd=where
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    done = scorer("log", "export", "--log", "decisions", "--to", str(tmp_path / "all.parquet"), cwd=where)
    assert done.returncode == 0, done.stderr
    table = parquet.read_table(tmp_path / "all.parquet").to_pylist()
    # Scores, selections, both parts of every fifth row, and the rows of the batch.
    assert len(table) == 3 * COUNT + 2 * COUNT // 5
    for one in table:
        at = int(one["decision_id"].replace("/", "-").rsplit("-", 1)[1])
        assert one["faulted_functions"] == world.expected[at], one["decision_id"]


def test_a_backtest_of_rules_has_the_faults_of_the_server(world: World, tmp_path: Path) -> None:
    backtest = ("rules", "backtest")
    for name, text in (("same", CHECKOUT), ("other", CHECKOUT.replace("20.0", "12.0"))):
        (tmp_path / f"{name}.toml").write_text(text)
        done = scorer(
            *backtest,
            str(tmp_path / f"{name}.toml"),
            "--bundle",
            str(world.directory / "score"),
            "--log",
            str(world.directory / "decisions"),
            "--json",
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        of_score = [*range(COUNT), *range(COUNT), *range(0, COUNT, 5)]
        hours = world.data[of_score, 1]
        assert report["decisions"] == len(of_score)
        assert report["errors"] == int(np.isin(hours, IN_RULE).sum()) > 0
        late = 20.0 if name == "same" else 12.0
        assert report["hits"]["late"] == int((hours >= late).sum())
        assert (report["changed"] == 0) == (name == "same")
