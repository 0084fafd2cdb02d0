"""The demo's figures against plain counting, its terminal words and its page."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from examples.demo import figures
from examples.demo.narrate import Narrator
from examples.demo.results import (
    action_use,
    answers_by_bundle,
    authorisation,
    disagreements,
    latencies,
    latency,
)
from examples.demo.traffic import AUTHORISE, FRAUD, Answers, Measured
from examples.simulators.actions import catalogue
from examples.simulators.payments import Payments, contexts, log_baseline
from examples.simulators.transactions import TransactionPlan, simulate_transactions


@pytest.fixture(scope="module")
def played():
    """Payments answered by a policy that knows the truth, by two bundles; the last 100 were never sent."""
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


def test_authorisation_counts_what_was_sent_with_the_served_risk(played):
    answers, given, with_risk, world, logged = played
    found = authorisation(answers, given, world, logged, ["sha256:a", "sha256:b"], seed=0)
    sent = answers.authorised >= 0
    assert found.served.rows == sent.sum() == len(sent) - 100
    assert found.served.value == pytest.approx(answers.authorised[sent].mean())
    assert found.ceiling == pytest.approx(world.best(with_risk.take(np.flatnonzero(sent))).mean())
    # Knowing the truth, nobody does better: served is within luck of the ceiling.
    assert found.served.value == pytest.approx(found.ceiling, abs=0.03)
    assert found.uplift.value == pytest.approx(found.served.value - found.baseline.value)
    assert found.uplift.low > 0
    # Pairing on the same luck makes the interval of the difference narrower than the rates' own.
    assert found.uplift.high - found.uplift.low < 1.3 * (found.served.high - found.served.low)
    assert found.logged.value == pytest.approx(logged.authorised.mean())
    counted = [rate.rows for rate in found.by_bundle.values()]
    assert sum(counted) == sent.sum()


def test_actions_are_counted(played):
    answers, *_, logged = played
    used, distinct = action_use(answers, logged)
    chosen = answers.action[answers.action >= 0]
    assert distinct == len(set(chosen.tolist()))
    assert len(used) == 10
    first = np.bincount(chosen).argmax()
    assert used[0].action == catalogue()[first].id
    assert used[0].share == pytest.approx((chosen == first).mean())
    assert used[0].authorised == pytest.approx(answers.authorised[answers.action == first].mean())
    assert used[0].baseline_share == pytest.approx((logged.action == first).mean())


def test_single_answers_are_compared_with_their_own_bundle(played):
    answers, *_ = played
    same = np.full(len(answers.score), 0.25)
    other = same.copy()
    other[[3, 5, 6]] = np.nextafter(0.25, 1)
    sent = int((answers.authorised >= 0).sum())
    assert disagreements(answers, ["a", "b"], {"a": same, "b": same}) == (sent, 0)
    # Rows 3 and 5 were answered by b, row 6 by a.
    assert disagreements(answers, ["a", "b"], {"a": same, "b": other}) == (sent, 2)
    assert disagreements(answers, ["a", "b"], {"a": other}) == (sent - sent // 2, 1)


def test_percentiles():
    found = latency(list(range(1, 1001)))
    assert found == {
        "p50": 500.5,
        "p99": pytest.approx(990.01),
        "p99.9": pytest.approx(999.001),
        "calls": 1000,
    }


def measured() -> Measured:
    made = Measured()
    for at in range(100):
        made.latency_ms.setdefault("Score", []).append(1.0 + at / 100)
        made.execution_us.setdefault("Score", []).append(at)
        made.latency_ms.setdefault("ReportOutcome", []).append(0.5)
        digest = "sha256:a" if at < 60 else "sha256:b"
        made.answers[FRAUD, digest] += 1
        made.timeline.append((at / 10, FRAUD, digest))
    made.answers[AUTHORISE, "sha256:c"] += 7
    return made


def test_counts_of_several_threads_add_up():
    whole = Measured()
    whole.add(measured())
    whole.add(measured())
    assert len(whole.latency_ms["Score"]) == 200
    assert whole.answers[FRAUD, "sha256:a"] == 120
    assert len(whole.timeline) == 200
    found = latencies(whole)
    assert found["Score"]["evaluation_us"]["calls"] == 200
    assert "evaluation_us" not in found["ReportOutcome"]
    lines = answers_by_bundle(
        whole, {"sha256:a": "fraud v1", "sha256:b": "fraud v2", "sha256:c": "action v1"}
    )
    assert [(entry["bundle"], entry["answers"]) for entry in lines] == [
        ("action v1", 14),
        ("fraud v1", 120),
        ("fraud v2", 80),
    ]


def test_plots_are_svg_that_stands_alone():
    rng = np.random.default_rng(0)
    scores, fraud = rng.random(500), (rng.random(500) < 0.1).astype(int)
    made = measured()
    drawn = [
        figures.score_histogram(scores, fraud, [(0.0, "approve"), (0.6, "review"), (0.9, "decline")]),
        figures.roc_and_precision({"v1": (scores, fraud), "v2": (1 - scores, fraud)}),
        figures.latencies(made.latency_ms),
        figures.action_shares({catalogue()[0].id: 0.5}, {}),
        figures.rates([("one", 0.5, 0.4, 0.6), ("best", 0.9, 0.9, 0.9)]),
        figures.swap_timeline(made.timeline, {"sha256:a": "fraud v1", "sha256:b": "fraud v2"}, 5.0),
    ]
    for text in drawn:
        assert text.startswith("<svg")
        assert text.rstrip().endswith("</svg>")
        assert "<image" not in text
    assert "fraud v2" in drawn[-1]


def test_narrator_on_a_pipe_writes_whole_lines():
    out = io.StringIO()
    narrator = Narrator(Console(file=out, width=40))
    with narrator.step("First"):
        with narrator.busy("thinking"):
            pass
        with narrator.progress("payments", 400) as bar:
            for done in range(0, 401, 50):
                bar.reach(done)
        narrator.table(("action", "share"), [["x" * 60, "10 %"]])
    said = out.getvalue()
    assert "1. First" in said
    assert "thinking (0.0 s)" in said
    assert said.count("payments: ") == 4
    assert "payments: 400 of 400" in said
    assert "x" * 60 in said
    assert "First" in narrator.seconds
