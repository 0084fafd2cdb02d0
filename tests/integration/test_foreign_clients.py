"""Tests of the clients for Go, Java and Node with real replicas, and with a server of scripted faults."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import components
import pytest
from bundles import ACTIONS, FEATURES, rows
from certificates import Authority, grants, server_tls
from foreign_clients import COMPONENTS, CheckoutProgram
from servers import ACTION, RunningServer, settings, start_server
from waiting import PATIENCE, wait_until

from scorer import bridge
from scorer.client import Client
from scorer.client.testing import FakeServer, Fault
from scorer.registry import Registry
from scorer.token_keys import add_key
from scorer.v1 import scoring_pb2 as pb

FRAUD, AUTHORISE = "fraud.checkout", "action.authorise"
PATIENT = int(PATIENCE * 1000)
"""A deadline in milliseconds that only a defect exceeds."""
ROLES = {"checkout": ["score", "select", "report_outcomes"]}
BUDGET = 100
"""Tokens of the clients' retry budget: half of them are the retries at once."""

pytestmark = pytest.mark.parametrize("language", COMPONENTS)


def features(seed: int) -> dict[str, float]:
    """Values that a program's line and the Python client give to the server alike."""
    return {name: round(float(value), 3) for name, value in zip(FEATURES, rows(1, seed=seed)[0], strict=True)}


def line(step: str, payment: int | str, values: dict[str, float] | None = None, *, attempt: int = 1) -> str:
    """A step of a payment: `score` or `select`."""
    words = [f"{name}={value:.3f}" for name, value in (values or features(1)).items()]
    return " ".join([step, FRAUD if step == "score" else AUTHORISE, str(payment), str(attempt), *words])


@pytest.fixture(autouse=True)
def _is_built(language: str) -> None:
    components.require(COMPONENTS[language])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Path:
    """What replicas have in common: a registry with live bundles, and keys for decision tokens."""
    directory = tmp_path_factory.mktemp("shared")
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.alias("action-authorise", "live", registry.push(built_bundles["action-1"]))
    add_key(directory / "token-keys.json")
    return directory


def replica_settings(shared: Path, more: str = "") -> str:
    return (
        settings(registry=f'path = "{shared / "registry"}"')
        + f'[outcomes]\ntoken_keys = "{shared / "token-keys.json"}"\n{more}'
    )


@pytest.fixture(scope="module")
def replicas(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    directories = [tmp_path_factory.mktemp(name) for name in ("replica-a", "replica-b")]
    text = replica_settings(shared)
    with start_server(directories[0], text) as first, start_server(directories[1], text) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def late(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose scores are fallbacks, because no evaluation is ready within a microsecond."""
    checkpoint = (
        f'[checkpoints."{FRAUD}"]\nkind = "score"\nalias = "fraud-checkout@live"\np99_ms = 0.001\n'
        'mode = "enforce"\nfallback = { decision = "review", score = 0.5 }\n'
    )
    text = settings(checkpoint + ACTION, registry=f'path = "{shared / "registry"}"')
    with start_server(tmp_path_factory.mktemp("late"), text) as server:
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.of_fleet(tmp_path_factory.mktemp("tls"), ROLES)


@pytest.fixture(scope="module")
def encrypted(
    shared: Path, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """The addresses of two replicas with TLS, which require certificates of their clients."""
    text = replica_settings(shared, server_tls(authority.directory) + grants(ROLES))
    directories = [tmp_path_factory.mktemp(name) for name in ("encrypted-a", "encrypted-b")]
    with start_server(directories[0], text) as first, start_server(directories[1], text) as second:
        yield [first.address, second.address]


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


# --- real replicas ---


def reported_elsewhere(program: CheckoutProgram, payment: str) -> bool:
    """Score a payment and report its outcome; return whether the other replica received the outcome."""
    assert program.ask(line("score", payment))["source"] == "model"
    report = program.ask(f"outcome {FRAUD} {payment} 1 fraud 0")
    assert report["proven"] == "true", "the token proves the outcome at every replica"
    return report["known"] == "false"


def test_payments_are_scored_routed_and_reported(language: str, replicas: list[RunningServer]) -> None:
    addresses = [replica.address for replica in replicas]
    with (
        CheckoutProgram(language, addresses, timeout_ms=PATIENT) as program,
        Client(addresses[0], timeout=PATIENCE) as python,
    ):
        assert any(reported_elsewhere(program, f"{language}-first-{number}") for number in range(200))
        for number in range(8):
            values, payment = features(number), f"{language}-{number}"
            score = program.ask(line("score", payment, values))
            expected = python.score(FRAUD, values)
            assert float(score["score"]) == expected.score
            assert (score["label"], score["bundle"]) == (expected.decision, expected.served.bundle)
            assert (score["source"], score["logged"], score["attempts"]) == ("model", "true", "1")
            assert int(score["token"]) > 0

            selected = program.ask(line("select", payment, values))
            again = program.ask(line("select", payment, values))
            assert selected["id"] == f"{payment}-attempt-1"
            assert selected["action"] in ACTIONS
            # The other replica draws the same action; the same replica repeats its answer.
            assert (again["action"], again["propensity"]) == (selected["action"], selected["propensity"])
            other = program.ask(line("select", payment, values, attempt=2))
            assert other["id"] == f"{payment}-attempt-2"

            report = f"outcome {AUTHORISE} {payment} 1 authorised 1"
            first, second, third = (program.ask(report) for _ in range(3))
            assert {first["proven"], second["proven"], third["proven"]} == {"true"}, "the token proves it"
            # The reports alternate between the replicas, so that one of them receives a report twice.
            assert first["duplicate"] == "false"
            assert third["duplicate"] == "true"
            changed = program.ask(f"outcome {AUTHORISE} {payment} 1 authorised 0")
            assert changed["error"] == "ID_CONFLICT"
            assert program.ask(f"outcome {AUTHORISE} {payment} 1 authorised 0 1")["proven"] == "true"


def test_no_call_fails_when_a_replica_is_killed(
    language: str, replicas: list[RunningServer], shared: Path, tmp_path: Path
) -> None:
    count = 600
    with start_server(tmp_path, replica_settings(shared)) as victim:
        addresses = [victim.address, replicas[0].address]
        with CheckoutProgram(language, addresses, timeout_ms=PATIENT, concurrency=8) as program:
            names = [f"{language}-kill-{number}" for number in range(count)]
            steps = [line(step, name) for name in names for step in ("score", "select")]
            writer = threading.Thread(target=program.write, args=(steps,))
            writer.start()
            answers = [program.read() for _ in range(count // 4)]
            assert {answer.get("source") for answer in answers} == {"model"}
            victim.kill()
            answers += [program.read() for _ in range(len(steps) - len(answers))]
            writer.join(PATIENCE)
    failed = [answer for answer in answers if answer.get("source") != "model"]
    assert not failed, failed[:3]
    assert {answer["step"] + answer["id"] for answer in answers} == {
        step + f"{name}-attempt-1" for name in names for step in ("score", "select")
    }


def test_a_replica_that_is_not_serving_is_avoided(
    language: str, replicas: list[RunningServer], tmp_path: Path
) -> None:
    # A server without bundles accepts connections, reports NOT_SERVING and answers with UNAVAILABLE.
    empty = bridge.Server(
        json.dumps(
            {
                "listen": "127.0.0.1:0",
                "metrics_listen": "127.0.0.1:0",
                "log": {"dir": str(tmp_path / "log")},
                "checkpoints": {FRAUD: {"kind": "score"}},
            }
        )
    )
    try:
        addresses = [json.loads(empty.addresses())["grpc"][0], replicas[0].address]
        with CheckoutProgram(language, addresses, timeout_ms=PATIENT) as program:
            answers = [program.ask(line("score", f"{language}-avoid-{number}")) for number in range(10)]
        with CheckoutProgram(language, addresses[:1], timeout_ms=PATIENT) as program:
            alone = program.ask(line("score", f"{language}-avoid"))
    finally:
        empty.drain(5.0)
    assert {answer.get("source") for answer in answers} == {"model"}
    # grpc-js does not watch health, so that calls of the client for Node reach the replica and are repeated.
    repeated = {answer["attempts"] for answer in answers} != {"1"}
    assert repeated == (language == "node")
    assert alone["error"] == "UNAVAILABLE"


def test_wrong_requests_are_typed_errors(language: str, replicas: list[RunningServer]) -> None:
    with CheckoutProgram(language, [replicas[0].address], timeout_ms=PATIENT) as program:
        wrong = program.ask(f"score {FRAUD} {language}-wrong 1 amount=much")
        assert (wrong["error"], wrong["attempts"]) == ("INVALID_REQUEST", "1")
        assert "amount" in wrong["message"]
        assert program.ask(f"score {FRAUD} {language}-wrong 1 weight=1")["error"] == "INVALID_REQUEST"
        assert program.ask(f"score nowhere {language}-wrong 1 hour=1")["error"] == "CHECKPOINT_NOT_FOUND"
        long = program.ask(line("score", "x" * 60))
        assert (long["error"], long["attempts"]) == ("INVALID_REQUEST", "0"), "it is not sent"
        assert "source" in program.ask(line("select", f"{language}-id"))
        conflict = program.ask(line("select", f"{language}-id", features(2)))
        assert conflict["error"] == "ID_CONFLICT"
        one = program.ask(f"select {AUTHORISE} {language}-one 1 eligible:{ACTIONS[4]} hour=1")
        assert (one["action"], one["propensity"].rstrip("0").rstrip(".")) == (ACTIONS[4], "1")
        none = program.ask(f"select {AUTHORISE} {language}-none 1 eligible:nothing hour=1")
        assert none["error"] == "INVALID_REQUEST"


def test_the_servers_fallback_is_marked(language: str, late: RunningServer) -> None:
    payment = f"{language}-late"
    with CheckoutProgram(language, [late.address], timeout_ms=PATIENT, fallback_label="decline") as program:
        answer = program.ask(line("score", payment))
        assert (answer["source"], answer["fallback"]) == ("server_fallback", "static")
        assert (answer["label"], float(answer["score"])) == ("review", 0.5)
        # Admission control sheds the request, or its deadline passes first.
        assert answer["reason"] in ("late", "overload")
        # The server's log has this decision, so that outcomes of it can be reported.
        assert "error" not in program.ask(f"outcome {FRAUD} {payment} 1 fraud 0")
        assert program.ask(line("select", payment))["source"] == "model"


def test_mutual_tls(language: str, encrypted: list[str], authority: Authority) -> None:
    ca, certificate, key = (authority.directory / name for name in ("ca.pem", "checkout.pem", "checkout.key"))
    own: dict[str, str | int | Path] = {
        "ca": ca,
        "certificate": certificate,
        "key": key,
        "timeout_ms": PATIENT,
    }
    with CheckoutProgram(language, encrypted, **own) as program:
        for number in range(4):
            payment = f"{language}-tls-{number}"
            assert program.ask(line("score", payment))["source"] == "model"
            assert program.ask(f"outcome {FRAUD} {payment} 1 fraud 0")["proven"] == "true"
    with CheckoutProgram(language, encrypted, server_name="localhost", **own) as program:
        assert program.ask(line("score", f"{language}-named"))["source"] == "model"
    with CheckoutProgram(language, encrypted, server_name="elsewhere", attempts=1, **own) as program:
        assert program.ask(line("score", f"{language}-elsewhere"))["error"] == "UNAVAILABLE"
    with CheckoutProgram(language, encrypted, ca=ca, attempts=1, timeout_ms=PATIENT) as program:
        refused = program.ask(line("score", f"{language}-without"))
        assert refused["error"] in ("UNAVAILABLE", "ACCESS")


# --- scripted faults ---


def test_retries_send_the_same_request(language: str, fake: FakeServer) -> None:
    with CheckoutProgram(language, [fake.target], timeout_ms=PATIENT) as program:
        for step, method in (("score", "Score"), ("select", "SelectAction")):
            fake.script(method, Fault("UNAVAILABLE"), Fault("UNAVAILABLE", pushback="1"))
            answer = program.ask(f"{step} {FRAUD if step == 'score' else AUTHORISE} 7 1 amount=1")
            assert (answer["source"], answer["attempts"]) == ("model", "3")
            first, second, third = fake.requests(method)
            assert first == second == third
            assert first.request_id == "7-attempt-1"
        fake.script("ReportOutcome", Fault("UNAVAILABLE"))
        report = program.ask(f"outcome {AUTHORISE} 7 1 authorised 1 0 issuer:feed-3")
        assert report["attempts"] == "2"
        first, second = fake.requests("ReportOutcome")
        assert first == second
        assert (first.source.kind, first.source.id) == (pb.OUTCOME_SOURCE_KIND_ISSUER, "feed-3")

        fake.script("Score", *[Fault("UNAVAILABLE", "away")] * 3)
        lost = program.ask(f"score {FRAUD} 8 1 amount=1")
        assert (lost["error"], lost["attempts"], lost["message"]) == ("UNAVAILABLE", "3", "away")
        # What the server forbids or what is no outage is not repeated.
        for fault, kind in (
            (Fault("UNAVAILABLE", pushback="-1"), "UNAVAILABLE"),
            (Fault("RESOURCE_EXHAUSTED"), "OVERLOADED"),
            (Fault("DEADLINE_EXCEEDED"), "DEADLINE_EXCEEDED"),
            (Fault("FAILED_PRECONDITION"), "PRECONDITION"),
            (Fault("PERMISSION_DENIED"), "ACCESS"),
            (Fault("UNIMPLEMENTED"), "UNSUPPORTED"),
            (Fault("INTERNAL"), "SERVER_FAULT"),
            (Fault("CANCELLED"), "SERVER_FAULT"),
        ):
            fake.script("Score", fault)
            failed = program.ask(f"score {FRAUD} 9 1 amount=1")
            assert (failed["error"], failed["attempts"]) == (kind, "1"), fault


def test_the_budget_bounds_the_retries_of_a_failing_server(language: str, fake: FakeServer) -> None:
    calls = BUDGET
    fake.script("Score", *[Fault("UNAVAILABLE")] * 3 * calls)
    with CheckoutProgram(language, [fake.target], timeout_ms=PATIENT) as program:
        answers = [program.ask(f"score {FRAUD} {number} 1 amount=1") for number in range(calls)]
    assert {answer["error"] for answer in answers} == {"UNAVAILABLE"}
    # Every failure takes a token, and a retry needs more than half of them.
    assert calls < len(fake.requests("Score")) < calls + BUDGET / 2
    assert [answer["attempts"] for answer in answers[:3]] == ["3"] * 3
    assert {answer["attempts"] for answer in answers[BUDGET // 2 :]} == {"1"}


@pytest.mark.parametrize("delay", ["1", "p95"])
def test_a_slow_score_is_hedged(language: str, fake: FakeServer, delay: str) -> None:
    with CheckoutProgram(
        language, [fake.target], timeout_ms=2 * PATIENT, hedge=delay, concurrency=2
    ) as program:
        if delay == "p95":
            # The estimate begins at half of the deadline, and falls to the time that scores take.
            program.write(f"score {FRAUD} {number} 1 amount=1" for number in range(1_000))
            assert {program.read()["source"] for _ in range(1_000)} == {"model"}
        selection, first = threading.Event(), threading.Event()
        fake.script("SelectAction", Fault(until=selection))
        program.write([f"select {AUTHORISE} slow 1 amount=1"])
        wait_until(lambda: fake.requests("SelectAction"), "the selection arrives")
        before = len(fake.requests("Score"))
        fake.script("Score", Fault(until=first))
        answer = program.ask(f"score {FRAUD} slow 1 amount=1")
        assert (answer["source"], answer["attempts"]) == ("model", "2")
        one, other = fake.requests("Score")[before:]
        assert one == other
        assert first.wait(PATIENCE), "the copy without an answer is cancelled"
        # The selection waits for longer than the score did, and has not been sent again.
        selection.set()
        assert program.read()["attempts"] == "1"
        assert len(fake.requests("SelectAction")) == 1


def test_hedges_have_a_budget(language: str, fake: FakeServer) -> None:
    held = [threading.Event() for _ in range(8)]
    sent = []
    with CheckoutProgram(language, [fake.target], timeout_ms=2000, hedge=1) as program:
        for number, event in enumerate(held):
            fake.script("Score", Fault(until=event))
            sent.append(program.ask(f"score {FRAUD} {number} 1 amount=1")["attempts"])
            if sent[-1] == "1":
                break
    assert 2 < len(sent) < len(held)
    assert sent == ["2"] * (len(sent) - 1) + ["1"]


def test_deadlines_and_fallbacks_of_the_client(language: str, fake: FakeServer) -> None:
    fake.script("Score", Fault(until=threading.Event()), Fault(until=threading.Event()))
    fake.script("SelectAction", Fault(until=threading.Event()))
    with CheckoutProgram(language, [fake.target], timeout_ms=300) as program:
        late = program.ask(f"score {FRAUD} 1 1 amount=1")
        assert (late["error"], late["attempts"]) == ("DEADLINE_EXCEEDED", "1")
    options: dict[str, str | int | Path] = {"fallback_label": "review", "fallback_action": ACTIONS[0]}
    with CheckoutProgram(language, [fake.target], timeout_ms=300, **options) as program:
        score = program.ask(f"score {FRAUD} 2 1 amount=1")
        assert (score["source"], score["fallback"], score["reason"]) == (
            "client_fallback",
            "client",
            "deadline_exceeded",
        )
        assert (score["label"], score["logged"], score["token"]) == ("review", "false", "0")
        selected = program.ask(f"select {AUTHORISE} 2 1 amount=1")
        assert (selected["action"], selected["source"]) == (ACTIONS[0], "client_fallback")
        # The log has no decision, or another one, so that no outcome may be reported.
        report = program.ask(f"outcome {FRAUD} 2 1 fraud 0")
        assert (report["error"], report["attempts"]) == ("INVALID_REQUEST", "0")
        assert not fake.requests("ReportOutcome")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{free.getsockname()[1]}"
        with CheckoutProgram(language, [away, away], timeout_ms=PATIENT, **options) as program:
            assert program.ask(f"score {FRAUD} 3 1 amount=1")["reason"] == "unavailable"
            # An error in the request is never answered by a fallback.
            assert program.ask(line("score", "x" * 60))["error"] == "INVALID_REQUEST"
