"""Policies through the extension, against the formulas in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.bundle import Action, Cap, Policy, PolicySpec
from scorer.errors import BundleError

SALT = "000102030405060708090a0b0c0d0e0f"
SCORES = st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 1.0])


def actions(count: int) -> list[Action]:
    return [Action(id=f"a{index}", attributes={"cost": index / 10}) for index in range(count)]


def inverse_gap(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    best = scores == scores.max()
    p = np.where(best, 0.0, others)
    p[best] = (1 - p.sum()) / best.sum()
    return p


def reference(spec: PolicySpec, scores: np.ndarray) -> np.ndarray:
    oracle, k = scores[0], scores.shape[1]
    best = oracle == oracle.max()
    gap = oracle.max() - oracle
    match spec.rule:
        case "uniform":
            p = np.full(k, 1 / k)
        case "epsilon_greedy":
            assert spec.epsilon is not None
            p = spec.epsilon / k + (1 - spec.epsilon) * best / best.sum()
        case "softmax":
            assert spec.inverse_temperature is not None
            weights = np.exp(-spec.inverse_temperature * gap)
            p = weights / weights.sum()
        case "squarecb":
            p = inverse_gap(oracle, 1 / (k + spec.gamma * gap))
        case "fastcb":
            least = 1 - oracle.max()
            with np.errstate(invalid="ignore", divide="ignore"):
                others = np.where(least > 0, least / (k * least + spec.gamma * gap), 0.0)
            p = inverse_gap(oracle, others)
        case "loss_ratio":
            loss = 1 - oracle
            with np.errstate(invalid="ignore", divide="ignore"):
                weights = np.where(best, 1.0, (loss.min() / loss) ** (spec.exponent or 0.0))
            p = weights / weights.sum()
        case _:
            votes = scores[1:] == scores[1:].max(axis=1, keepdims=True)
            p = (votes / votes.sum(axis=1, keepdims=True)).mean(axis=0)
    floors = np.full(k, spec.floor / k)
    order = np.sort(p - floors)[::-1]
    # Projection onto the simplex above the floors, by sorting (Held, Wolfe and Crowder 1974).
    taken = (np.cumsum(order) - (1 - floors.sum())) / np.arange(1, k + 1)
    last = np.flatnonzero(order >= taken)[-1]
    return floors + np.maximum(p - floors - taken[last], 0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[PolicySpec, np.ndarray, np.ndarray]:
    settings: dict[str, dict[str, Any]] = {
        "uniform": {},
        "epsilon_greedy": {"epsilon": draw(st.floats(0, 1))},
        "softmax": {"inverse_temperature": draw(st.floats(0, 300))},
        "squarecb": {"gamma": draw(st.floats(0, 3000))},
        "fastcb": {"gamma": draw(st.floats(0, 3000))},
        "loss_ratio": {"exponent": draw(st.floats(0, 300))},
        "bagging": {"voters": draw(st.integers(2, 6))},
    }
    rule = draw(st.sampled_from(sorted(settings)))
    spec = PolicySpec(rule=rule, floor=draw(st.floats(0, 1)), salt=SALT, **settings[rule])  # type: ignore[arg-type]
    count = draw(st.integers(1, 12))
    rows = 1 + (spec.voters or 0)
    scores = np.array(draw(st.lists(SCORES, min_size=rows * count, max_size=rows * count))).reshape(
        rows, count
    )
    eligible = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    eligible[draw(st.integers(0, count - 1))] = True
    return spec, scores, eligible


@settings(max_examples=400)
@given(cases())
def test_the_pmf_equals_its_formula(case: tuple[PolicySpec, np.ndarray, np.ndarray]) -> None:
    spec, scores, eligible = case
    policy = Policy(spec, actions(len(eligible)))
    given_scores = scores[None] if policy.voters else scores
    pmf = policy.pmf(given_scores, eligible[None])[0]
    np.testing.assert_allclose(pmf[eligible], reference(spec, scores[:, eligible]), atol=1e-9)
    assert (pmf[~eligible] == 0).all()
    assert abs(pmf.sum() - 1) <= 1e-9
    assert (pmf[eligible] >= spec.floor / eligible.sum()).all()
    index = policy.choose(pmf, "action.authorise", "order-1")
    assert eligible[index]
    assert index == policy.choose(pmf, "action.authorise", "order-1")


def test_caps_are_applied_as_prices() -> None:
    spec = PolicySpec(rule="epsilon_greedy", epsilon=0, caps=[Cap(attribute="cost", lambda_=1)], salt=SALT)
    pmf = Policy(spec, actions(3)).pmf([[0.5, 0.55, 0.9], [0.0, 0.0, 0.3]])
    np.testing.assert_array_equal(pmf, [[0, 0, 1], [0, 0, 1]])
    pmf = Policy(spec, actions(3)).pmf([[0.5, 0.55, 0.6]])
    np.testing.assert_array_equal(pmf, [[1, 0, 0]])


def test_invalid_policies_are_refused() -> None:
    policy = Policy(PolicySpec(rule="uniform", salt=SALT), actions(3))
    for scores, message in [
        ([[0.1, np.nan, 0.2]], "row 0: score of action 1"),
        ([[0.1, 0.2]], "shape"),
        ([0.1, 0.2, 0.3], "shape"),
    ]:
        with pytest.raises(BundleError, match=message):
            policy.pmf(scores)
    with pytest.raises(BundleError, match="row 1: eligible: no action is eligible"):
        policy.pmf(np.zeros((2, 3)), [[True, False, False], [False, False, False]])
    with pytest.raises(BundleError, match="no probability is above 0"):
        policy.choose([0.0, 0.0, 0.0], "c", "d")
    with pytest.raises(BundleError, match="unknown rule"):
        Policy(PolicySpec.model_construct(rule="ucb", salt=SALT), actions(3))
