"""Tests of rules in bundles: building, checking, evaluating, inspecting and revising."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bundles import ACTIONS, CREATED, rows, tiny_action_bundle, tiny_score_bundle

from scorer.bundle import Bundle, OverlaySpec, inspect, read_manifest, revise
from scorer.bundle.revision import _with_overlay
from scorer.bundle.rules import BundleRules, CompiledRules, RuleList, read_rules
from scorer.errors import BundleError

CHECKOUT = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "many"
when = "count_24h > 5.0 && int(count_24h) in list(\\"large\\")"
decision = "decline"
reason = "R01"
queue = "level_2"

[[rules]]
id = "night"
when = "hour < 5.0"
floor = 0.5
"""

EXEMPTIONS = """
name = "exemptions"

[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "Delegated Regulation (EU) 2018/389, article 18"
"""

LISTS = {"large": RuleList(b"6\n7\n8\n", "int")}


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("ruled")
    tiny_score_bundle(directory / "score", rules=BundleRules(CHECKOUT, LISTS))
    tiny_action_bundle(directory / "action", rules=BundleRules(EXEMPTIONS))
    return {path.name: path for path in directory.iterdir()}


def test_a_bundle_has_the_rules_that_it_was_built_with(ruled: dict[str, Path]) -> None:
    inspection = inspect(ruled["score"])
    assert [(rule.id, rule.effect, rule.line) for rule in inspection.rules] == [
        ("many", "decision decline, reason R01, queue level_2", 6),
        ("night", "floor 0.5", 13),
    ]
    assert [node.kind for node in inspection.manifest.program][-2:] == ["rules", "threshold"]
    assert {"rules.toml", "list-01.txt"} <= set(inspection.manifest.files)
    (rule,) = inspect(ruled["action"]).rules
    assert (rule.restricts, rule.effect) == (True, "restricts actions")
    assert "2018/389" in (rule.source or "")


def test_rules_of_a_score_bundle_are_evaluated_on_rows(ruled: dict[str, Path]) -> None:
    bundle = Bundle.load(ruled["score"])
    assert bundle.rules is not None
    data = np.asarray(
        [[10, 12, 0, 1], [10, 12, 7, 1], [10, 12, 9, 1], [10, 2, 0, 1], [10, math.nan, 0, 1]], np.float32
    )
    scores = bundle.score(data).scores
    found = bundle.rules.evaluate(data, scores=scores, seconds=[0] * 5, ids=["a"] * 5)
    assert found.applied == [[], [0], [], [1], []]
    assert found.unknown == [0, 0, 0, 0, 1]
    decisions = [bundle.labels[band] for band in found.bands]
    assert decisions[1] == "decline" and list(found.written) == [False, True, False, False, False]
    assert decisions[3] in ("review", "decline") and found.scores[3] == max(scores[3], 0.5)
    np.testing.assert_array_equal(found.scores[[0, 1, 2, 4]], scores[[0, 1, 2, 4]])
    assert found.allowed.shape == (5, 0)


def test_rules_of_an_action_bundle_allow_actions(ruled: dict[str, Path]) -> None:
    bundle = Bundle.load(ruled["action"])
    assert bundle.rules is not None
    data = np.asarray([[50, 1, 1, 1], [500, 1, 1, 1]], np.float32)
    found = bundle.rules.evaluate(data, scores=[math.nan] * 2, seconds=[0, 0], ids=["a", "b"])
    assert found.allowed.tolist() == [[True] * 6, ["tra" not in action for action in ACTIONS]]
    with pytest.raises(BundleError, match="2 ids need as many rows of 4 values"):
        bundle.rules.evaluate(data[:1], scores=[1.0, 1.0], seconds=[0, 0], ids=["a", "b"])


def test_rules_change_no_score_and_no_golden_case(ruled: dict[str, Path], tmp_path: Path) -> None:
    tiny_score_bundle(tmp_path / "plain")
    data = rows(50, seed=3)
    with_rules, without = Bundle.load(ruled["score"]), Bundle.load(tmp_path / "plain")
    np.testing.assert_array_equal(with_rules.score(data).scores, without.score(data).scores)
    assert (tmp_path / "plain/golden.bin").read_bytes() == (ruled["score"] / "golden.bin").read_bytes()
    assert without.rules is None and inspect(tmp_path / "plain").rules == ()


def test_faults_have_place_and_remedy(ruled: dict[str, Path], tmp_path: Path) -> None:
    bundle = Bundle.load(ruled["score"])
    wrong = CHECKOUT.replace("hour <", "hours <").replace('"decline"\nreason', '"refuse"\nreason')
    faults = bundle.check_rules(BundleRules(wrong, LISTS))
    assert isinstance(faults, tuple)
    assert [(fault.rule, fault.line) for fault in faults] == [("many", 8)] or len(faults) == 2
    assert any('decision "refuse" is not in decisions' in str(fault) for fault in faults)
    # Names are resolved after the file is valid otherwise.
    faults = bundle.check_rules(BundleRules(CHECKOUT.replace("hour <", "hours <"), LISTS))
    assert isinstance(faults, tuple)
    (fault,) = faults
    assert (fault.rule, fault.line, fault.column) == ("night", 14, 9)
    assert 'the nearest name is "hour"' in fault.problem
    assert str(fault).startswith('rule "night", line 14, column 9: unknown name')
    with pytest.raises(BundleError, match=r'rules\.toml: rule "night", line 14, column 9'):
        tiny_score_bundle(tmp_path / "wrong", rules=BundleRules(CHECKOUT.replace("hour <", "hours <"), LISTS))
    with pytest.raises(BundleError, match="salt must be 32 hexadecimal digits"):
        bundle.check_rules(replace(BundleRules(CHECKOUT, LISTS), salt="00"))


def test_a_revision_has_other_rules_and_the_same_forest(ruled: dict[str, Path], tmp_path: Path) -> None:
    other = BundleRules(CHECKOUT.replace("hour < 5.0", "hour < 8.0"), {"large": RuleList(b"9\n", "int")})
    revised = revise(ruled["score"], tmp_path / "revised", rules=other, created_at=CREATED)
    before, after = read_manifest(ruled["score"]), read_manifest(revised.path)
    assert after.files["forest.bin"] == before.files["forest.bin"]
    assert after.files["golden.bin"] == before.files["golden.bin"]
    assert after.lineage.revision_of == before.digest
    bundle = Bundle.load(revised.path)
    assert bundle.rules is not None
    data = np.asarray([[10, 7, 9, 1]], np.float32)
    assert bundle.rules.evaluate(data, scores=[0.1], seconds=[0], ids=["a"]).applied == [[0, 1]]

    removed = revise(revised.path, tmp_path / "removed", remove_rules=True, created_at=CREATED)
    tiny_score_bundle(tmp_path / "plain")
    assert read_manifest(removed.path).program == read_manifest(tmp_path / "plain").program
    assert "list-01.txt" not in read_manifest(removed.path).files
    again = revise(removed.path, tmp_path / "again", rules=BundleRules(CHECKOUT, LISTS), created_at=CREATED)
    assert read_manifest(again.path).program == before.program
    with pytest.raises(BundleError, match=r"has no rules\.toml to remove"):
        revise(removed.path, tmp_path / "no", remove_rules=True)
    with pytest.raises(BundleError, match="a rule set is given and to be removed"):
        revise(removed.path, tmp_path / "no", remove_rules=True, rules=other)
    with pytest.raises(BundleError, match="overlay and caps are for action bundles"):
        revise(removed.path, tmp_path / "no", caps={"cost": 1.0})


def test_an_action_bundle_gets_rules_by_a_revision(
    built_bundles: dict[str, Path], ruled: dict[str, Path], tmp_path: Path
) -> None:
    revised = revise(
        built_bundles["action-1"], tmp_path / "revised", rules=BundleRules(EXEMPTIONS), created_at=CREATED
    )
    assert read_manifest(revised.path).program == read_manifest(ruled["action"]).program
    assert read_manifest(revised.path).program[-1].eligible == "ruled"  # type: ignore[union-attr]
    kept = revise(revised.path, tmp_path / "kept", rules=BundleRules(EXEMPTIONS), created_at=CREATED)
    assert Bundle.load(kept.path).rules is not None
    # The overlay of a bundle with rules changes independently of them.
    segments = OverlaySpec(segment="amount")
    with pytest.raises(BundleError, match="amount"):
        revise(kept.path, tmp_path / "overlaid", overlay=segments, created_at=CREATED)
    program = [node.model_dump() for node in read_manifest(kept.path).program]
    assert [node["kind"] for node in _with_overlay(program)][-3:] == ["overlay", "rules", "policy"]


def test_rules_and_lists_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(CHECKOUT)
    (tmp_path / "large.txt").write_text("6\n")
    found = read_rules(tmp_path / "rules.toml", {"large": (tmp_path / "large.txt", "int")})
    assert found == BundleRules(CHECKOUT, {"large": RuleList(b"6\n", "int")})
    assert len(found.key) == 32 and found.key == BundleRules('name = "checkout"').key
    assert found.key != BundleRules('name = "other"').key
    with pytest.raises(BundleError, match='list "large": type "float" is unknown'):
        read_rules(tmp_path / "rules.toml", {"large": (tmp_path / "large.txt", "float")})
    with pytest.raises(BundleError, match="cannot be read: No such file"):
        read_rules(tmp_path / "missing.toml")
    (tmp_path / "rules.toml").write_bytes(b"\xff")
    with pytest.raises(BundleError, match="byte 0 is not UTF-8"):
        read_rules(tmp_path / "rules.toml")


def test_a_roll_out_is_the_same_in_the_next_bundle(ruled: dict[str, Path]) -> None:
    bundle = Bundle.load(ruled["score"])
    text = CHECKOUT.replace("floor = 0.5", "floor = 0.5\nrollout = 30.0")
    compiled = [bundle.check_rules(BundleRules(text, LISTS)) for _ in range(2)]
    data = np.repeat(np.asarray([[10, 2, 0, 1]], np.float32), 1000, axis=0)
    ids = [f"payment-{number}" for number in range(1000)]
    results = []
    for rules in compiled:
        assert isinstance(rules, CompiledRules)
        results.append(rules.evaluate(data, scores=[0.1] * 1000, seconds=[0] * 1000, ids=ids).applied)
    assert results[0] == results[1]
    assert 230 < sum(bool(applied) for applied in results[0]) < 370
