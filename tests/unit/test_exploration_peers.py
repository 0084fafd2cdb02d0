"""Tests that the exploration rules of other libraries are distributions and equal their originals."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import components
import numpy as np
import pytest

from loadtests.learning.exploration import peers
from loadtests.learning.exploration.peers import PEERS, REFERENCES
from loadtests.learning.exploration.view import Rule, View

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".build/learning/venv/bin/python"
SCORES = [[0.9, 0.8, 0.5, 0.8], [0.2, 0.1, 0.05, 0.0]]
LEARNED = 900


def view(scores: Any, eligible: Any = None, **changes: Any) -> View:
    given = np.array(scores, dtype=float)
    mask = np.ones(given.shape, dtype=bool) if eligible is None else np.array(eligible, dtype=bool)
    rng = np.random.default_rng(3)
    settings: dict[str, Any] = {
        "learned": LEARNED,
        "counts": np.arange(1, given.shape[1] + 1) * 7,
        "members": lambda count: rng.random((count, *given.shape)),
        "sensitivity": lambda: rng.random(given.shape) * 0.1,
        "excess": lambda: 0.01,
    }
    return View(given, mask, **{**settings, **changes})


@pytest.mark.parametrize("rule", [*PEERS, *REFERENCES], ids=lambda rule: rule.name)
def test_every_rule_is_a_distribution_over_the_eligible_actions(rule: Rule) -> None:
    rng = np.random.default_rng(1)
    scores = np.round(rng.random((300, 7)), 1)
    eligible = rng.random(scores.shape) < 0.5
    eligible[np.arange(300), rng.integers(0, 7, 300)] = True
    scores[0], eligible[1] = 0.4, np.arange(7) == 2
    pmf = rule.pmf(view(scores, eligible))
    np.testing.assert_allclose(pmf.sum(axis=1), 1, atol=1e-9)
    assert pmf.min() >= 0
    assert (pmf[~eligible] == 0).all()
    assert pmf[1, 2] == pytest.approx(1)


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """The probabilities of the peers' code."""
    components.require("learning peers")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", ROOT / "tests/support/peers_pmf.py"],
        input=json.dumps({"scores": SCORES, "learned": LEARNED}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("epsilon", lambda given: peers.epsilon_greedy(given, 0.05)),
        ("softmax", lambda given: peers.softmax(given, 50)),
        ("squarecb", lambda given: peers.square_cb(given, 10)),
        ("squarecb100", lambda given: peers.square_cb(given, 100)),
    ],
)
def test_probabilities_equal_those_of_vowpal_wabbit(name: str, ours: Any, real: dict[str, Any]) -> None:
    # VW computes in float32.
    np.testing.assert_allclose(ours(view(SCORES)), real["vw"][name], rtol=2e-4, atol=1e-7)


def test_expectations_equal_those_of_mabwiser(real: dict[str, Any]) -> None:
    arms, means = real["mabwiser"], [[0.9, 0.6, 0.1]]
    given = view(means, counts=np.array(arms["ucb1"]["counts"]), learned=sum(arms["ucb1"]["counts"]))
    np.testing.assert_allclose(peers.softmax(given, 10)[0], arms["softmax"]["expectations"], rtol=1e-9)
    np.testing.assert_allclose(peers.popularity(given)[0], arms["popularity"]["expectations"], rtol=1e-9)
    assert peers.ucb1(given)[0].argmax() == np.argmax(arms["ucb1"]["expectations"])
    # The bonus of the arm with the fewest pulls is decisive: 0.5 + sqrt(2 ln 40 / 2) > 0.9 + sqrt(2 ln
    # 40 / 30).
    assert peers.ucb1(view([[0.9, 0.5]], counts=np.array([30, 2]), learned=40))[0, 1] == 1


def test_eppo_equals_a_calculation_by_hand() -> None:
    # 1 / (4 + 10 gap) for gaps .1, .4, .1. A floor of .9 / 4 raises all of them. The best action gets
    # the rest.
    pmf = peers.eppo(view([SCORES[0]]), 10)
    np.testing.assert_allclose(pmf, [[1 - 0.4 - 0.125, 0.2, 0.125, 0.2]])
    floored = peers.eppo(view([SCORES[0]]), 10, floor=0.9)
    np.testing.assert_allclose(floored, [[1 - 0.675, 0.225, 0.225, 0.225]])


def test_router_equals_a_calculation_by_hand() -> None:
    np.testing.assert_allclose(
        peers.hedging(view([SCORES[0]], [[True, True, False, True]])), [[0.95, 0.025, 0, 0.025]]
    )
    np.testing.assert_array_equal(peers.hedging(view([[0.1, 0.2]], [[True, False]])), [[1, 0]])


def test_bag_counts_votes() -> None:
    votes = np.array([[[1.0, 0, 0]], [[0, 1.0, 0]], [[0, 1.0, 1.0]], [[0, 0.2, 0.1]]])
    pmf = peers.bag(view([[0.1, 0.2, 0.3]], members=lambda count: votes[:count]), 4)
    np.testing.assert_allclose(pmf, [[0.25, 0.625, 0.125]])


def test_cover_equals_a_calculation_by_hand() -> None:
    # t K = 400 → least probability 1 / 20. The first policy takes action 0 (1/2); norm = .2 + .45 = .65.
    # Bonus of 0: .05 / (.5 / .65) = .065; of the others .05 / (.05 / .65) = .65: action 1 wins, .8 + .65.
    pmf = peers.cover(view([SCORES[0]], learned=100), 2, 1.0)
    np.testing.assert_allclose(pmf, [[0.45, 0.45, 0.05, 0.05]], atol=1e-9)
    # From psi .1 / (.9 × .65) = .171 on, the norm is decisive.
    for psi, second in ((0.18, 0.45), (0.16, 0.05)):
        pmf = peers.cover(view([SCORES[0]], learned=100), 2, psi)
        assert pmf[0, 1] == pytest.approx(second)
    # A small bonus leaves both policies on the best action.
    alone = peers.cover(view([SCORES[0]], learned=100), 2, 0.1)
    np.testing.assert_allclose(alone, [[0.85, 0.05, 0.05, 0.05]], atol=1e-9)


def test_regcb_ranges_satisfy_the_published_inequality() -> None:
    # The largest weight w with w (f² - (f - s w)²) <= delta, against a fine grid.
    distance, s, delta = np.array([[1.3]]), np.array([[0.05]]), np.array([[0.4]])
    grid = np.linspace(0, 26, 2_600_001)
    fits = grid[grid * (1.69 - (1.3 - 0.05 * grid) ** 2) <= 0.4]
    assert peers._weight(distance, s, delta)[0, 0] == pytest.approx(fits.max(), abs=2e-5)
    # If even the whole range costs less than delta, the result is the end of the range.
    assert peers._weight(distance, s, np.array([[100.0]]))[0, 0] == pytest.approx(26)


def test_regcb_keeps_the_actions_that_may_be_best() -> None:
    narrow = view([[0.9, 0.2, 0.88]], sensitivity=lambda: np.full((1, 3), 1e-3))
    np.testing.assert_allclose(peers.reg_cb(narrow, 1e-6, False), [[1, 0, 0]])
    wide = view([[0.6, 0.5, 0.55]], sensitivity=lambda: np.full((1, 3), 10.0))
    np.testing.assert_allclose(peers.reg_cb(wide, 0.1, False), np.full((1, 3), 1 / 3))
    # Optimism prefers the action with the fewest observations.
    unknown = view([[0.6, 0.5]], sensitivity=lambda: np.array([[1e-4, 2.0]]))
    np.testing.assert_allclose(peers.reg_cb(unknown, 0.01, True), [[0, 1]])
