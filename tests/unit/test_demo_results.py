"""Tests of the demo's figures against plain counting, and of its lines of output."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from examples.demo.models import Trained
from examples.demo.output import Output
from examples.demo.results import (
    BASELINE,
    GREEDY,
    LINEAR,
    RANKING,
    RULES,
    UNIFORM,
    answers_by_bundle,
    authorisation,
    disagreements,
    latencies,
    latency,
)
from examples.demo.traffic import AUTHORISE, FRAUD, Answers, Measured
from examples.simulators.payments import Payments, contexts, log_baseline
from examples.simulators.transactions import TransactionPlan, simulate_transactions


@pytest.fixture(scope="module")
def played():
    """Payments that two bundles answered with the true best action. The last 100 were not sent."""
    stream = simulate_transactions(TransactionPlan(customers=500, terminals=3_000, days=3), seed=2)
    n = len(stream)
    risk = np.full(n, 0.02)
    given = contexts(stream, np.zeros(n), seed=5)
    world = Payments()
    with_risk = contexts(stream, risk, seed=5)
    best = np.where(with_risk.eligible(), world.probability(with_risk), -1).argmax(axis=1)
    answers = Answers.empty(n)
    sent = slice(0, n - 100)
    answers.action[sent] = best[sent]
    answers.risk[sent] = risk[sent]
    answers.expected[sent] = 0.9
    answers.authorised[sent] = world.authorised(with_risk, best)[sent]
    answers.score[sent] = 0.25
    answers.action_bundle[sent] = np.arange(n)[sent] % 2
    answers.fraud_bundle[sent] = np.arange(n)[sent] % 2
    logged = log_baseline(world, with_risk, seed=1)
    return answers, given, with_risk, world, logged


def oracle_of(world: Payments, given):
    """Return an oracle that predicts the true probabilities."""

    class TrueOracle:
        def predict(self, rows):
            assert len(rows) <= len(given)
            return world.probability(given.take(slice(0, len(rows))))

    return TrueOracle()


def experience(logged):
    """Return the log as `examples.demo.models` passes it to learning."""
    n = len(logged)
    return Trained((), (), logged, np.arange(n, dtype=np.int64), None).experience(n)


def test_the_authorisation_rate_is_that_of_the_payments_sent_to_version_2(played):
    answers, given, with_risk, world, logged = played
    sent = answers.authorised >= 0
    first, second = (np.flatnonzero(sent & (answers.action_bundle == number)) for number in (0, 1))
    oracle = oracle_of(world, with_risk.take(second))
    rates = authorisation(answers, given, world, experience(logged), oracle, first, second)
    assert (rates.first.rows, rates.outcomes.rows) == (len(first), len(second))
    assert rates.outcomes.value == pytest.approx(answers.authorised[second].mean())
    # The policy of the fixture is optimal, so that the ceiling equals its value.
    mine = with_risk.take(second)
    assert rates.served.value == pytest.approx(world.best(mine).mean()) == pytest.approx(rates.best)
    for one in rates.references.values():
        assert one.difference.value == pytest.approx(rates.served.value - one.rate.value)
        assert one.difference.low <= one.difference.value <= one.difference.high
    gaps = {name: one.difference.value for name, one in rates.references.items()}
    assert gaps[GREEDY] == pytest.approx(0, abs=1e-9)
    assert gaps[UNIFORM] == pytest.approx(rates.served.value - 0.74, abs=0.03)
    assert gaps[UNIFORM] > gaps[RANKING] > gaps[LINEAR] > 0
    assert gaps[BASELINE] == pytest.approx(gaps[UNIFORM], abs=0.03)
    assert rates.own_part == rates.references[LINEAR].difference
    assert gaps[RULES] > 0
    # Payments are paired, so the interval of the difference is much narrower than those of both rates.
    linear = rates.references[LINEAR]
    assert linear.difference.high - linear.difference.low < linear.rate.high - linear.rate.low


def test_single_answers_are_compared_with_those_of_their_bundle(played):
    answers, *_ = played
    same = np.full(len(answers.score), 0.25)
    other = same.copy()
    other[[3, 5, 6]] = np.nextafter(0.25, 1)
    sent = int((answers.authorised >= 0).sum())
    assert disagreements(answers, ["a", "b"], {"a": same, "b": same}) == (sent, 0)
    # Bundle b answered rows 3 and 5, and bundle a answered row 6.
    assert disagreements(answers, ["a", "b"], {"a": same, "b": other}) == (sent, 2)
    assert disagreements(answers, ["a", "b"], {"a": other}) == (sent - sent // 2, 1)


def test_percentiles_are_correct():
    result = latency(list(range(1, 1001)))
    assert result == {
        "p50": 500.5,
        "p99": pytest.approx(990.01),
        "p99.9": pytest.approx(999.001),
        "calls": 1000,
    }


def measured() -> Measured:
    measured = Measured()
    for at in range(100):
        measured.latency_ms.setdefault("Score", []).append(1.0 + at / 100)
        measured.execution_us.setdefault("Score", []).append(at)
        measured.latency_ms.setdefault("ReportOutcome", []).append(0.5)
        digest = "sha256:a" if at < 60 else "sha256:b"
        measured.answers[FRAUD, digest] += 1
        measured.timeline.append((at / 10, FRAUD, digest))
    measured.answers[AUTHORISE, "sha256:c"] += 7
    return measured


def test_counts_of_several_threads_add_up():
    whole = Measured()
    whole.add(measured())
    whole.add(measured())
    assert len(whole.latency_ms["Score"]) == 200
    assert whole.answers[FRAUD, "sha256:a"] == 120
    assert len(whole.timeline) == 200
    result = latencies(whole)
    assert result["Score"]["evaluation_us"]["calls"] == 200
    assert "evaluation_us" not in result["ReportOutcome"]
    lines = answers_by_bundle(
        whole, {"sha256:a": "fraud v1", "sha256:b": "fraud v2", "sha256:c": "action v1"}
    )
    assert [(entry["bundle"], entry["answers"]) for entry in lines] == [
        ("action v1", 14),
        ("fraud v1", 120),
        ("fraud v2", 80),
    ]


def test_output_on_a_pipe_writes_whole_lines():
    out = io.StringIO()
    output = Output(Console(file=out, width=40))
    with output.step("First"):
        with output.busy("thinking"):
            pass
        with output.progress("payments", 400) as reach:
            for done in range(0, 401, 50):
                reach(done)
        output.table(("action", "share"), [["x" * 60, "[10 %]"]])
        output.command("scorer", "serve", "--config", "[a].toml")
    text = out.getvalue()
    lines = text.splitlines()
    assert lines[0].endswith("1. First")
    # Progress lines are not written to a pipe.
    assert len(lines) == 4
    assert lines[2].split() == ["x" * 60, "[10", "%]"]
    assert lines[3].strip() == "$ scorer serve --config [a].toml"
    assert "First" in output.seconds
