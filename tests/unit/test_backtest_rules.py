"""Tests of a backtest of bundles with rules: which decisions change, by which rule, and its gates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from bundles import CREATED, rows, tiny_action_bundle
from known_payments import (
    BEGIN,
    CHECKPOINT,
    COUNT,
    DATA,
    FRAUD,
    backtest_job,
    build,
    decisions,
    known_log,
    outcome,
)
from logs import write_segment

from scorer.bundle import Bundle, revise
from scorer.bundle.rules import BundleRules
from scorer.learn.experience import Experience
from scorer.learn.ruling import eligible_by_rules
from scorer.release.backtest import job, judge
from scorer.release.backtest.job import Job, Result
from scorer.release.model import GateSpec, Outcome
from scorer.stats.blocks import DAY_US
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

NOW = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "night"
when = "hour < 3.0"
decision = "review"

[[rules]]
id = "low"
when = "score < 0.0001"
floor = 0.0
"""
NEXT = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount > 150.0"
decision = "decline"

[[rules]]
id = "later"
when = "hour >= 3.0"
decision = "decline"
from = 2100-01-01

[[rules]]
id = "half"
when = "count_24h >= 2.0 && amount <= 150.0"
decision = "review"
rollout = 50.0
"""
LIMIT = """
name = "exemptions"

[[rules]]
id = "tra_limit"
when = "amount > {limit}"
remove = {{ exemption = ["tra"] }}
source = "Delegated Regulation (EU) 2018/389, article 18"
"""
NOTHING = """
name = "exemptions"

[[rules]]
id = "far"
when = "distance > 30.0"
remove = { exemption = ["none", "tra"] }
source = "agreement"

[[rules]]
id = "never_low"
when = "amount > 100.0"
remove = { exemption = ["low"] }
source = "agreement"
"""
GATES = (
    GateSpec("backtest_decisions_changed", "<= 5% upper95"),
    GateSpec("backtest_approvals_lost", "<= 2% upper95"),
    GateSpec("backtest_nothing_left", "== 0"),
)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("bundles")
    plain = build(at / "plain")
    for name, text in (("live", NOW), ("next", NEXT)):
        revise(plain, at / name, rules=BundleRules(text), created_at=CREATED)
    return {path.name: path for path in at.iterdir()}


@pytest.fixture(scope="module")
def log(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known_log(tmp_path_factory.mktemp("logs") / "log", bundles["live"])


def run(wanted: Job) -> Result:
    return judge.run(wanted, lambda _: None)


def decided(path: Path) -> tuple[list[str], list[set[str]]]:
    """The label and the fired rules of each payment, by the interface that evaluates rules on rows."""
    bundle = Bundle.load(path)
    scores = bundle.score(DATA)
    if bundle.rules is None:
        return [bundle.labels[band] for band in scores.bands], [set() for _ in scores.bands]
    found = bundle.rules.evaluate(
        DATA,
        scores=scores.scores,
        seconds=[(BEGIN + number * (28 * DAY_US // COUNT)) // 1_000_000 for number in range(COUNT)],
        ids=[f"payment-{number}" for number in range(COUNT)],
    )
    names = [{bundle.rules.rules[at].id for at in fired} for fired in found.applied]
    return [bundle.labels[int(band)] for band in found.bands], names


def test_the_report_has_the_changed_decisions_by_rule(log: Path, bundles: dict[str, Path]) -> None:
    result = run(backtest_job(log, bundles["live"], bundles["next"], gates=GATES))
    report = result.rules
    assert report is not None
    (before, was), (after, fired) = decided(bundles["live"]), decided(bundles["next"])
    pairs = list(zip(before, after, strict=True))
    changed = [one != other for one, other in pairs]
    assert (report["decisions"], report["changed"]) == (COUNT, sum(changed))
    assert 0.05 * COUNT < sum(changed) < COUNT
    for change in report["changes"]:
        own = [at for at, pair in enumerate(pairs) if pair == (change["before"], change["after"])]
        assert change["count"] == len(own) > 0
        assert change["amount"] == pytest.approx(float(DATA[own, 0].sum()), rel=1e-6)
        assert sum(change["bands"].values()) == len(own)
        assert (change["known"], change["outcomes"]) == (
            {"fraud": len(own)},
            {"fraud": int(FRAUD[own].sum())},
        )
        examples = [int(one.removeprefix("payment-")) for one in change["examples"]]
        assert len(examples) == min(5, len(own)) and set(examples) <= set(own)
    for rule in ("large", "later", "half"):
        assert report["hits"].get(rule, 0) == sum(rule in one for one in fired)
        assert report["changed_by"].get(rule, 0) == sum(
            change and rule in one for change, one in zip(changed, fired, strict=True)
        )
    assert (report["hits"].get("later", 0), report["never"]) == (0, ["later"])
    assert 0.3 < report["hits"]["half"] / max(sum(DATA[:, 2] >= 2), 1) < 0.7
    for rule in ("night", "low"):
        assert report["hits_before"].get(rule, 0) == sum(rule in one for one in was)
    measured = {gate.metric: gate for gate in result.gates}
    assert measured["backtest_decisions_changed"].value == pytest.approx(sum(changed) / COUNT)
    lost = sum(pair[0] == "approve" != pair[1] for pair in pairs)
    assert measured["backtest_approvals_lost"].value == pytest.approx(lost / before.count("approve"))
    assert "backtest_nothing_left" not in measured
    assert result.outcome is Outcome.FAIL
    again = job.from_document(job.as_document(result))
    assert again.rules == report


def test_equal_rules_change_nothing_and_bundles_without_rules_have_no_report(
    log: Path, bundles: dict[str, Path]
) -> None:
    same = run(backtest_job(log, bundles["live"], bundles["live"], gates=GATES))
    assert same.outcome is Outcome.PASS, same.words
    assert same.rules is not None and same.rules["changed"] == 0
    plain = run(backtest_job(log, bundles["plain"], bundles["plain"], gates=GATES))
    assert plain.outcome is Outcome.PASS and plain.rules is None
    # Rules that are removed are named by the decisions that they changed.
    removed = run(backtest_job(log, bundles["live"], bundles["plain"], gates=GATES))
    assert removed.rules is not None and removed.rules["rules"] == []
    assert removed.rules["changed_by"]["night"] == removed.rules["changed"] > 0


def test_gates_of_rules_need_no_outcomes(bundles: dict[str, Path], tmp_path: Path) -> None:
    records = decisions(bundles["live"])[:2_000]
    write_segment(tmp_path / "log", 1, 1, records)
    wanted = backtest_job(tmp_path / "log", bundles["live"], bundles["next"])
    result = run(wanted)
    assert "30 of each class are needed" in result.words and result.outcome is Outcome.INCONCLUSIVE
    assert result.rules is not None and result.rules["decisions"] == 2_000
    assert all(change["known"] == {} for change in result.rules["changes"])
    assert run(replace(wanted, gates=GATES)).outcome is Outcome.FAIL


# --- actions ---


def selections(path: Path, directory: Path, data: np.ndarray) -> list[int]:
    """Write the log of a server with an action bundle, and return the positions of the actions."""
    bundle = Bundle.load(path)
    random = np.random.default_rng(2)
    every = np.ones((len(data), len(bundle.actions)), bool)
    ids = [f"payment-{number}" for number in range(len(data))]
    eligible = bundle.restrict(data, every, seconds=np.zeros(len(data)), ids=ids)
    pmf, reward = bundle.evaluate(data, eligible=eligible)
    drawn = (random.random((len(data), 1)) > np.cumsum(pmf, axis=1)).sum(axis=1).clip(0, pmf.shape[1] - 1)
    at = np.arange(len(data))
    drawn = np.where(eligible[at, drawn], drawn, pmf.argmax(axis=1))
    paid = random.random(len(data)) < reward[at, drawn]
    records = []
    for number in at.tolist():
        record = DecisionRecord(
            decision_id=ids[number],
            checkpoint=CHECKPOINT,
            schema_fingerprint=bundle.schema_fingerprint,
            decided_at_us=BEGIN + number * DAY_US // 200,
            features=data[number].tolist(),
            pmf=pmf[number].tolist(),
            action_index=int(drawn[number]),
            action=bundle.actions[drawn[number]],
            propensity=float(pmf[number, drawn[number]]),
        )
        if bundle.rules is not None:
            record.rules.SetInParent()
            if not eligible[number].all():
                record.eligible_mask = np.packbits(eligible[number], bitorder="little").tobytes()
        records.append(LogRecord(decision=record).SerializeToString())
    records += [outcome(number, float(paid[number])) for number in at.tolist()]
    write_segment(directory, 1, 1, records)
    return [int(one) for one in drawn]


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("policies")
    texts = {"live": LIMIT.format(limit="100.0"), "wider": LIMIT.format(limit="50.0"), "nothing": NOTHING}
    for name, text in texts.items():
        tiny_action_bundle(at / name, rules=BundleRules(text))
    return {path.name: path for path in at.iterdir()}


def test_the_actions_of_a_candidate_are_those_that_its_rules_allow(
    policies: dict[str, Path], tmp_path: Path
) -> None:
    data = rows(3_000, seed=3)
    drawn = selections(policies["live"], tmp_path / "log", data)
    result = run(backtest_job(tmp_path / "log", policies["live"], policies["wider"]))
    report = result.rules
    assert report is not None
    between = (data[:, 0] > 50) & (data[:, 0] <= 100)
    tra = np.array(["tra" in action for action in Bundle.load(policies["live"]).actions])
    lost = between & tra[drawn]
    changes = {change["after"]: change["count"] for change in report["changes"]}
    assert changes["not allowed"] == lost.sum() > 0
    assert changes["fewer choices"] == (between & ~tra[drawn]).sum() > 0
    assert changes["selected"] == (~between).sum()
    assert report["changed_by"]["tra_limit"] == between.sum()
    gates = {gate.metric: gate for gate in result.gates}
    assert gates["backtest_nothing_left"].value == 0 and "backtest_approvals_lost" not in gates
    # What the rules no longer allow has no weight.
    bundle = Bundle.load(policies["wider"])
    allowed = bundle.restrict(
        data, np.ones((len(data), len(tra)), bool), seconds=np.zeros(len(data)), ids=[""] * len(data)
    )
    assert not allowed[between][:, tra].any()
    weight = bundle.evaluate(data, eligible=allowed)[0][np.arange(len(data)), drawn]
    assert (weight[lost] == 0).all() and weight[~lost].all()
    assert result.metrics["effective_rows"]["candidate"] < result.metrics["effective_rows"]["live"]
    same = run(backtest_job(tmp_path / "log", policies["live"], policies["live"]))
    assert same.rules is not None and same.rules["changed"] == 0
    assert same.metrics["reward"]["difference"] == 0.0


def test_decisions_without_an_action_are_a_gate(policies: dict[str, Path], tmp_path: Path) -> None:
    data = rows(3_000, seed=4)
    selections(policies["live"], tmp_path / "log", data)
    result = run(backtest_job(tmp_path / "log", policies["live"], policies["nothing"], gates=GATES))
    far = (data[:, 3] > 30.0) & (data[:, 0] > 100.0)
    gate = next(gate for gate in result.gates if gate.metric == "backtest_nothing_left")
    assert gate.value == pytest.approx(far.mean()) and far.any()
    assert gate.outcome is Outcome.FAIL
    # A rule that allows more than the recorded rules is seen by the request's own eligible actions.
    assert result.rules is not None
    below = {change["after"] for change in result.rules["changes"]}
    assert {"nothing left", "other choices", "not allowed"} <= below


def test_learning_sees_the_rules_of_a_bundle(policies: dict[str, Path]) -> None:
    data = rows(400, seed=6)
    bundle = Bundle.load(policies["nothing"])
    eligible = np.ones((len(data), len(bundle.actions)), bool)
    window = SimpleNamespace(
        context=data,
        eligible=eligible,
        time_ms=np.zeros(len(data), np.int64),
        decision_id=np.array([f"d-{at}" for at in range(len(data))]),
    )
    found = eligible_by_rules(bundle, cast("Experience", window))
    far, large = data[:, 3] > 30.0, data[:, 0] > 100.0
    low = np.array(["low" in action for action in bundle.actions])
    assert (far & large).any() and found[far & large].all(), "the eligible actions stand for the fallback"
    assert not found[large & ~far][:, low].any() and found[large & ~far][:, ~low].all()
    assert found[~large & ~far].all()
    assert not found[far & ~large][:, ~low].any() and found[far & ~large][:, low].all()
