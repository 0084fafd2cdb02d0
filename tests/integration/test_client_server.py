"""Tests of the clients and the load test with a real server."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bundles import ACTIONS, FEATURES, rows
from servers import RunningServer, settings, start_server

import scorer.aio
from scorer import bridge
from scorer.client import (
    ActionFallback,
    CheckpointNotFoundError,
    Client,
    ClientError,
    Health,
    IdConflictError,
    InvalidRequestError,
    PreconditionError,
    SchemaChangedError,
    ScoreFallback,
    UnavailableError,
)
from scorer.loadtest import LoadOutcome, judge, make_settings, run_load_test
from scorer.registry import Registry

PATIENT = 20.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Path:
    result = tmp_path_factory.mktemp("server")
    registry = Registry(result / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.alias("action-authorise", "live", registry.push(built_bundles["action-1"]))
    return result


@pytest.fixture(scope="module")
def socket(directory: Path) -> Path:
    return directory / "s.sock"


@pytest.fixture(scope="module")
def server(directory: Path, socket: Path) -> Iterator[RunningServer]:
    with start_server(directory, settings(server=f'uds = "{socket}"')) as server:
        yield server


@pytest.fixture(params=["tcp", "unix"])
def client(request: pytest.FixtureRequest, server: RunningServer, socket: Path) -> Iterator[Client]:
    target = server.address if request.param == "tcp" else f"unix://{socket}"
    with Client(target, timeout=PATIENT) as client:
        client.wait_ready()
        yield client


def named(row: Any) -> dict[str, float]:
    return dict(zip(FEATURES, map(float, row), strict=True))


def test_names_vectors_and_batches_give_the_same_scores(
    client: Client, built_bundles: dict[str, Path]
) -> None:
    from scorer.bundle import Bundle

    data = rows(50, seed=5)
    by_name = [client.score("fraud.checkout", named(row)) for row in data]
    dense = [client.score("fraud.checkout", row) for row in data]
    batch = client.score_batch("fraud.checkout", data, request_id="batch-1")
    assert [answer.score for answer in by_name] == [answer.score for answer in dense] == list(batch.scores)
    assert [answer.margin for answer in by_name] == list(batch.margins)
    assert [answer.decision for answer in by_name] == list(batch.decisions)
    # The scores equal those of the bundle when it is evaluated without a server.
    offline = Bundle.load(built_bundles["score-1"])
    assert by_name[0].served.bundle == offline.digest
    assert list(batch.scores) == [float(score) for score in offline.score(data).scores]
    assert {"approve", "review", "decline"} >= set(batch.decisions)
    assert all(answer.decision_id == answer.request_id for answer in by_name)


def test_an_action_and_its_retry(client: Client) -> None:
    row = named(rows(1, seed=9)[0])
    first = client.select_action("action.authorise", row, include_pmf=True)
    assert first.action == ACTIONS[first.action_index]
    assert first.logged
    assert first.propensity == pytest.approx(first.pmf[first.action_index], abs=1e-6)
    assert math.isclose(sum(first.pmf), 1.0, abs_tol=1e-5)
    assert "|".join(f"{key}={value}" for key, value in sorted(first.factors.items())) == first.action
    again = client.select_action("action.authorise", row, include_pmf=True, request_id=first.request_id)
    assert (again.action, again.propensity, again.replayed) == (first.action, first.propensity, True)
    with pytest.raises(IdConflictError) as caught:
        client.select_action("action.authorise", row | {"amount": 1.0}, request_id=first.request_id)
    assert caught.value.code == "ALREADY_EXISTS"


def test_reasons_are_those_of_the_bundle(client: Client, built_bundles: dict[str, Path]) -> None:
    import numpy as np

    from scorer.bundle import Bundle

    data = rows(12, seed=15)
    fraud, oracle = Bundle.load(built_bundles["score-1"]), Bundle.load(built_bundles["action-1"])
    expected, _ = fraud.score_columns(np.ascontiguousarray(data.T), reasons=3)
    assert expected.reasons is not None
    for at, row in enumerate(data):
        assert client.score("fraud.checkout", named(row)).reasons == ()
        answer = client.score("fraud.checkout", named(row), reasons=3)
        found = [(fraud.columns.index(one.feature), one.contribution) for one in answer.reasons]
        columns, amounts = expected.reasons.columns[at], expected.reasons.contributions[at]
        assert found == list(zip(columns[: len(found)], amounts[: len(found)], strict=True))
        assert found and all(columns[len(found) :] == 2**32 - 1)
    selected = client.select_action("action.authorise", data[0], reasons=32)
    start, exact = oracle.explain(data[0], action=selected.action_index)
    assert {one.feature for one in selected.reasons} <= set(oracle.columns)
    # Both methods distribute the same difference.
    total = sum(one.contribution for one in selected.reasons)
    assert total == pytest.approx(exact.sum(), abs=1e-4) and math.isfinite(start)
    with pytest.raises(InvalidRequestError, match="is not a whole number from 0 to 32"):
        client.score("fraud.checkout", data[0], reasons=33)


def test_eligible_actions_by_id_and_by_mask(client: Client) -> None:
    row = named(rows(1)[0])
    wanted = [ACTIONS[1], ACTIONS[4]]
    for eligible in (wanted, bytes([1 << 1 | 1 << 4])):
        answers = [client.select_action("action.authorise", row, eligible=eligible) for _ in range(20)]
        assert {answer.action for answer in answers} <= set(wanted)


def test_outcomes_are_accepted_once(client: Client) -> None:
    answer = client.score("fraud.checkout", named(rows(1)[0]))
    report = ("fraud.checkout", answer.decision_id, "fraud", 1.0)
    first = client.report_outcome(*report)
    assert (first.duplicate, first.decision_known) == (False, True)
    assert client.report_outcome(*report).duplicate
    with pytest.raises(IdConflictError):
        client.report_outcome(*report[:3], 0.0)
    assert not client.report_outcome(*report[:3], 0.0, revision=1).duplicate


def test_descriptions_and_health_are_those_of_the_server(client: Client) -> None:
    fraud = client.describe("fraud.checkout")
    assert (fraud.kind, fraud.feature_names, fraud.sla_p99_ms) == ("score", FEATURES, 1000.0)
    action = client.describe("action.authorise")
    assert tuple(known.id for known in action.actions) == ACTIONS
    assert {info.checkpoint for info in client.checkpoints()} == {"fraud.checkout", "action.authorise"}
    assert client.health() is Health.SERVING
    assert client.health("nonsense") is Health.SERVICE_UNKNOWN


GOOD = dict.fromkeys(FEATURES, 1.0)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c: c.score("fraud.chekout", GOOD), CheckpointNotFoundError, "fraud.chekout"),
        (lambda c: c.score("action.authorise", GOOD), ClientError, "action"),
        (lambda c: c.score("fraud.checkout", GOOD | {"colour": 1.0}), InvalidRequestError, "colour"),
        (lambda c: c.score("fraud.checkout", GOOD | {"amount": "much"}), InvalidRequestError, "amount"),
        (lambda c: c.score("fraud.checkout", GOOD | {"amount": math.inf}), InvalidRequestError, "amount"),
        (lambda c: c.select_action("action.authorise", GOOD, eligible=["x"]), InvalidRequestError, "x"),
        (lambda c: c.select_action("action.authorise", GOOD, eligible=b"\x80"), InvalidRequestError, "mask"),
        (lambda c: c.score_batch("fraud.checkout", [[1.0] * 4] * 1001), InvalidRequestError, "1000"),
        (lambda c: c.report_outcome("fraud.checkout", "d", "fraud", math.nan), InvalidRequestError, "value"),
    ],
)
def test_an_error_of_bad_input_is_one_line_with_the_field(
    client: Client, call: Any, error: Any, words: str
) -> None:
    with pytest.raises(error) as caught:
        call(client)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert client.stats().retries == 0


def test_another_schema_is_refused_and_named(client: Client) -> None:
    client.use_schema(12345, "fraud.checkout")
    for call in (
        lambda: client.score("fraud.checkout", [1.0] * 4),
        lambda: client.score_batch("fraud.checkout", [[1.0] * 4]),
    ):
        with pytest.raises(SchemaChangedError) as caught:
            call()
        assert caught.value.expected == 12345
        assert isinstance(caught.value, PreconditionError)
    client.use_schema(client.describe("fraud.checkout"))
    assert client.score("fraud.checkout", [1.0] * 4).served.by_model


def test_concurrent_calls_succeed(server: RunningServer) -> None:
    data = rows(64, seed=3)

    async def burst() -> list[float]:
        async with scorer.aio.Client(server.address, timeout=PATIENT) as client:
            answers = await asyncio.gather(*(client.score("fraud.checkout", row) for row in data))
        return [answer.score for answer in answers]

    with Client(server.address, timeout=PATIENT) as client, ThreadPoolExecutor(8) as pool:
        threaded = [
            answer.score for answer in pool.map(lambda row: client.score("fraud.checkout", row), data)
        ]
    assert asyncio.run(burst()) == threaded


@pytest.mark.parametrize("features", ["named", "dense"])
def test_a_mixed_load_is_answered_by_the_models(server: RunningServer, socket: Path, features: str) -> None:
    plan, report = run_load_test(
        make_settings(
            {
                "target": f"unix://{socket}",
                "methods": "noop=1,score=4,select_action=2,batch=1",
                "features": features,
                "batch_rows": 20,
                "rate": 200,
                "seconds": 1,
                "warmup_seconds": 0.2,
                "timeout_ms": 60_000,
                "max_lag_ms": 60_000,
            }
        )
    )
    assert report.errors == {}
    assert report.requests == report.answered == 200
    assert {method.name for method in report.methods} == {"noop", "score", "select_action", "batch"}
    assert plan.sla_ms == 1000.0
    assert judge(report, 60_000.0, 60_000.0).outcome is LoadOutcome.PASS


def test_the_client_returns_fallbacks_when_the_server_has_stopped(directory: Path, tmp_path: Path) -> None:
    fallback = {
        "fraud.checkout": ScoreFallback("review", 0.5),
        "action.authorise": ActionFallback(ACTIONS[2]),
    }
    text = settings(
        server=f'state_dir = "{tmp_path}/state"',
        log=f'dir = "{tmp_path}/log"',
        registry=f'path = "{directory}/registry"',
    )
    with start_server(tmp_path, text) as server, Client(server.address, fallback=fallback) as client:
        client.wait_ready()
        assert client.score("fraud.checkout", GOOD).served.by_model
        server.kill()
        for _ in range(3):
            answer = client.score("fraud.checkout", GOOD)
            assert (answer.decision, answer.served.fallback_source) == ("review", "client")
        chosen = client.select_action("action.authorise", GOOD, eligible=[ACTIONS[2], ACTIONS[3]])
        assert (chosen.action, chosen.logged) == (ACTIONS[2], False)
        with pytest.raises(UnavailableError):
            client.describe("fraud.checkout")
        assert client.stats().fallbacks == {"unavailable": 4}


def test_a_replica_of_a_list_that_is_not_serving_is_not_called(server: RunningServer, tmp_path: Path) -> None:
    # A server without bundles accepts connections, reports NOT_SERVING and answers with UNAVAILABLE.
    empty = bridge.Server(
        json.dumps(
            {
                "listen": "127.0.0.1:0",
                "log": {"dir": str(tmp_path / "log")},
                "checkpoints": {"fraud.checkout": {"kind": "score"}},
            }
        )
    )
    try:
        address = json.loads(empty.addresses())["grpc"][0]
        with Client([address, server.address], timeout=PATIENT) as client:
            for _ in range(20):
                assert client.score("fraud.checkout", GOOD).served.by_model
            assert client.stats().retries == 0
        # No replica is left: the call fails at once, without waiting for its deadline.
        with Client([address], timeout=PATIENT) as client, pytest.raises(UnavailableError):
            client.score("fraud.checkout", GOOD)
    finally:
        empty.drain(5.0)


# Python 3.12 and newer warn about a fork with threads, which this test does on purpose.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_client_is_refused_in_a_real_forked_child(server: RunningServer) -> None:
    with Client(server.address, timeout=PATIENT) as client:
        pid = os.fork()
        if pid == 0:
            # Only the client's check is tested, because gRPC does not work in a forked child.
            try:
                client.score("fraud.checkout", GOOD)
            except ClientError as error:
                os._exit(0 if "forked" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert client.score("fraud.checkout", GOOD).served.by_model
