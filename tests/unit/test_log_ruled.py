"""Tests that recorded decisions are compared with the rules of their bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bundles import ACTIONS, tiny_action_bundle, tiny_score_bundle

from scorer.bundle import Bundle
from scorer.bundle.rules import BundleRules
from scorer.log.ruled import check_decisions, check_eligible
from scorer.log.verification import _check_scores
from scorer.v1.log_pb2 import DecisionRecord
from scorer.v1.scoring_pb2 import AppliedRules, FiredRule

CHECKOUT = """
name = "checkout"
decisions = ["decline", "review", "approve"]
[[rules]]
id = "large"
when = "amount > 100.0"
decision = "decline"
until = 2026-11-20T12:00:00Z
"""

EXEMPTIONS = """
name = "exemptions"
[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "agreement"
"""

NOON_US = 1_795_176_000_000_000
WITHOUT_TRA = bytes([0b101101])


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    directory = tmp_path_factory.mktemp("ruled")
    tiny_score_bundle(directory / "score", rules=BundleRules(CHECKOUT))
    tiny_action_bundle(directory / "action", rules=BundleRules(EXEMPTIONS))
    return {path.name: Bundle.load(path) for path in directory.iterdir()}


def test_the_decision_of_a_rule_is_computed_again(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["score"]
    row = np.asarray([[150, 12, 1, 1]], np.float32)
    scored = bundle.score(row)
    label = bundle.labels[int(scored.bands[0])]
    assert label != "decline"

    def wrong(decision: str, fired: list[str], at: int = NOON_US - 1) -> list[str]:
        record = DecisionRecord(
            decision_id="d",
            features=row[0],
            decided_at_us=at,
            decision=decision,
            rules=AppliedRules(fired=[FiredRule(id=one) for one in fired]),
        )
        found = check_decisions([(1, record)], bundle, bundle.rules, scored.scores, scored.faulted)
        return [one.field for one in found]

    assert wrong("decline", ["large"]) == []
    assert wrong(label, []) == ["decision"]
    assert wrong("decline", []) == ["rules"]
    # The rule ended less than a second before the decision, so it may or may not have been evaluated.
    assert wrong("decline", ["large"], NOON_US) == wrong(label, [], NOON_US) == []
    assert wrong("decline", ["large"], NOON_US + 1_000_000) == ["decision"]


def test_a_decision_whose_rules_failed_is_that_of_the_model(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["score"]
    row = np.asarray([[150, 12, 1, 1]], np.float32)
    scored = bundle.score(row)

    def wrong(decision: str, source: str, fired: list[str]) -> list[str]:
        record = DecisionRecord(
            decision_id="d",
            features=row[0],
            decided_at_us=NOON_US - 1,
            margin=scored.margins[0],
            score=scored.scores[0],
            decision=decision,
            fallback_source=source,
            rules=AppliedRules(fired=[FiredRule(id=one) for one in fired], errors=1),
        )
        return [found.field for found in _check_scores([(1, record)], bundle, bundle.rules)]

    label = bundle.labels[int(scored.bands[0])]
    assert wrong(label, "model", []) == [] and wrong("decline", "model", []) == ["decision"]
    assert wrong("decline", "", ["large"]) == [] and wrong(label, "", []) == ["decision"]


def test_the_eligible_actions_are_computed_again(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["action"]

    def wrong(amount: float, eligible: bytes, requested: bytes = b"") -> list[str]:
        record = DecisionRecord(
            decision_id="d",
            features=[amount, 12, 1, 1],
            eligible_mask=eligible,
            requested_mask=requested,
            rules=AppliedRules(),
        )
        return [str(found) for found in check_eligible([(1, record)], bundle, bundle.rules)[0]]

    assert len(ACTIONS) == 6
    assert wrong(150, WITHOUT_TRA) == wrong(50, b"") == []
    assert wrong(150, bytes([0b000001]), bytes([0b000011])) == []
    (found,) = wrong(150, b"")
    assert "eligible actions is [0, 1, 2, 3, 4, 5], the bundle gives [0, 2, 3, 5]" in found
    assert len(wrong(50, WITHOUT_TRA)) == len(wrong(150, bytes([0b000011]), bytes([0b000011]))) == 1
    assert check_eligible([], bundle, bundle.rules) == ([], [])


def test_rules_whose_budget_was_used_up_are_those_of_the_record(tmp_path: Path) -> None:
    rules = CHECKOUT.replace("until = 2026-11-20T12:00:00Z", "daily = 5")
    tiny_score_bundle(tmp_path / "score", rules=BundleRules(rules))
    bundle = Bundle.load(tmp_path / "score")
    assert bundle.rules is not None and bundle.rules.rules[0].budget == "at most 5 a day"
    row = np.asarray([[150, 12, 1, 1]], np.float32)
    scored = bundle.score(row)
    label = bundle.labels[int(scored.bands[0])]

    def wrong(decision: str, fired: list[str], exhausted: list[str]) -> list[str]:
        applied = AppliedRules(fired=[FiredRule(id=one) for one in fired], exhausted=exhausted)
        record = DecisionRecord(
            decision_id="d", features=row[0], decided_at_us=NOON_US, decision=decision, rules=applied
        )
        return [one.field for one in check_decisions([(1, record)], bundle, bundle.rules, scored.scores, [0])]

    assert wrong("decline", ["large"], []) == []
    assert wrong(label, [], ["large"]) == []
    assert wrong(label, [], []) == ["decision"]
    assert wrong("decline", ["large"], ["large"]) == ["decision"]
