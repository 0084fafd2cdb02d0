"""Tests of `Decide` with both clients on a real server: answers, outcomes, the log, a swap under load."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ACTIONS, tiny_action_bundle, tiny_score_bundle
from servers import ACTION, SCORE, RunningServer, scorer, settings, start_server
from waiting import wait_until

from scorer import aio
from scorer.bundle.rules import BundleRules
from scorer.client import Client, InvalidRequestError, PaymentDecision
from scorer.registry import Registry

PATIENT = 20.0
FRAUD, SELECT = "fraud.checkout", "action.authorise"
# The column of the tiny action bundle that receives the score, which requests therefore leave out.
PASSED = "distance"
RULES = """
name = "risk"

[[rules]]
id = "risky"
when = "distance > 0.4 && distance <= 1.0"
keep = { "3ds" = ["frictionless"] }
source = "agreement"
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("server")
    tiny_score_bundle(result / "score")
    tiny_action_bundle(result / "action", rules=BundleRules(RULES))
    registry = Registry(result / "registry")
    registry.alias("fraud-checkout", "live", registry.push(result / "score"))
    registry.alias("action-authorise", "live", registry.push(result / "action"))
    return result


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[RunningServer]:
    fallback = f'fallback = {{ action = "{ACTIONS[0]}" }}\n'
    with start_server(directory, settings(SCORE + ACTION + fallback)) as server:
        yield server


Decide = Callable[..., PaymentDecision]


@pytest.fixture(params=["blocking", "asyncio"])
def decide(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Decide]:
    if request.param == "blocking":
        with Client(server.address, timeout=PATIENT) as client:
            client.wait_ready()
            yield client.decide
        return
    with asyncio.Runner() as runner:
        own = aio.Client(server.address, timeout=PATIENT)
        yield lambda *args, **kwargs: runner.run(own.decide(*args, **kwargs))
        runner.run(own.close())


def _has_swapped(server: RunningServer, before: int) -> bool:
    return len(server.named("swapped")) > before


def _rows_of(path: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return list(parquet.read_table(path).to_pylist())


def row(amount: float, count: float = 0.0) -> dict[str, float]:
    return {"amount": amount, "hour": 15.0, "count_24h": count}


def test_a_decision_is_that_of_a_score_and_a_selection_with_it(
    decide: Decide, server: RunningServer, request: pytest.FixtureRequest
) -> None:
    name = request.node.name[-10:]
    with Client(server.address, timeout=PATIENT) as client:
        for number, amount in enumerate(np.linspace(5.0, 300.0, 12)):
            identity = f"{name}-{number}"
            answer = decide(
                FRAUD,
                SELECT,
                row(float(amount)),
                score_feature=PASSED,
                action_if_declined=True,
                include_pmf=True,
                request_id=identity,
            )
            assert answer.action is not None and answer.passed_features == (PASSED,)
            score = client.score(FRAUD, row(float(amount)))
            assert (answer.score.score, answer.score.decision) == (score.score, score.decision)
            alone = client.select_action(
                SELECT, {**row(float(amount)), PASSED: score.score}, include_pmf=True
            )
            assert answer.action.pmf == alone.pmf
            assert answer.action.rules is not None and alone.rules is not None
            assert answer.action.rules.fired == alone.rules.fired
            assert bool(answer.action.rules.fired) == (score.score > 0.4)
            assert answer.decision_id == answer.action.decision_id == identity
            again = decide(
                FRAUD,
                SELECT,
                row(float(amount)),
                score_feature=PASSED,
                action_if_declined=True,
                include_pmf=True,
                request_id=identity,
            )
            assert again.action is not None and again.action.replayed
            assert again.action.action == answer.action.action


def test_a_declined_payment_has_no_action(decide: Decide) -> None:
    declined = [
        answer
        for count in range(12)
        if (answer := decide(FRAUD, SELECT, row(400.0, count), score_feature=PASSED)).score.decision
        == "decline"
    ]
    assert declined, "the model declines none of these payments"
    assert all(answer.action is None and answer.no_action == "declined" for answer in declined)


def test_errors_name_the_step_or_the_feature(decide: Decide) -> None:
    with pytest.raises(InvalidRequestError, match=r'neither bundle reads feature "amuont"'):
        decide(FRAUD, SELECT, {**row(5.0), "amuont": 1.0})
    with pytest.raises(InvalidRequestError, match=r'action: features: "distance" receives'):
        decide(FRAUD, SELECT, {**row(5.0), PASSED: 1.0}, score_feature=PASSED)
    with pytest.raises(InvalidRequestError, match="a mapping of names"):
        decide(FRAUD, SELECT, [1.0, 2.0])


def test_one_lane_table_decides_while_tables_are_swapped(server: RunningServer, directory: Path) -> None:
    registry = Registry(directory / "registry")
    bundles = []
    for variant in (1, 2):
        tiny_score_bundle(directory / f"score-{variant}", variant=variant)
        tiny_action_bundle(directory / f"action-{variant}", variant=variant, rules=BundleRules(RULES))
        pair = [registry.push(directory / f"{kind}-{variant}") for kind in ("score", "action")]
        bundles.append([str(digest) for digest in pair])
    stop = threading.Event()
    tables: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            with Client(server.address, timeout=PATIENT) as client:
                while not stop.is_set():
                    answer = client.decide(FRAUD, SELECT, row(20.0), action_if_declined=True)
                    assert answer.action is not None
                    tables.append((answer.score.served.lane_table, answer.action.served.lane_table))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for fraud, action in [bundles[1], bundles[0], bundles[1]]:
        before = len(server.named("swapped"))
        registry.alias("fraud-checkout", "live", fraud)
        registry.alias("action-authorise", "live", action)
        wait_until(partial(_has_swapped, server, before))
    stop.set()
    for thread in threads:
        thread.join(PATIENT)
    assert not errors
    assert all(of_score == of_action for of_score, of_action in tables)
    assert len(set(tables)) > 1, "no table was swapped while requests were answered"


def test_outcomes_reach_both_decisions_and_the_log_is_clean(
    server: RunningServer, directory: Path, tmp_path: Path
) -> None:
    with Client(server.address, timeout=PATIENT) as client:
        for number in range(20):
            answer = client.decide(
                FRAUD, SELECT, row(10.0 + number), score_feature=PASSED, request_id=f"paid-{number}"
            )
            assert answer.action is not None and answer.score.logged and answer.action.logged
            for checkpoint, kind in ((FRAUD, "fraud"), (SELECT, "authorised")):
                ack = client.report_outcome(checkpoint, answer.decision_id, kind, 1.0)
                assert ack.decision_known and ack.proven
    server.stop()
    verified = scorer(
        "log", "verify", "--log", "decisions", "--bundles", "registry/bundles", "--json", cwd=directory
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    exported, outcomes = tmp_path / "decisions.parquet", tmp_path / "outcomes.parquet"
    done = scorer(
        *("log", "export", "--log", "decisions", "--to", str(exported), "--outcomes", str(outcomes)),
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    decisions: dict[Any, Any] = {(one["checkpoint"], one["decision_id"]): one for one in _rows_of(exported)}
    for number in range(20):
        score, action = decisions[FRAUD, f"paid-{number}"], decisions[SELECT, f"paid-{number}"]
        assert action["features"][3] == np.float32(score["score"]), "the record has the score it received"
    reported = [(one["checkpoint"], one["kind"]) for one in _rows_of(outcomes)]
    assert reported.count((FRAUD, "fraud")) == reported.count((SELECT, "authorised")) == 20
