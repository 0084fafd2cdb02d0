"""Tests of eligibility rules: equal to the simulator's, with reasons, and strict for missing values."""

from __future__ import annotations

import numpy as np
import pytest
from logged import two_actions_logged

from examples.simulators.actions import RULES, catalogue
from examples.simulators.payments import contexts
from examples.simulators.task import CONTEXT, context_rows
from examples.simulators.transactions import TransactionPlan, simulate_transactions
from scorer.bundle import Feature, PolicySpec
from scorer.learn.errors import DataError
from scorer.learn.guardrails.audit import audit_masks, audit_pmf, floor_of
from scorer.learn.guardrails.rules import Rule, RuleSet, named_columns, read_rules

FACTORS = [action.factors for action in catalogue()]
# The values that the simulator derives from a payment's columns, as facts.
FACTS = {
    "issuer_3ds": [("issuer", "not in", ("ES-bank-7",))],
    "sca_required": [("country", "in", ("NL", "DE", "FR", "ES", "GB"))],
    "authentication_owed": [("sca_required", "==", True), ("issuer_3ds", "==", True)],
}


def simulated(facts=None) -> RuleSet:
    """Return the rules of the simulator over its catalogue."""
    rules = tuple(
        Rule(
            rule.name,
            {name: tuple(values) for name, values in rule.actions.items()},
            tuple(rule.needs),
            rule.source,
        )
        for rule in RULES
    )
    return RuleSet(rules, tuple(FACTORS), {name: tuple(needs) for name, needs in (facts or {}).items()})


@pytest.fixture(scope="module")
def given():
    stream = simulate_transactions(TransactionPlan(customers=600, terminals=800, days=4), seed=1)
    risk = np.random.default_rng(0).beta(0.6, 2.0, len(stream))
    return contexts(stream, risk, seed=7)


def test_the_rules_agree_with_the_simulator_on_every_payment_and_action(given):
    evaluation = simulated().evaluate(given.columns())
    expected = given.eligible()
    assert np.array_equal(evaluation.mask, expected)
    assert 0.1 < expected.mean() < 0.9, "the test must contain actions that are not allowed"


def test_rules_over_facts_need_only_the_request(given):
    columns = named_columns(CONTEXT, context_rows(given))
    assert not set(FACTS) & set(columns)
    mask = simulated(FACTS).evaluate(columns).mask
    assert np.array_equal(mask, given.eligible())


def test_refused_actions_and_only_these_have_reasons(given):
    evaluation = simulated().evaluate(given.columns())
    rng = np.random.default_rng(3)
    for row, action in zip(
        rng.integers(0, len(given), 2_000), rng.integers(0, len(FACTORS), 2_000), strict=True
    ):
        assert bool(evaluation.reasons(row, action)) != bool(evaluation.mask[row, action])


def two_actions(needs, **facts):
    rule = Rule("limit", {"kind": ("b",)}, needs, "a test")
    return RuleSet((rule,), ({"kind": "a"}, {"kind": "b"}), facts)


def test_a_reason_names_the_rule_the_value_and_the_source():
    evaluation = two_actions((("amount", "<=", 30.0), ("count", "<", 5))).evaluate(
        {"amount": np.array([30.0, 31.5, 10.0]), "count": np.array([4.0, 4.0, 5.0])}
    )
    assert evaluation.mask.tolist() == [[True, True], [True, False], [True, False]]
    assert [str(r) for r in evaluation.reasons(1, 1)] == ["limit: needs amount <= 30.0, is 31.5 (a test)"]
    assert [r.unmet for r in evaluation.reasons(2, 1)] == [("count < 5, is 5",)]
    assert evaluation.refusals() == {"limit": 2}


@pytest.mark.parametrize(
    "need",
    [("x", "<", 5.0), ("x", ">=", 0.0), ("x", "!=", 3.0), ("x", "==", False)],
)
def test_a_missing_number_meets_no_condition(need):
    assert not two_actions((need,)).evaluate({"x": np.array([np.nan], dtype=np.float32)}).mask[0, 1]


@pytest.mark.parametrize("need", [("x", "in", ("a",)), ("x", "not in", ("a",)), ("x", "!=", "a")])
def test_a_missing_category_meets_no_condition(need):
    columns = named_columns(
        (Feature(name="x", type="category", categories=["a", "b"]),), np.array([[np.nan]], dtype=np.float32)
    )
    evaluation = two_actions((need,)).evaluate(columns)
    assert not evaluation.mask[0, 1]
    assert "is missing" in str(evaluation.reasons(0, 1)[0])


def test_a_fact_over_a_missing_value_is_neither_true_nor_false():
    for wanted in (True, False):
        rules = two_actions((("owed", "==", wanted),), owed=[("x", "<", 5.0)])
        assert not rules.evaluate({"x": np.array([np.nan])}).mask[0, 1]
    assert rules.evaluate({"x": np.array([7.0])}).mask[0, 1]


def test_limits_are_compared_with_the_float32_value_of_the_engine():
    rules = two_actions((("amount", "<=", 30.1),))
    at_limit = np.array([30.1], dtype=np.float32)
    assert float(at_limit[0]) > 30.1, "float32 rounds this value up"
    assert rules.evaluate({"amount": at_limit}).mask[0, 1]
    assert not rules.evaluate({"amount": np.nextafter(at_limit, np.float32(99))}).mask[0, 1]


def test_a_rule_file_gives_the_same_rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        """
        [facts.small]
        all = [["amount", "<=", 30]]
        [[rules]]
        name = "low value"
        actions = { kind = ["b"] }
        needs = [["small", "==", true], ["country", "in", ["NL", "DE"]]]
        source = "RTS, Article 16"
        """
    )
    rules = read_rules(path, [{"kind": "a"}, {"kind": "b"}])
    columns = {"amount": np.array([30.0, 30.01, 5.0]), "country": np.array(["NL", "DE", "FR"])}
    assert rules.evaluate(columns).mask[:, 1].tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[rules]]\nname='r'\nactions={kind=['c']}\nneeds=[['x','<',1]]\nsource='s'", "concerns no action"),
        ("[[rules]]\nname='r'\nactions={}\nneeds=[['x','~',1]]\nsource='s'", "no comparison"),
        ("[[rules]]\nname='r'\nactions={}\nneeds=[['x','in','NL']]\nsource='s'", "take lists"),
        ("[[rules]]\nname='r'\nactions={}\nneeds=['x < 1']\nsource='s'", "not of the form"),
        ("[[rules]]\nname='r'\nactions={}\nneeds=[]\nsource='s'", "no conditions"),
        ("[[rules]]\nname='r'\nactions={}\nneeds=[['x','<',1]]\nsource=''", "no source"),
        ("[[rules]]\nname='r'\nactions={}\nneeds=[['x','<',1]]", "source"),
        ("[[rule]]\nname='r'", 'unknown table "rule"'),
        ("[[rules", "not valid TOML"),
    ],
)
def test_an_error_of_a_rule_file_names_the_rule(tmp_path, text, named):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=named):
        read_rules(path, [{"kind": "a"}, {"kind": "b"}])


def test_an_error_of_an_unknown_column_names_the_column():
    with pytest.raises(DataError, match='needs "amout", which is neither a column nor a fact'):
        two_actions((("amout", "<", 1.0),)).evaluate({"amount": np.array([1.0])})


def test_logged_masks_are_compared_with_the_rules():
    evaluation = two_actions((("x", "<", 5.0),)).evaluate({"x": np.array([1.0, 9.0, 9.0, 1.0])})
    logged = two_actions_logged(
        [[1, 1], [1, 1], [1, 1], [1, 0]], [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [1, 0]], [0, 0, 1, 0]
    )
    against, without = audit_masks(logged, evaluation)
    assert (against.rows, against.example, dict(against.detail)) == (2, "d1", {"limit": 2, "taken": 1})
    assert (without.rows, without.example, dict(without.detail)) == (1, "d3", {"b": 1})
    assert not audit_masks(
        logged.take(slice(0, 1)), two_actions((("x", "<", 5.0),)).evaluate({"x": np.ones(1)})
    )


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
