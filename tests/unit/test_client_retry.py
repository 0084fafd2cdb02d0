"""Tests of retry decisions, with a clock and random numbers that the test controls."""

from __future__ import annotations

import grpc
import pytest

from scorer.client import ClientError, InvalidRequestError, RetryPolicy, UnavailableError
from scorer.client.core import ClientSettings, Core
from scorer.client.flow import Failure, Send, Sleep
from scorer.client.retry import RetryBudget, parse_pushback
from scorer.v1 import scoring_pb2 as pb

UNAVAILABLE = Failure(grpc.StatusCode.UNAVAILABLE, "connection refused")
REPLY = pb.ScoreResponse(decision_id="d", score=0.5).SerializeToString()


class Bench:
    """Drives one call step by step. `script` gives the result and the duration of each attempt."""

    def __init__(self, *, timeout=0.25, retry=None, dice=0.5):
        self.now = 100.0
        self.dice = dice
        settings = ClientSettings(
            timeout=timeout, retry=retry or RetryPolicy(), fallback={}, max_message_bytes=1 << 20
        )
        self.core = Core(settings, clock=lambda: self.now, random=lambda: self.dice)

    def score(self, script, **kwargs):
        self.sent = []
        self.sleeps = []
        kwargs = {"request_id": None, "entity": "", "timeout": None} | kwargs
        flow = self.core.score("fraud.checkout", {"amount": 1.0}, **kwargs)
        outcome = None
        steps = iter(script)
        try:
            while True:
                step = flow.send(outcome)
                if isinstance(step, Sleep):
                    self.sleeps.append(step.seconds)
                    self.now += step.seconds
                    outcome = None
                else:
                    assert isinstance(step, Send)
                    self.sent.append(step)
                    outcome, took = next(steps)
                    self.now += took
        except StopIteration as done:
            assert next(steps, None) is None, "there were fewer attempts than in the script"
            return done.value


def ids(bench):
    return [pb.ScoreRequest.FromString(step.payload).request_id for step in bench.sent]


def test_a_retry_repeats_the_same_bytes_within_one_deadline():
    bench = Bench()
    result = bench.score([(UNAVAILABLE, 0.01), (UNAVAILABLE, 0.02), (REPLY, 0.0)])
    assert result.score == 0.5
    assert len({step.payload for step in bench.sent}) == 1
    assert len(set(ids(bench))) == 1
    assert len(ids(bench)[0]) == 32
    # The waits are half of 10 ms and half of 20 ms. The rest of the 250 ms shrinks accordingly.
    assert bench.sleeps == pytest.approx([0.005, 0.010])
    assert [step.timeout for step in bench.sent] == pytest.approx([0.25, 0.235, 0.205])


def test_two_calls_have_different_ids():
    bench = Bench()
    bench.score([(REPLY, 0)])
    first = ids(bench)
    bench.score([(REPLY, 0)])
    assert first != ids(bench)


def test_the_callers_id_is_kept():
    bench = Bench()
    assert bench.score([(UNAVAILABLE, 0), (REPLY, 0)], request_id="order-7").request_id == "order-7"
    assert ids(bench) == ["order-7", "order-7"]


def test_attempts_are_bounded():
    bench = Bench()
    with pytest.raises(UnavailableError) as caught:
        bench.score([(UNAVAILABLE, 0)] * 3)
    assert caught.value.attempts == 3
    assert bench.core.counters.snapshot().retries == 2


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.name not in {"OK", "UNAVAILABLE"}])
def test_no_other_status_is_retried(code):
    bench = Bench()
    with pytest.raises(ClientError) as caught:
        bench.score([(Failure(code, "no"), 0)])
    assert caught.value.code == code.name
    assert caught.value.attempts == 1


def test_no_retry_when_the_wait_would_end_after_the_deadline():
    bench = Bench(timeout=0.05, dice=0.99)
    with pytest.raises(UnavailableError):
        bench.score([(UNAVAILABLE, 0.045)])
    assert bench.sleeps == []


def test_waits_are_drawn_between_zero_and_a_doubling_bounded_limit():
    policy = RetryPolicy(attempts=5, base_s=0.04, cap_s=0.1, max_tokens=100)
    bench = Bench(retry=policy, timeout=10, dice=1.0)
    with pytest.raises(UnavailableError):
        bench.score([(UNAVAILABLE, 0)] * 5)
    assert bench.sleeps == pytest.approx([0.04, 0.08, 0.1, 0.1])
    still = Bench(retry=policy, timeout=10, dice=0.0)
    with pytest.raises(UnavailableError):
        still.score([(UNAVAILABLE, 0)] * 5)
    assert still.sleeps == [0, 0, 0, 0]


def test_the_servers_pushback_replaces_the_backoff():
    bench = Bench()
    bench.score([(Failure(grpc.StatusCode.UNAVAILABLE, "", pushback="30"), 0), (REPLY, 0)])
    assert bench.sleeps == [0.03]


@pytest.mark.parametrize("pushback", ["-1", "soon", "", "1.5", "99999999999", " 5", "٣"])
def test_a_pushback_that_is_not_a_number_prevents_retries(pushback):
    assert parse_pushback(pushback) is None
    bench = Bench()
    with pytest.raises(UnavailableError):
        bench.score([(Failure(grpc.StatusCode.UNAVAILABLE, "", pushback=pushback), 0)])


def test_a_pushback_beyond_the_deadline_ends_the_call_at_once():
    bench = Bench(timeout=0.25)
    with pytest.raises(UnavailableError):
        bench.score([(Failure(grpc.StatusCode.UNAVAILABLE, "", pushback="251"), 0)])


@pytest.mark.fault_case(15)
def test_an_outage_empties_the_retry_budget_and_successes_refill_it():
    bench = Bench(retry=RetryPolicy(attempts=2, max_tokens=4, token_ratio=0.5))
    # 4 tokens: the first failure leaves 3 (> 2: retry), whose failure leaves 2 (no retry).
    with pytest.raises(UnavailableError):
        bench.score([(UNAVAILABLE, 0)] * 2)
    with pytest.raises(UnavailableError):
        bench.score([(UNAVAILABLE, 0)])
    # 1 token is left; four successes make it 3, one failure 2: not enough. Two more: 3, then 2.
    for _ in range(4):
        bench.score([(REPLY, 0)])
    with pytest.raises(UnavailableError):
        bench.score([(UNAVAILABLE, 0)])
    for _ in range(3):
        bench.score([(REPLY, 0)])
    bench.score([(UNAVAILABLE, 0), (REPLY, 0)])


def test_errors_unrelated_to_capacity_do_not_change_the_retry_budget():
    budget_before = Bench()
    for _ in range(50):
        with pytest.raises(InvalidRequestError):
            budget_before.score([(Failure(grpc.StatusCode.INVALID_ARGUMENT, "x"), 0)])
    budget_before.score([(UNAVAILABLE, 0), (REPLY, 0)])


def test_the_retry_budget_never_exceeds_its_size():
    budget = RetryBudget(RetryPolicy(max_tokens=3, token_ratio=1))
    for _ in range(10):
        budget.succeeded()
    assert budget.tokens == 3
    assert [budget.failed() for _ in range(5)] == [True, False, False, False, False]
    assert budget.tokens == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attempts": 0}, "attempts must be 1 to 5"),
        ({"attempts": 6}, "attempts must be 1 to 5"),
        ({"base_s": 0}, "base_s"),
        ({"cap_s": float("inf")}, "cap_s"),
        ({"max_tokens": float("nan")}, "max_tokens"),
        ({"token_ratio": -1}, "token_ratio"),
    ],
)
def test_an_invalid_retry_policy_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        RetryPolicy(**settings)
