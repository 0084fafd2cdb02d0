"""Tests of the measurement of single rules: its structure, its requests, the command and the platform.

No test compares times, which depend on the machine: `rust/rules/tests/cost.rs` does with clocks of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import tiny_action_bundle, tiny_score_bundle
from logs import write_segment
from platforms import World
from typer.testing import CliRunner

from scorer.bundle import Bundle
from scorer.bundle.rule_costs import RuleCosts, RuleRows, golden_requests, measure_rules
from scorer.bundle.rules import BundleRules
from scorer.commands.rules import app
from scorer.errors import BundleError, LogError
from scorer.log.rule_requests import recorded_requests
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.requests import CostRules
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

RULES = """name = "checkout"
decisions = ["decline", "review", "approve"]
[[values]]
name = "double"
is = "amount * 2.0"
[[rules]]
id = "large"
when = "double > 400.0 && hour < 23.0"
decision = "decline"
[[tables]]
id = "limits"
inputs = ["amount", "hour"]
outputs = ["decision"]
rows = [["> 5000.0", "-", "decline"], ["[500..5000]", "> 3.0", "review"]]
"""
NAMES = ["double", "large", "limits.row1", "limits.row2"]
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "ruled"
    tiny_score_bundle(path, rules=BundleRules(RULES))
    return path


def decision(bundle: Bundle, number: int, **fields: Any) -> LogRecord:
    record = DecisionRecord(
        decision_id=f"payment-{number}",
        checkpoint="fraud.checkout",
        schema_fingerprint=bundle.schema_fingerprint,
        features=[float(number), 3.0, 1.0, 1.0],
        decided_at_us=int(NOON.timestamp() * 1e6) + number * 60_000_000,
        score=number / 100,
        decision="review",
    )
    for name, value in fields.items():
        setattr(record, name, value)
    return LogRecord(decision=record)


def check(found: RuleCosts) -> None:
    assert [one.id for one in found.parts] == NAMES
    assert [one.kind for one in found.parts] == ["value", "rule", "rule", "rule"]
    assert all(one.instructions > 0 and one.evaluations > 0 for one in found.parts)
    assert all(0 <= one.median_us <= one.p99_us for one in found.parts)
    shares = [one.share for one in found.parts]
    assert sum(shares) == pytest.approx(1.0) or sum(shares) == 0.0
    assert sorted(shares, reverse=True) == [one.share for one in found.most_expensive]
    # The longest condition has the most instructions.
    assert max(found.parts, key=lambda one: one.instructions).id in ("large", "limits.row2")


def test_each_value_and_rule_is_measured_on_the_golden_cases(ruled: Path) -> None:
    bundle = Bundle.load(ruled)
    assert bundle.rules is not None
    requests = golden_requests(ruled, bundle)
    assert requests.rows.shape == (256, bundle.num_features) and len(set(requests.ids)) == 256
    assert requests.scores.tolist() == bundle.score(requests.rows).scores.tolist()
    found = measure_rules(bundle.rules, requests, batches=3)
    check(found)
    assert (found.batches, found.requests, found.source) == (3, 256, "256 golden cases")


def test_a_time_limit_leaves_one_batch_of_each_rule(ruled: Path) -> None:
    bundle = Bundle.load(ruled)
    assert bundle.rules is not None
    found = measure_rules(bundle.rules, golden_requests(ruled, bundle), batches=10_000, seconds=0.0)
    assert found.batches == 1
    check(found)


def test_wrong_numbers_are_refused(ruled: Path) -> None:
    bundle = Bundle.load(ruled)
    assert bundle.rules is not None
    requests = golden_requests(ruled, bundle)
    with pytest.raises(BundleError, match="batches: 0 is out of range; choose between 1 and 10,000"):
        measure_rules(bundle.rules, requests, batches=0)
    with pytest.raises(BundleError, match="seconds: 601 is no time limit; choose between 0 and 600"):
        measure_rules(bundle.rules, requests, seconds=601)
    none = RuleRows(requests.rows[:0], requests.scores[:0], requests.seconds[:0], [], "")
    with pytest.raises(BundleError, match="requests: there are none"):
        measure_rules(bundle.rules, none)
    short = RuleRows(requests.rows, requests.scores[:1], requests.seconds, requests.ids, "")
    with pytest.raises(BundleError, match="give one of each per row"):
        measure_rules(bundle.rules, short)


def test_recorded_decisions_are_those_of_a_backtest(ruled: Path, tmp_path: Path) -> None:
    bundle = Bundle.load(ruled)
    records = [
        decision(bundle, 1),
        decision(bundle, 2, schema_fingerprint=7),
        decision(bundle, 3, fallback_source="static"),
        decision(bundle, 4, action="route=a"),
        decision(bundle, 5, fallback_source="previous"),
        decision(bundle, 6),
        decision(bundle, 7),
    ]
    write_segment(tmp_path, 1, 1, [record.SerializeToString() for record in records])
    found = recorded_requests([tmp_path], bundle, most=3)
    assert list(found.ids) == ["payment-1", "payment-5", "payment-6"]
    assert found.rows.dtype == np.float32 and found.rows[:, 0].tolist() == [1.0, 5.0, 6.0]
    assert found.scores.tolist() == [0.01, 0.05, 0.06]
    assert found.seconds.tolist() == [int(NOON.timestamp()) + 60 * n for n in (1, 5, 6)]
    since, until = (datetime.fromtimestamp(NOON.timestamp() + 60 * n, UTC) for n in (5, 7))
    found = recorded_requests([tmp_path], bundle, most=10, since=since, until=until)
    assert list(found.ids) == ["payment-5", "payment-6"]
    with pytest.raises(LogError, match="no decision of the period"):
        recorded_requests([tmp_path], bundle, most=10, since=datetime(2027, 1, 1, tzinfo=UTC))
    with pytest.raises(LogError, match="rows: 0 is out of range"):
        recorded_requests([tmp_path], bundle, most=0)


def test_the_command_measures_a_bundle_and_a_file(ruled: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["cost", *map(str, arguments), "--batches", "2"])

    shown = run(ruled, "--top", 2)
    assert shown.exit_code == 0, shown.output
    assert "checkout: " in shown.output and "256 golden cases in 2 batches" in shown.output
    assert sum(any(name in line for name in NAMES) for line in shown.output.splitlines()) == 2

    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    bundle = Bundle.load(ruled)
    log = tmp_path / "log"
    log.mkdir()
    write_segment(log, 1, 1, [decision(bundle, number).SerializeToString() for number in range(5)])
    shown = run(file, "--bundle", ruled, "--log", log, "--json")
    found = json.loads(shown.stdout)
    assert (found["name"], found["source"], found["requests"]) == ("checkout", "5 recorded decisions", 5)
    assert [one["id"] for one in found["parts"]] == NAMES

    for arguments, message in (
        ([file], "give the bundle that they are compiled for"),
        ([ruled, "--bundle", ruled], "leave out --bundle and --list"),
    ):
        refused = run(*arguments)
        assert refused.exit_code != 0 and message in str(refused.exception)


def test_the_rules_of_an_action_bundle_are_measured_without_scores(tmp_path: Path) -> None:
    text = """name = "exemptions"
[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "agreement"
"""
    tiny_action_bundle(tmp_path / "action", rules=BundleRules(text))
    bundle = Bundle.load(tmp_path / "action")
    assert bundle.rules is not None
    requests = golden_requests(tmp_path / "action", bundle)
    assert np.isnan(requests.scores).all()
    found = measure_rules(bundle.rules, requests, batches=1)
    assert [one.id for one in found.parts] == ["tra_limit"]


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path], ruled: Path) -> Iterator[World]:
    world = World(tmp_path, {**built_bundles, "score-2": ruled})
    yield world
    world.close()


def test_the_platform_measures_the_rules_of_a_bundle_and_edited_ones(world: World) -> None:
    authoring, viewer = world.service.authoring, world.actor("viewer")
    check(authoring.cost(viewer, world.candidate, CostRules()))
    text = RULES.replace('"large"', '"larger"')
    found = authoring.cost(viewer, world.candidate, CostRules(text=text))
    assert [one.id for one in found.parts][:2] == ["double", "larger"]
    with pytest.raises(InvalidError, match="has none; give the text of rules"):
        authoring.cost(viewer, world.live, CostRules())
    with pytest.raises(InvalidError, match="unknown name"):
        authoring.cost(viewer, world.candidate, CostRules(text=RULES.replace("double >", "dobule >")))
    with pytest.raises(NotFoundError):
        authoring.cost(viewer, world.candidate, CostRules(decisions=["payment-9"]))
    with pytest.raises(NotFoundError):
        authoring.cost(world.actor("outsider"), world.candidate, CostRules())
