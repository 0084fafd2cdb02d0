"""Tests of the authorisation environment: catalogue, rules, hidden truth, baseline."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from examples.simulators.actions import FACTORS, catalogue
from examples.simulators.eligibility import compiled
from examples.simulators.payments import (
    DECLINES,
    ISSUER_NAMES,
    SCA_COUNTRIES,
    SCHEMES,
    Contexts,
    Payments,
    baseline_pmf,
    baseline_rule,
    contexts,
    draw,
    log_baseline,
)
from examples.simulators.task import context_rows
from examples.simulators.transactions import TransactionPlan, simulate_transactions


@pytest.fixture(scope="module")
def given():
    stream = simulate_transactions(TransactionPlan(customers=1_000, terminals=2_000, days=5), seed=1)
    rng = np.random.default_rng(0)
    risk = np.where(stream.fraud == 1, rng.beta(2, 2, len(stream)), rng.beta(0.3, 20, len(stream)))
    return contexts(stream, risk, seed=7)


def one(**values) -> Contexts:
    """Return a single payment. By default it is Dutch, of low risk and 50 euros."""
    plain = {
        "amount": 50.0,
        "hour": 12,
        "issuer": 0,
        "scheme": 0,
        "device": 0,
        "last_decline": 0,
        "earlier_attempts": 0,
        "has_token": True,
        "low_value_count": 0,
        "risk": 0.01,
        "chance": 0.5,
    }
    return Contexts(**{name: np.array([value]) for name, value in (plain | values).items()})


def ids(context: Contexts) -> set[str]:
    return {action.id for action, allowed in zip(catalogue(), context.eligible()[0], strict=True) if allowed}


def test_the_catalogue_is_large_unique_and_plausible():
    actions = catalogue()
    assert len(actions) == 132 >= 96
    assert len({action.id for action in actions}) == len(actions)
    for action in actions:
        assert list(action.factors) == list(FACTORS)
        assert [FACTORS[name][code] for name, code in zip(FACTORS, action.codes, strict=True)] == list(
            action.factors.values()
        )
        if action.factors["three_ds"] == "challenge":
            assert action.factors["exemption"] == "none"


def test_between_a_fifth_and_three_fifths_is_eligible(given):
    shares = given.eligible().mean(axis=1)
    assert shares.min() > 0, "every payment must have an action"
    assert shares.max() <= 0.6
    assert ((shares >= 0.2) & (shares <= 0.6)).mean() > 0.9


@pytest.mark.parametrize(
    ("payment", "factor", "allowed"),
    [
        ({"amount": 30.0}, "exemption=lvp", True),
        ({"amount": 30.01}, "exemption=lvp", False),
        ({"amount": 30.0, "low_value_count": 5}, "exemption=lvp", False),
        ({"amount": 500.0}, "exemption=tra|route=A", True),
        ({"amount": 500.01}, "exemption=tra|route=A", False),
        ({"amount": 250.0}, "exemption=tra|route=B", True),
        ({"amount": 250.01}, "exemption=tra|route=B", False),
        ({"amount": 100.0}, "exemption=tra|route=C", True),
        ({"amount": 100.01}, "exemption=tra|route=C", False),
        ({"amount": 10.0}, "exemption=tra|route=D", False),
        ({"risk": 0.5}, "exemption=tra", False),
        ({"risk": 0.49}, "three_ds=frictionless", True),
        ({"risk": 0.8}, "three_ds=frictionless", False),
        ({"risk": 1.0}, "three_ds=challenge", True),
        ({}, "three_ds=none|exemption=none", False),
        ({"issuer": ISSUER_NAMES.index("US-bank-9")}, "three_ds=none|exemption=none", True),
        ({"issuer": ISSUER_NAMES.index("US-bank-9")}, "exemption=tra", False),
        ({"issuer": ISSUER_NAMES.index("US-bank-9")}, "route=D", False),
        ({"issuer": ISSUER_NAMES.index("ES-bank-7")}, "three_ds=challenge", False),
        ({"issuer": ISSUER_NAMES.index("ES-bank-7")}, "three_ds=none|exemption=none", True),
        ({"scheme": SCHEMES.index("amex")}, "route=B", False),
        ({"last_decline": DECLINES.index("hard")}, "retry=soft_decline", False),
        ({"last_decline": DECLINES.index("soft"), "earlier_attempts": 9}, "retry=soft_decline", True),
        ({"last_decline": DECLINES.index("soft"), "earlier_attempts": 10}, "retry=soft_decline", False),
        ({"has_token": False}, "message=network_token", False),
        ({"has_token": True}, "message=network_token", True),
        ({}, "message=address", False),
        ({"issuer": ISSUER_NAMES.index("BR-bank-11")}, "message=address", True),
    ],
)
def test_rules_exclude_actions(payment, factor, allowed):
    assert any(factor in action for action in ids(one(**payment))) is allowed


def test_every_rule_has_a_source_and_an_effect(given):
    effects = compiled().eligibility(context_rows(given)).removals()
    for rule in compiled().rules:
        assert rule.source
        assert effects[rule.id] > 0


def test_the_world_is_frozen():
    """The true probabilities must not change, because figures of different days would not be comparable."""
    truths = [
        Payments().probability(
            one(amount=80.0, issuer=issuer, scheme=issuer % 3, hour=hour, risk=0.2, **before)
        )
        for issuer in range(len(ISSUER_NAMES))
        for hour, before in ((3, {}), (12, {"last_decline": 1, "earlier_attempts": 2}))
    ]
    rounded = np.round(np.concatenate(truths), 6)
    assert hashlib.sha256(rounded.tobytes()).hexdigest()[:16] == "a48bc6349b8452cf"


def test_the_truth_is_a_probability_and_depends_on_every_factor(given):
    truth = Payments().probability(given.take(slice(0, 2_000)))
    assert truth.min() > 0
    assert truth.max() < 1
    for name in FACTORS:
        groups: dict[tuple[str, ...], list[int]] = {}
        for index, action in enumerate(catalogue()):
            others = tuple(value for factor, value in action.factors.items() if factor != name)
            groups.setdefault(others, []).append(index)
        spread = max(np.abs(np.ptp(truth[:, members], axis=1)).mean() for members in groups.values())
        assert spread > 0.01, name


def test_the_truth_changes_as_documented():
    world = Payments()
    cheap, dear = world.probability(one(amount=5.0)), world.probability(one(amount=900.0))
    safe, risky = world.probability(one(risk=0.0)), world.probability(one(risk=0.9))
    unauthenticated = [i for i, a in enumerate(catalogue()) if a.factors["three_ds"] == "none"]
    assert (cheap > dear)[0, unauthenticated].all()
    assert (safe > risky).all()
    # Authentication reassures the issuer: risk reduces the success of a challenge less than that of no 3DS.
    challenged = [i for i, a in enumerate(catalogue()) if a.factors["three_ds"] == "challenge"]
    loss = (np.log(safe / (1 - safe)) - np.log(risky / (1 - risky)))[0]
    assert loss[challenged].mean() < loss[unauthenticated].mean()


def test_every_policy_has_the_same_random_draws(given):
    world = Payments()
    truth = world.probability(given)
    for action in (0, 50, 131):
        chosen = np.full(len(given), action)
        outcome = world.authorised(given, chosen)
        assert outcome.mean() == pytest.approx(truth[:, action].mean(), abs=0.02)
        assert np.array_equal(outcome, world.authorised(given, chosen))
    # With one draw per payment, a payment that succeeds with a worse action also succeeds with a better one.
    worse, better = truth[:, 0] < truth[:, 50], truth[:, 0] > truth[:, 50]
    first = world.authorised(given, np.full(len(given), 0))
    second = world.authorised(given, np.full(len(given), 50))
    assert (second[worse] >= first[worse]).all()
    assert (first[better] >= second[better]).all()


def test_the_baseline_chooses_eligible_actions_with_the_logged_propensity(given):
    some = given.take(slice(0, 5_000))
    pmf = baseline_pmf(some)
    mask = some.eligible()
    np.testing.assert_allclose(pmf.sum(axis=1), 1)
    assert (pmf[~mask] == 0).all()
    assert (pmf[mask] > 0).all()
    rule = baseline_rule(some)
    assert mask[np.arange(len(some)), rule].all()
    logged = log_baseline(Payments(), some, seed=3)
    rows = np.arange(len(some))
    assert mask[rows, logged.action].all()
    np.testing.assert_allclose(logged.propensity, pmf[rows, logged.action])
    # The rule's action is chosen as often as its propensity.
    followed = (logged.action == rule).mean()
    assert followed == pytest.approx(pmf[rows, rule].mean(), abs=0.02)
    # On average, inverse propensities sum to the number of eligible actions, so every one is reached.
    assert (1 / logged.propensity).mean() == pytest.approx(mask.sum(axis=1).mean(), rel=0.15)


def test_the_baseline_can_be_improved(given):
    world = Payments()
    rule = world.probability(given)[np.arange(len(given)), baseline_rule(given)].mean()
    mask = given.eligible()
    anything = np.where(mask, world.probability(given), 0).sum(axis=1) / mask.sum(axis=1)
    assert anything.mean() < rule < world.best(given).mean() - 0.05


def test_a_customer_keeps_their_card(given):
    stream = simulate_transactions(TransactionPlan(customers=200, terminals=2_000, days=5), seed=1)
    first = contexts(stream, np.zeros(len(stream)), seed=1)
    second = contexts(stream, np.zeros(len(stream)), seed=2)
    assert np.array_equal(first.issuer, second.issuer)
    assert np.array_equal(first.has_token, second.has_token)
    assert not np.array_equal(first.chance, second.chance)
    # ... also in a stream of other customers.
    some = np.flatnonzero(stream.customer < 50)
    alone = contexts(stream.take(some), np.zeros(len(some)), seed=3)
    assert np.array_equal(alone.issuer, first.issuer[some])
    shares = np.bincount(given.issuer, minlength=len(ISSUER_NAMES)) / len(given)
    assert shares.max() < 0.3
    assert {name[:2] for name in ISSUER_NAMES} > SCA_COUNTRIES


def test_actions_of_probability_zero_are_never_drawn():
    pmf = np.array([[0.0, 0.5, 0.5, 0.0]] * 4)
    assert draw(pmf, np.array([0.0, 0.4999, 0.5, 1 - 2**-53])).tolist() == [1, 1, 2, 2]
