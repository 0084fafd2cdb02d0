"""Tests of the audit of masks and pmfs: the engine's rules against logged decisions, with reasons."""

from __future__ import annotations

import numpy as np
import pytest
from logged import two_actions_logged

from examples.simulators.actions import catalogue
from examples.simulators.eligibility import compiled
from examples.simulators.payments import contexts
from examples.simulators.task import CONTEXT, context_rows
from examples.simulators.transactions import TransactionPlan, simulate_transactions
from scorer.bundle import Action, Feature, PolicySpec
from scorer.bundle.rules import BundleRules, CompiledRules, compile_action_rules
from scorer.errors import BundleError
from scorer.learn.guardrails.audit import audit_masks, audit_pmf, floor_of


def reference(given) -> np.ndarray:
    """Return the eligible actions of the simulated payments, without the engine: `[n, actions]`."""
    columns = {name: column[:, None] for name, column in given.columns().items()}
    factors = {
        name: np.array([a.factors[name] for a in catalogue()])[None, :] for name in catalogue()[0].factors
    }
    low, tra = factors["exemption"] == "lvp", factors["exemption"] == "tra"
    amount, risk, country = columns["amount"], columns["risk"], columns["country"]
    plain = (factors["three_ds"] == "none") & (factors["exemption"] == "none")
    excluded = [
        low & ((amount > 30.0) | (columns["low_value_count"] >= 5)),
        tra & (risk >= 0.5),
        *(
            tra & (factors["route"] == route) & (amount > limit)
            for route, limit in (("A", 500.0), ("B", 250.0), ("C", 100.0))
        ),
        (low | tra) & ~columns["sca_required"],
        plain & columns["authentication_owed"],
        (factors["three_ds"] != "none") & ~columns["issuer_3ds"],
        (factors["three_ds"] == "frictionless") & (risk >= 0.8),
        (factors["route"] == "B") & (columns["scheme"] == "amex"),
        (factors["route"] == "D") & np.isin(country, ["US", "BR"]),
        (factors["retry"] == "soft_decline")
        & ((columns["last_decline"] == "hard") | (columns["earlier_attempts"] >= 10)),
        (factors["message"] == "address") & ~np.isin(country, ["US", "BR"]),
        (factors["message"] == "network_token") & ~columns["has_token"],
    ]
    return ~np.logical_or.reduce(excluded)


@pytest.fixture(scope="module")
def given():
    stream = simulate_transactions(TransactionPlan(customers=600, terminals=800, days=4), seed=1)
    risk = np.random.default_rng(0).beta(0.6, 2.0, len(stream))
    return contexts(stream, risk, seed=7)


def test_the_engine_agrees_with_the_reference_on_every_payment_and_action(given):
    found = compiled().eligibility(context_rows(given))
    expected = reference(given)
    assert np.array_equal(found.mask, expected)
    assert np.array_equal(given.eligible(), expected)
    assert 0.1 < expected.mean() < 0.9, "the test must contain actions that are not allowed"


def test_refused_actions_and_only_these_have_reasons(given):
    found = compiled().eligibility(context_rows(given))
    rng = np.random.default_rng(3)
    for row, action in zip(
        rng.integers(0, len(given), 2_000), rng.integers(0, len(catalogue()), 2_000), strict=True
    ):
        assert bool(found.reasons(row, action)) != bool(found.mask[row, action])


@pytest.mark.parametrize("column", range(len(CONTEXT)), ids=[feature.name for feature in CONTEXT])
def test_a_missing_value_never_makes_a_simulated_action_eligible(given, column):
    rows = context_rows(given)[:2_000]
    known = compiled().eligibility(rows).mask
    rows[:, column] = np.nan
    assert not (compiled().eligibility(rows).mask & ~known).any()


def two_actions(text: str, *features: Feature) -> CompiledRules:
    """Compile rules over the actions "a" and "b", which have the factor `kind`."""
    actions = [Action(id=name, factors={"kind": name}) for name in "ab"]
    found = compile_action_rules(BundleRules(text), features or (Feature(name="x"),), actions)
    assert isinstance(found, CompiledRules), found
    return found


LIMIT = """
name = "limits"
[[rules]]
id = "limit"
when = "!has(x) || x >= 5.0"
remove = { kind = ["b"] }
source = "a test"
"""
BOTH = (
    LIMIT
    + """
[[rules]]
id = "only_b_above_nine"
when = "x > 9.0"
keep = { kind = ["b"] }
source = "a contract"
[[rules]]
id = "of_the_action"
when = 'x == 7.0 && action.kind == "a"'
source = "a policy"
"""
)


def test_a_reason_names_the_rule_and_its_source():
    found = two_actions(BOTH).eligibility(np.array([[1], [5], [7], [10], [np.nan]], np.float32))
    assert len(found) == 5
    assert found.mask.tolist() == [[True, True], [True, False], [False, False], [False, False], [True, False]]
    assert [str(reason) for reason in found.reasons(1, 1)] == ["limit (a test)"]
    assert [reason.rule for reason in found.reasons(2, 0)] == ["of_the_action"]
    assert [(r.rule, r.source) for r in found.reasons(3, 0)] == [("only_b_above_nine", "a contract")]
    assert found.reasons(0, 1) == ()
    assert found.removals() == {"limit": 4, "only_b_above_nine": 1, "of_the_action": 1}
    assert (found.unknown, found.errors) == (2, 0)


def test_limits_are_compared_with_the_number_that_was_sent():
    rules = two_actions(LIMIT.replace(">= 5.0", "> 30.1"))
    at_limit = np.array([30.1], dtype=np.float32)
    assert float(at_limit[0]) > 30.1, "float32 rounds this value up"
    above = np.nextafter(at_limit, np.float32(99))
    assert rules.eligibility(np.array([at_limit, above])).mask[:, 1].tolist() == [True, False]


def test_dates_and_roll_outs_follow_the_times_and_ids_of_the_rows():
    dated = two_actions(LIMIT.replace('source = "a test"', 'source = "a test"\nfrom = 1970-01-02'))
    rows = np.full((2, 1), 9, np.float32)
    assert dated.eligibility(rows, seconds=[86_399, 86_400]).mask[:, 1].tolist() == [True, False]
    part = two_actions(LIMIT.replace('source = "a test"', 'source = "a test"\nrollout = 50.0'))
    ids = [f"d{number}" for number in range(400)]
    rows = np.full((400, 1), 9, np.float32)
    removed = ~part.eligibility(rows, ids=ids).mask[:, 1]
    assert 120 < removed.sum() < 280
    evaluated = part.evaluate(rows, scores=np.full(400, np.nan), seconds=np.zeros(400), ids=ids)
    assert np.array_equal(~evaluated.allowed[:, 1], removed)


def test_rules_are_checked_without_a_bundle():
    found = compile_action_rules(
        BundleRules(LIMIT.replace("x >=", "y >=")),
        [Feature(name="x")],
        [Action(id="a", factors={"kind": "b"})],
    )
    assert isinstance(found, tuple)
    assert "unknown name" in str(found[0])
    with pytest.raises(BundleError, match="occurs twice"):
        compile_action_rules(BundleRules(LIMIT), [Feature(name="x")], [Action(id="a"), Action(id="a")])
    with pytest.raises(BundleError, match="3 times need as many rows of 1 values"):
        two_actions(LIMIT).eligibility(np.zeros((2, 1), np.float32), seconds=[0, 0, 0])


def test_the_features_that_rules_read_are_known():
    rules = two_actions(LIMIT, Feature(name="x"), Feature(name="y"))
    assert (rules.reads("x"), rules.reads("y")) == (True, False)


def logged_with(values, eligible, action, **times):
    logged = two_actions_logged(eligible, eligible / np.sum(eligible, axis=1, keepdims=True), action, **times)
    object.__setattr__(logged, "context", np.array(values, np.float32)[:, None])
    return logged


def test_logged_masks_are_compared_with_the_rules():
    logged = logged_with([1, 9, 9, 1], np.array([[1, 1], [1, 1], [1, 1], [1, 0]]), [0, 0, 1, 0])
    rules = two_actions(LIMIT)
    (against,) = audit_masks(logged, rules)
    assert (against.rule, against.source) == ("limit", "a test")
    assert (against.rows, against.example, dict(against.detail)) == (2, "d1", {"taken": 1})
    assert str(against) == (
        'rule "limit": an action was eligible that the rule excludes (2 decisions, first d1, a test)'
    )
    _, without = audit_masks(logged, rules, complete=True)
    assert (without.rule, without.rows, without.example, dict(without.detail)) == ("", 1, "d3", {"b": 1})
    assert audit_masks(logged.take(slice(0, 1)), rules) == ()


def test_each_violated_rule_is_a_finding_of_its_own():
    logged = logged_with([10, 10, 5], np.array([[1, 1], [1, 0], [1, 1]]), [0, 0, 1])
    findings = audit_masks(logged, two_actions(BOTH))
    assert [(one.rule, one.rows, one.example, dict(one.detail)) for one in findings] == [
        ("limit", 2, "d0", {"taken": 1}),
        ("only_b_above_nine", 2, "d0", {"taken": 2}),
    ]


def test_masks_are_audited_in_blocks(monkeypatch):
    monkeypatch.setattr("scorer.learn.guardrails.audit._BLOCK", 3)
    values = [1, 1, 1, 1, 9, 9, 9]
    logged = logged_with(values, np.ones((7, 2), int), [0] * 6 + [1])
    (finding,) = audit_masks(logged, two_actions(LIMIT))
    assert (finding.rows, finding.example, dict(finding.detail)) == (3, "d4", {"taken": 1})


def test_a_rule_that_began_in_the_second_of_the_decision_is_not_held_against_it():
    rules = two_actions(LIMIT.replace('source = "a test"', 'source = "a test"\nfrom = 1970-01-02'))
    day = 86_400_000
    logged = logged_with([9, 9], np.ones((2, 2), int), [0, 0], time_ms=[day + 400, day + 1_400])
    (finding,) = audit_masks(logged, rules)
    assert (finding.rows, finding.example) == (1, "d1")


@pytest.mark.parametrize(
    ("eligible", "pmf", "action", "propensity", "named"),
    [
        ([[1, 1]], [[0.6, 0.5]], [0], None, "sum to 1"),
        ([[1, 1]], [[np.nan, 0.5]], [1], None, "no probability"),
        ([[1, 1]], [[1.5, -0.5]], [0], None, "no probability"),
        ([[1, 0]], [[0.5, 0.5]], [0], None, "not eligible has"),
        ([[1, 0]], [[0.5, 0.5]], [1], None, "taken was not eligible"),
        ([[1, 1]], [[0.5, 0.5]], [1], [0.4], "propensity"),
        ([[1, 1]], [[0.995, 0.005]], [0], None, "below the floor"),
    ],
)
def test_each_violation_of_a_pmf_is_found(eligible, pmf, action, propensity, named):
    spec = PolicySpec(rule="uniform", floor=0.02, salt="0" * 32)
    result = audit_pmf(two_actions_logged(eligible, pmf, action, propensity=propensity), {"sha256:b": spec})
    assert any(named in finding.what for finding in result)


def test_a_valid_pmf_is_not_reported():
    spec = PolicySpec(rule="uniform", floor=0.02, action_floors={"b": 0.05}, salt="0" * 32)
    good = two_actions_logged([[1, 1], [1, 0]], [[0.95, 0.05], [1.0, 0.0]], [0, 0])
    assert audit_pmf(good, {"sha256:b": spec}) == ()
    assert floor_of(spec, ("a", "b"), good.eligible).tolist() == [[0.01, 0.05], [0.02, 0.0]]
