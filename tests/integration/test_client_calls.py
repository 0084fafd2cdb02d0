"""Tests of both clients over a real connection to a fake server with scripted faults."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from waiting import wait_until

import scorer.aio
from scorer.client import (
    ActionFallback,
    CheckpointInfo,
    CheckpointNotFoundError,
    Client,
    ClientError,
    ClientUseError,
    DeadlineExceededError,
    Health,
    IdConflictError,
    InvalidRequestError,
    OutcomeAck,
    OverloadedError,
    PreconditionError,
    SchemaChangedError,
    ScoreFallback,
    ServerFaultError,
    UnavailableError,
    UnsupportedError,
)
from scorer.client.hedging import Hedging
from scorer.client.testing import FakeServer, Fault
from scorer.v1 import scoring_pb2 as pb

EVENT = {"amount": 12.5, "country": "NL", "returning": True}
# A generous SLA, because these tests check answers and not latency.
PATIENT = 20.0


class Blocking:
    """The asyncio client with the interface of the blocking one, so that one test covers both."""

    def __init__(self, *args, **kwargs):
        self.runner = asyncio.Runner()
        self.client = scorer.aio.Client(*args, **kwargs)

    def __getattr__(self, name):
        attribute = getattr(self.client, name)
        if not asyncio.iscoroutinefunction(attribute):
            return attribute
        return lambda *args, **kwargs: self.runner.run(attribute(*args, **kwargs))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.runner.close()


@pytest.fixture(params=[Client, Blocking], ids=["blocking", "asyncio"])
def make(request):
    clients = []

    def make(target, **kwargs):
        clients.append(request.param(target, **({"timeout": PATIENT} | kwargs)))
        return clients[-1]

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def server():
    with FakeServer() as server:
        yield server


@pytest.fixture
def client(make, server):
    return make(server.target)


@pytest.fixture
def closed_port():
    with socket.socket() as holder:
        # Bound but not listening: no other process can bind the port, and connections are refused.
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def test_score_with_features_by_name(client, server):
    result = client.score("fraud.checkout", EVENT, request_id="order-1", entity="shopper-9")
    assert (result.score, result.decision, result.decision_id) == (0.25, "approve", "order-1")
    assert result.served.by_model
    assert result.served.bundle == "sha256:" + "ab" * 32
    assert (result.served.lane, result.served.lane_table, result.served.exec_us) == ("live", 3, 7)
    (request,) = server.requests("Score")
    assert request.entity == "shopper-9"
    assert [f.name for f in request.named.features] == list(EVENT)
    # Values by name need no fingerprint, so the client sent no other request.
    assert server.requests("Describe") == []


def test_score_dense_requests_the_schema_once(client, server):
    for row in ([12.5, 0, 1], np.array([1.0, 2.0, np.nan])):
        client.score("fraud.checkout", row)
    assert len(server.requests("Describe")) == 1
    first, second = server.requests("Score")
    assert first.dense.schema_fingerprint == second.dense.schema_fingerprint == 0xFEDCBA9876543210
    assert list(first.dense.values) == [12.5, 0.0, 1.0]
    assert math.isnan(second.dense.values[2])


def test_a_wrong_number_of_dense_values_is_refused(client, server):
    with pytest.raises(InvalidRequestError, match="2 dense values, but the schema has 3 features"):
        client.score("fraud.checkout", [1.0, 2.0])
    with pytest.raises(InvalidRequestError, match="4 dense values"):
        client.score_batch("fraud.checkout", np.zeros((5, 4)))
    assert server.requests("Score") == server.requests("ScoreBatch") == []


def test_score_batch_returns_a_score_per_row(client, server):
    rows = np.arange(9, dtype=np.float32).reshape(3, 3)
    result = client.score_batch("fraud.checkout", rows, request_id="night")
    assert (len(result), result.scores, result.decisions) == (3, (0.25,) * 3, ("approve",) * 3)
    assert [result.decision_id(i) for i in range(3)] == ["night/0", "night/1", "night/2"]
    with pytest.raises(IndexError):
        result.decision_id(3)
    (request,) = server.requests("ScoreBatch")
    assert list(request.values) == list(range(9))
    assert request.rows == 3


def test_select_action_returns_an_action_and_its_propensity(client, server):
    result = client.select_action("action.authorise", {"amount": 1}, include_pmf=True)
    assert result.action == "3ds=frictionless|route=a"
    assert (result.propensity, result.action_index, result.expected_reward) == (0.25, 0, 0.75)
    assert result.factors == {"three_ds": "frictionless", "route": "a"}
    assert result.pmf == (0.25,) * 4
    assert result.logged
    assert not result.replayed
    assert not server.requests("SelectAction")[0].HasField("eligible")


@pytest.mark.parametrize("eligible", [{"3ds=challenge|route=b"}, b"\x08"], ids=["ids", "mask"])
def test_select_action_among_the_eligible(client, eligible):
    result = client.select_action("action.authorise", [5.0], eligible=eligible)
    assert (result.action, result.action_index, result.propensity) == ("3ds=challenge|route=b", 3, 1.0)
    assert result.pmf == ()


def test_explain_returns_contributions_and_the_difference(client, server):
    found = client.explain("fraud.checkout", EVENT, reasons=2, bundle="sha256:" + "ef" * 32)
    assert found.explanation.contributions == {"amount": 0.5, "country": 0.5, "returning": 0.5}
    assert (found.explanation.baseline, found.explanation.margin) == (-2.0, -0.5)
    assert [(one.feature, one.contribution) for one in found.explanation.reasons] == [
        ("amount", 0.5),
        ("country", 0.5),
    ]
    assert (found.against, found.difference, found.bundle) == (None, None, "sha256:" + "ef" * 32)
    both = client.explain("action.authorise", [1.0], action="a", against="b")
    assert (both.explanation.action, both.against.action, both.difference.action) == ("a", "b", "")
    assert both.difference.contributions == {"amount": 0.25}
    first, second = server.requests("Explain")
    assert (first.reasons, first.bundle, second.action, second.against) == (2, found.bundle, "a", "b")
    assert second.WhichOneof("features") == "dense"


def test_an_explanation_has_no_fallback_and_its_errors_are_typed(make, server):
    fallback = {"fraud.checkout": ScoreFallback("review", 0.5)}
    client = make(server.target, fallback=fallback)
    for code, error in [("RESOURCE_EXHAUSTED", OverloadedError), ("FAILED_PRECONDITION", PreconditionError)]:
        server.script("Explain", Fault(code, "refused"))
        with pytest.raises(error, match="refused"):
            client.explain("fraud.checkout", EVENT)
    server.script("Explain", Fault("UNAVAILABLE"))
    assert client.explain("fraud.checkout", EVENT).explanation.score == 0.25
    assert client.stats().retries == 1 and not client.stats().fallbacks


def test_report_outcome_returns_its_acknowledgement(client, server):
    ack = client.report_outcome(
        "fraud.checkout", "order-1", "chargeback", 1, revision=2, occurred_at_ms=1_700_000_000_000
    )
    assert ack == OutcomeAck(duplicate=False, decision_known=True, superseded=False)
    client.report_outcome("fraud.checkout", "order-1", "chargeback", 1, source="issuer", source_id="feed-3")
    client.report_outcome("fraud.checkout", "order-1", "chargeback", 1, source_id="feed-3")
    with pytest.raises(InvalidRequestError, match="source 'shop'"):
        client.report_outcome("fraud.checkout", "order-1", "chargeback", 1, source="shop")
    (request, by_issuer, by_feed) = server.requests("ReportOutcome")
    assert by_issuer.source == pb.OutcomeSource(kind=pb.OUTCOME_SOURCE_KIND_ISSUER, id="feed-3")
    assert by_feed.source == pb.OutcomeSource(id="feed-3")
    assert request == pb.ReportOutcomeRequest(
        checkpoint="fraud.checkout",
        decision_id="order-1",
        kind="chargeback",
        value=1.0,
        revision=2,
        occurred_at_ms=1_700_000_000_000,
    )


def test_describe_returns_the_checkpoints(client):
    info = client.describe("fraud.checkout")
    assert isinstance(info, CheckpointInfo)
    assert info.feature_names == ("amount", "country", "returning")
    assert info.fingerprint == 0xFEDCBA9876543210
    amount, country, returning = info.features
    assert (amount.minimum, amount.maximum, amount.missing) == (0.0, 50_000.0, "refuse")
    assert (country.categories, country.minimum) == (("NL", "DE", "GB"), None)
    assert returning.type == "flag"
    assert [(band.start, band.label) for band in info.thresholds] == [
        (0.0, "approve"),
        (0.5, "review"),
        (0.9, "decline"),
    ]
    assert info.lanes[0].share == 1.0
    assert [c.checkpoint for c in client.checkpoints()] == ["fraud.checkout", "action.authorise"]
    assert len(client.describe("action.authorise").actions) == 4


def test_health_returns_the_serving_status(client, server):
    assert client.health() is Health.SERVING
    server.serving = False
    assert client.health("fraud.checkout") is Health.NOT_SERVING
    assert client.health("nonsense") is Health.SERVICE_UNKNOWN


def test_over_a_unix_socket(make, tmp_path):
    with FakeServer(tmp_path / "s.sock") as server:
        assert server.target.startswith("unix:///")
        client = make(server.target)
        client.wait_ready()
        assert client.score("fraud.checkout", EVENT).score == 0.25


def test_metadata_is_sent(make, server):
    make(server.target, metadata=[("authorization", "Bearer x")]).score("fraud.checkout", EVENT)
    assert server.metadata("Score")[0]["authorization"] == "Bearer x"


# -- retries ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["Score", "ScoreBatch", "SelectAction", "ReportOutcome", "Describe", "Check"]
)
def test_unavailable_is_retried_with_the_same_request(client, server, method):
    calls = {
        "Score": lambda: client.score("fraud.checkout", EVENT),
        "ScoreBatch": lambda: client.score_batch("fraud.checkout", [[1, 2, 0]]),
        "SelectAction": lambda: client.select_action("action.authorise", {"amount": 1}),
        "ReportOutcome": lambda: client.report_outcome("fraud.checkout", "d", "fraud", 1),
        "Describe": lambda: client.describe("fraud.checkout"),
        "Check": client.health,
    }
    server.script(method, Fault("UNAVAILABLE"), Fault("UNAVAILABLE", pushback="1"))
    calls[method]()
    first, second, third = server.requests(method)
    assert first == second == third
    assert client.stats().retries == 2


def test_a_negative_pushback_prevents_retries(client, server):
    server.script("Score", Fault("UNAVAILABLE", "go away", pushback="-1"))
    with pytest.raises(UnavailableError, match="go away"):
        client.score("fraud.checkout", EVENT)
    assert len(server.requests("Score")) == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("INVALID_ARGUMENT", InvalidRequestError),
        ("OUT_OF_RANGE", InvalidRequestError),
        ("ALREADY_EXISTS", IdConflictError),
        ("FAILED_PRECONDITION", PreconditionError),
        ("RESOURCE_EXHAUSTED", OverloadedError),
        ("INTERNAL", ServerFaultError),
        ("UNIMPLEMENTED", UnsupportedError),
    ],
)
def test_errors_are_typed_and_final(client, server, code, error):
    server.script("Score", Fault(code, 'feature "amount": value 1e9 is above 50000.'))
    with pytest.raises(
        error, match=r'fraud\.checkout: feature "amount": value 1e9 is above 50000 '
    ) as caught:
        client.score("fraud.checkout", EVENT, request_id="order-2")
    assert (caught.value.code, caught.value.request_id, caught.value.attempts) == (code, "order-2", 1)
    assert f"({code}, request order-2)" in str(caught.value)
    assert len(server.requests("Score")) == 1
    assert client.stats().errors == {error.__name__: 1}


def test_an_unknown_checkpoint_is_an_error(client):
    for call in (
        lambda: client.score("fraud.chekout", EVENT),
        lambda: client.score("fraud.chekout", [1.0]),
        lambda: client.describe("fraud.chekout"),
    ):
        with pytest.raises(CheckpointNotFoundError, match=r'"fraud\.chekout" is not served'):
            call()


@pytest.mark.parametrize("checkpoint", ["", None, 5])
def test_a_checkpoint_needs_a_name(client, checkpoint):
    with pytest.raises(InvalidRequestError, match="is no name"):
        client.score(checkpoint, EVENT)


def test_the_deadline_ends_a_call_that_is_never_answered(client, server):
    never = threading.Event()
    server.script("Score", Fault(until=never))
    with pytest.raises(DeadlineExceededError) as caught:
        client.score("fraud.checkout", EVENT, timeout=0.05)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert len(server.requests("Score")) <= 1
    never.set()


def test_a_message_above_the_limit_is_not_sent(make, server):
    client = make(server.target, max_message_bytes=2048)
    with pytest.raises(InvalidRequestError, match="above max_message_bytes=2048"):
        client.score_batch("fraud.checkout", np.zeros((500, 3)))
    assert server.requests("ScoreBatch") == []


def test_a_reply_that_does_not_match_its_request_is_an_error(make, monkeypatch):
    monkeypatch.setattr(
        FakeServer,
        "_score_batch",
        lambda _self, request, _context: pb.ScoreBatchResponse(request_id=request.request_id, scores=[0.5]),
    )
    words = "1 scores, 0 margins and 0 decisions for 2 rows"
    with FakeServer() as broken, pytest.raises(ServerFaultError, match=words):
        make(broken.target).score_batch("fraud.checkout", [[1, 2, 0]] * 2)


# -- schema changes --------------------------------------------------------------------


def reorder(server):
    old = server.checkpoints["fraud.checkout"]
    new = pb.CheckpointDescription()
    new.CopyFrom(old)
    new.schema_fingerprint = 77
    new.ClearField("features")
    new.features.extend([old.features[1], old.features[0], old.features[2]])
    server.checkpoints["fraud.checkout"] = new


def test_a_changed_schema_is_an_error_until_the_caller_accepts_it(client, server):
    client.score("fraud.checkout", [12.5, 0, 1])
    reorder(server)
    for _ in range(2):
        with pytest.raises(SchemaChangedError, match='another order, from position 0 \\("amount"') as caught:
            client.score("fraud.checkout", [12.5, 0, 1])
        assert (caught.value.expected, caught.value.actual) == (0xFEDCBA9876543210, 77)
    # Reading the new description does not accept the new schema ...
    described = client.describe("fraud.checkout")
    with pytest.raises(SchemaChangedError):
        client.score_batch("fraud.checkout", [[12.5, 0, 1]])
    assert client.score("fraud.checkout", EVENT).score == 0.25
    # ... but an explicit call does.
    client.use_schema(described)
    client.score("fraud.checkout", [0, 12.5, 1])
    assert server.requests("Score")[-1].dense.schema_fingerprint == 77


def test_a_fingerprint_kept_by_the_caller_guards_the_first_call_too(client, server):
    client.use_schema(0xFEDCBA9876543210, "fraud.checkout")
    client.score("fraud.checkout", [12.5, 0, 1])
    assert server.requests("Describe") == []
    reorder(server)
    with pytest.raises(SchemaChangedError):
        client.score("fraud.checkout", [12.5, 0, 1])
    with pytest.raises(InvalidRequestError, match="without its checkpoint"):
        client.use_schema(5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.features.add(name="device"), 'with "device"'),
        (lambda d: d.features.pop(), 'without "returning"'),
        (lambda d: d.features[1].categories.append("FR"), "same names in the same order with other types"),
    ],
)
def test_the_error_names_what_changed(client, server, change, words):
    client.score("fraud.checkout", [12.5, 0, 1])
    described = server.checkpoints["fraud.checkout"]
    change(described)
    described.schema_fingerprint = 78
    with pytest.raises(SchemaChangedError, match=words):
        client.score("fraud.checkout", [12.5, 0, 1])


def test_another_failed_precondition_is_not_a_schema_error(client, server):
    server.script("Score", Fault("FAILED_PRECONDITION", "the checkpoint is being drained"))
    with pytest.raises(PreconditionError, match="being drained") as caught:
        client.score("fraud.checkout", [12.5, 0, 1])
    assert not isinstance(caught.value, SchemaChangedError)


# -- several replicas ------------------------------------------------------------------


def test_the_replicas_of_a_list_are_called_in_turn(make):
    with FakeServer() as first, FakeServer() as second:
        client = make([first.target, second.target])
        wait_until(lambda: client.score("fraud.checkout", EVENT) and all(map(received, (first, second))))
        before = received(first), received(second)
        for _ in range(10):
            client.score("fraud.checkout", EVENT)
        assert (received(first) - before[0], received(second) - before[1]) == (5, 5)


def test_a_replica_that_fails_every_call_is_left_out(make):
    with FakeServer() as bad, FakeServer() as good:
        # Not UNAVAILABLE, so that no retry hides the failures.
        bad.script("Score", *[Fault("INTERNAL")] * 100_000)
        client = make([bad.target, good.target])
        answers = []

        def is_left_out():
            before = received(bad)
            for _ in range(10):
                with suppress(ServerFaultError):
                    answers.append(client.score("fraud.checkout", EVENT))
            # Round robin sends it five of these calls. A replica that is not connected gets none either.
            return before > 0 and received(bad) == before

        wait_until(is_left_out, "the failing replica to be left out")
        assert {answer.score for answer in answers} == {0.25}
        # A single replica is called although it fails.
        alone = make([bad.target])
        for _ in range(30):
            with pytest.raises(ServerFaultError):
                alone.score("fraud.checkout", EVENT)


# -- hedging ---------------------------------------------------------------------------


def test_a_slow_score_is_sent_again_and_the_first_answer_is_returned(make, server):
    server.script("Score", Fault(until=threading.Event()))
    client = make(server.target, hedge=0.01)
    assert client.score("fraud.checkout", EVENT).score == 0.25
    first, second = server.requests("Score")
    assert first == second
    stats = client.stats()
    assert (stats.calls, stats.hedges, stats.retries) == (1, 1, 0)
    # Dense features take the same way.
    server.script("Score", Fault(until=threading.Event()))
    assert client.score("fraud.checkout", [12.5, 0, 1]).score == 0.25
    assert client.stats().hedges == 2


@pytest.mark.parametrize("method", ["SelectAction", "ReportOutcome"])
def test_selections_and_outcomes_are_not_hedged(make, server, method):
    never = threading.Event()
    server.script(method, Fault(until=never))
    client = make(server.target, hedge=0.001)
    with pytest.raises(DeadlineExceededError):
        if method == "SelectAction":
            client.select_action("action.authorise", {"amount": 1}, timeout=0.2)
        else:
            client.report_outcome("fraud.checkout", "d", "fraud", 1.0, timeout=0.2)
    assert len(server.requests(method)) == 1
    never.set()


def test_a_score_that_fails_at_once_is_not_hedged_and_is_retried(make, server):
    server.script("Score", Fault("UNAVAILABLE"), Fault("INTERNAL"))
    client = make(server.target, hedge=PATIENT / 2)
    with pytest.raises(ServerFaultError):
        client.score("fraud.checkout", EVENT)
    assert (client.stats().retries, client.stats().hedges) == (1, 0)


def test_the_answer_of_the_first_copy_is_returned_if_the_second_fails(make, server):
    late = threading.Event()
    server.script("Score", Fault(until=late), Fault("INTERNAL"))
    client = make(server.target, hedge=0.01)
    answer = []
    # Only when the second copy has failed, the first is answered.
    threading.Thread(target=lambda: wait_until(lambda: received(server) == 2) and late.set()).start()
    answer.append(client.score("fraud.checkout", EVENT))
    assert (answer[0].score, client.stats().hedges) == (0.25, 1)


def test_while_no_score_is_answered_the_hedges_end(make):
    with FakeServer(threads=64) as server:
        server.script("Score", *[Fault(until=threading.Event()) for _ in range(100)])
        client = make(server.target, hedge=0.001, fallback=FALLBACK)
        for _ in range(12):
            assert client.score("fraud.checkout", EVENT, timeout=0.05).served.fallback_source == "client"
        assert client.stats().hedges == 4, "half of the ten tokens are kept"


def test_the_delay_follows_the_p95(make, server):
    hedging = Hedging("p95", 1.0)
    assert hedging.delay == 0.5
    random = np.random.default_rng(1)
    for seconds in random.exponential(0.01, 20_000):
        hedging.answered(was_slower=seconds > hedging.delay)
    assert 0.02 < hedging.delay < 0.05, "the p95 is 0.03 s"


@pytest.mark.parametrize("hedge", [0, -1, math.nan, math.inf, "p99", True])
def test_an_invalid_delay_is_refused(make, server, hedge):
    with pytest.raises(InvalidRequestError, match="hedge"):
        make(server.target, hedge=hedge)


def received(server):
    return len(server.requests("Score"))


# -- fallback --------------------------------------------------------------------------

FALLBACK = {
    "fraud.checkout": ScoreFallback("review", 0.5),
    "action.authorise": ActionFallback("3ds=challenge|route=a", "3ds=challenge|route=b"),
}


def test_fallback_when_the_server_is_unreachable(make, closed_port):
    client = make(closed_port, fallback=FALLBACK)
    for features in (EVENT, [12.5, 0, 1]):
        result = client.score("fraud.checkout", features)
        assert (result.decision, result.score, result.decision_id) == ("review", 0.5, "")
        assert (result.served.fallback_source, result.served.fallback_reason) == ("client", "unavailable")
        assert math.isnan(result.margin)
    batch = client.score_batch("fraud.checkout", [[1, 2, 0]] * 3)
    assert (batch.decisions, batch.decision_id(0)) == (("review",) * 3, "")
    action = client.select_action("action.authorise", {"amount": 1})
    assert (action.action, action.propensity, action.logged) == ("3ds=challenge|route=a", 1.0, False)
    stats = client.stats()
    assert stats.fallbacks == {"unavailable": 4}
    assert stats.errors == {"UnavailableError": 4}


def test_without_a_fallback_the_error_is_raised(make, closed_port):
    client = make(closed_port, fallback={"other": ScoreFallback("review", 0.5)})
    with pytest.raises(UnavailableError) as caught:
        client.score("fraud.checkout", EVENT)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy in str(caught.value)


def test_fallback_when_the_server_is_late(make, server):
    never = threading.Event()
    server.script("SelectAction", Fault(until=never))
    client = make(server.target, fallback=FALLBACK)
    action = client.select_action("action.authorise", {"amount": 1}, timeout=0.05)
    assert action.served.fallback_reason == "deadline_exceeded"
    # The server may have logged another action for this request, so no outcome may be joined to it.
    assert action.decision_id == ""
    with pytest.raises(InvalidRequestError, match="own fallback answered"):
        client.report_outcome("action.authorise", action.decision_id, "authorised", 1)
    never.set()


@pytest.mark.parametrize(
    ("code", "reason"),
    [("RESOURCE_EXHAUSTED", "overloaded"), ("INTERNAL", "server_fault"), ("UNKNOWN", "server_fault")],
)
def test_fallback_when_the_server_returns_an_error(make, server, code, reason):
    server.script("Score", Fault(code))
    result = make(server.target, fallback=FALLBACK).score("fraud.checkout", EVENT)
    assert result.served.fallback_reason == reason


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION"])
def test_no_fallback_for_invalid_requests(make, server, code):
    server.script("Score", Fault(code))
    client = make(server.target, fallback=FALLBACK)
    with pytest.raises(ClientError) as caught:
        client.score("fraud.checkout", EVENT)
    assert caught.value.code == code
    assert client.stats().fallbacks == {}


def test_a_fallback_action_is_eligible_or_none(make, server):
    client = make(server.target, fallback=FALLBACK)

    def select(eligible):
        server.script("SelectAction", Fault("INTERNAL"))
        return client.select_action("action.authorise", {"amount": 1}, eligible=eligible)

    assert select(["3ds=challenge|route=b", "3ds=frictionless|route=a"]).action == "3ds=challenge|route=b"
    with pytest.raises(ServerFaultError) as caught:
        select(["3ds=frictionless|route=a"])
    assert "no action of the fallback is known to be eligible" in caught.value.__notes__
    # A mask cannot be used before the catalogue is known.
    with pytest.raises(ServerFaultError):
        select(b"\x08")
    client.describe("action.authorise")
    chosen = select(b"\x08")
    assert (chosen.action, chosen.action_index) == ("3ds=challenge|route=b", 3)
    assert chosen.factors == {"three_ds": "challenge", "route": "b"}


def test_a_function_as_fallback(make, server):
    requests = []

    def by_amount(request):
        requests.append(request)
        return ScoreFallback("approve" if request.features["amount"] < 50 else "review", 0.0)

    server.script("Score", Fault("INTERNAL"), Fault("INTERNAL"))
    client = make(server.target, fallback={"fraud.checkout": by_amount})
    assert client.score("fraud.checkout", {"amount": 10}, request_id="a").decision == "approve"
    assert client.score("fraud.checkout", {"amount": 90}).decision == "review"
    assert (requests[0].request_id, requests[0].reason, requests[0].eligible) == ("a", "server_fault", None)
    assert isinstance(requests[0].error, ServerFaultError)


@pytest.mark.parametrize(
    ("function", "note"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError"),
        (lambda _: "review", "returned a str"),
        (lambda _: ActionFallback("x"), "returned a ActionFallback"),
    ],
)
def test_a_failing_fallback_function_keeps_the_servers_error(make, server, function, note):
    server.script("Score", Fault("INTERNAL"))
    with pytest.raises(ServerFaultError) as caught:
        make(server.target, fallback={"fraud.checkout": function}).score("fraud.checkout", EVENT)
    assert note in caught.value.__notes__[0]


def test_a_fallback_of_the_wrong_kind_is_refused_on_the_first_call(make, server):
    with pytest.raises(InvalidRequestError, match="its fallback is a ActionFallback"):
        make(server.target, fallback={"fraud.checkout": ActionFallback("x")}).score("fraud.checkout", EVENT)
    with pytest.raises(InvalidRequestError, match="fallback is a dict"):
        make(server.target, fallback={"fraud.checkout": {"decision": "review"}})


# -- life cycle ------------------------------------------------------------------------


def test_wait_ready_waits_for_a_slow_start(make, tmp_path):
    path = tmp_path / "late.sock"
    client = make(f"unix://{path}")
    with pytest.raises(DeadlineExceededError, match=r"not ready within 0\.05 s"):
        client.wait_ready(timeout=0.05)
    with FakeServer(path) as server:
        server.serving = False
        with pytest.raises(DeadlineExceededError, match="the server says NOT_SERVING"):
            client.wait_ready(timeout=2.0)
        server.serving = True
        client.wait_ready(timeout=PATIENT)


def test_calls_succeed_after_a_restart_of_the_server(make, tmp_path):
    path = tmp_path / "s.sock"
    client = make(f"unix://{path}")
    with FakeServer(path):
        client.wait_ready(timeout=PATIENT)
        client.score("fraud.checkout", EVENT)
    with pytest.raises(UnavailableError):
        client.score("fraud.checkout", EVENT, timeout=0.5)
    with FakeServer(path):
        client.wait_ready(timeout=PATIENT)
        client.score("fraud.checkout", EVENT)


def test_calls_of_a_closed_client_are_refused(make, server):
    client = make(server.target)
    client.score("fraud.checkout", EVENT)
    client.close()
    with pytest.raises(ClientUseError, match="the client is closed"):
        client.score("fraud.checkout", EVENT)


def test_a_client_is_refused_in_a_forked_child(server, monkeypatch):
    with Client(server.target) as client:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ClientUseError, match="forked"):
            client.score("fraud.checkout", EVENT)
        monkeypatch.undo()


def test_an_asyncio_client_is_refused_in_another_loop(server):
    client = scorer.aio.Client(server.target, timeout=PATIENT)
    with asyncio.Runner() as first:
        first.run(client.score("fraud.checkout", EVENT))
        with asyncio.Runner() as second, pytest.raises(ClientUseError, match="another event loop"):
            second.run(client.score("fraud.checkout", EVENT))
        first.run(client.close())


def test_a_cancelled_task_gets_no_fallback(server):
    never = threading.Event()
    server.script("Score", Fault(until=never))

    async def cancelled():
        async with scorer.aio.Client(server.target, timeout=PATIENT, fallback=FALLBACK) as client:
            task = asyncio.create_task(client.score("fraud.checkout", EVENT))
            while not server.requests("Score"):
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return client.stats().fallbacks

    assert asyncio.run(cancelled()) == {}
    never.set()


def test_many_threads_share_one_client(server):
    with Client(server.target, timeout=PATIENT) as client, ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: client.score("fraud.checkout", [1, 2, 0]).request_id, range(400)))
    assert len(set(ids)) == 400
    assert sorted(ids) == sorted(r.request_id for r in server.requests("Score"))
    assert client.stats().calls == 400


def test_many_tasks_share_one_client(server):
    async def burst():
        async with scorer.aio.Client(server.target, timeout=PATIENT) as client:
            return await asyncio.gather(*(client.score("fraud.checkout", EVENT) for _ in range(200)))

    results = asyncio.run(burst())
    assert len({result.request_id for result in results}) == 200


def test_the_deadline_reaches_the_server(make, monkeypatch):
    """The client sends its deadline, so that the server can stop work when the caller no longer waits."""
    remaining = []
    answer = FakeServer._score

    def record(self, request, context):
        remaining.append(context.time_remaining())
        return answer(self, request, context)

    monkeypatch.setattr(FakeServer, "_score", record)
    with FakeServer() as server:
        make(server.target).score("fraud.checkout", EVENT, timeout=7.0)
    # The value on the wire is rounded up, and the server measures it in milliseconds.
    assert 0 < remaining[0] < 7.1
