"""The published exploration rules of peers, applied to given scores. The cost of an action is 1 - score.

Vowpal Wabbit (9.11.9, `cb_explore_adf_*.cc`) and the others learn with their own models and accept no scores
from outside. This module therefore implements their rules, which are compared with the peers' own code where
that accepts constructed scores (tests/unit/test_exploration_peers.py). Every formula covers the eligible
actions only.
"""

from __future__ import annotations

import numpy as np

from loadtests.learning.exploration.view import Floats, Rule, View, first, only


def greedy(view: View) -> Floats:
    """Choose the best action; equal ones share the probability."""
    return only(view.masked == view.best)


def uniform(view: View) -> Floats:
    """Choose every eligible action with the same probability."""
    return only(view.eligible)


def epsilon_greedy(view: View, epsilon: float) -> Floats:
    """VW `--epsilon`, MABWiser `EpsilonGreedy`: all actions share epsilon, including the best."""
    return (1 - epsilon) * greedy(view) + epsilon * uniform(view)


def hedging(view: View, epsilon: float = 0.05) -> Floats:
    """juspay/decision-engine: mostly the best gateway; the others share epsilon."""
    best = first(view.masked)
    others = view.eligible & (best == 0)
    share = np.where(view.k > 1, epsilon, 0.0)
    return np.asarray((1 - share) * best + share * others / np.maximum(view.k - 1, 1))


def softmax(view: View, inverse_temperature: float) -> Floats:
    """VW `--softmax --lambda`; MABWiser `Softmax(tau)` with tau = 1 / lambda."""
    weight = np.exp(inverse_temperature * (view.masked - view.best))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def bag(view: View, members: int) -> Floats:
    """VW `--bag`: each member votes for its best action."""
    votes = np.where(view.eligible, view.members(members), -np.inf)
    return np.asarray(np.mean([only(own == own.max(axis=1, keepdims=True)) for own in votes], axis=0))


def cover(view: View, size: int, psi: float, epsilon: float | None = None) -> Floats:
    """VW `--cover`: policies that each avoid the actions that earlier ones cover, and a least probability.

    The cost-sensitive learners are replaced by their objective, the least cost minus bonus, on the given
    scores. Without `--epsilon` the least probability is 1 / sqrt(t K), as in VW.
    """
    k = view.k
    t = max(view.learned, 1)
    least = np.minimum(1 / k, 1 / np.sqrt(t * k)) if epsilon is None else epsilon / k
    pmf = first(view.masked) / size
    norm = least * k + (1 / size - least)
    for _ in range(1, size):
        chosen = first(view.masked + psi * least / (np.maximum(pmf, least) / norm))
        has = (pmf * chosen).sum(axis=1, keepdims=True)
        norm = norm + np.where(has < least, np.maximum(0.0, 1 / size - (least - has)), 1 / size)
        pmf = pmf + chosen / size
    return raised(pmf, np.where(view.eligible, least, 0.0))


def raised(pmf: Floats, least: Floats) -> Floats:
    """VW `enforce_minimum_probability`: `max(p - tau, least)` with the tau for which the sum is 1."""
    low, high = np.zeros((len(pmf), 1)), np.ones((len(pmf), 1))
    for _ in range(60):
        tau = (low + high) / 2
        over = np.maximum(pmf - tau, least).sum(axis=1, keepdims=True) > 1
        low, high = np.where(over, tau, low), np.where(over, high, tau)
    out = np.maximum(pmf - low, least)
    return np.asarray(out / out.sum(axis=1, keepdims=True))


def inverse_gap(view: View, gamma: float) -> Floats:
    """VW `--squarecb`: 1 / (K + gamma gap); the best action has the remaining probability."""
    best = first(view.masked)
    other = view.eligible & (best == 0)
    pmf = np.zeros(best.shape)
    np.divide(1.0, view.k + gamma * (view.best - view.scores), out=pmf, where=other)
    return np.asarray(pmf + best * (1 - pmf.sum(axis=1, keepdims=True)))


def square_cb(view: View, scale: float, exponent: float = 0.5) -> Floats:
    """VW's schedule: gamma = scale * t^exponent for t learned examples. Its defaults are 10 and .5."""
    return inverse_gap(view, scale * view.learned**exponent)


def eppo(view: View, gamma: float, floor: float = 0.0) -> Floats:
    """Eppo `eval_bandits.rs`: constant gamma and at least floor / n for each; the best has the remainder."""
    best = first(view.masked)
    other = view.eligible & (best == 0)
    pmf = np.zeros(best.shape)
    np.divide(1.0, view.k + gamma * (view.best - view.scores), out=pmf, where=other)
    pmf = np.where(other, np.maximum(pmf, floor / view.k), 0.0)
    return np.asarray(pmf + best * np.maximum(1 - pmf.sum(axis=1, keepdims=True), 0.0))


def reg_cb(view: View, mellowness: float, optimistic: bool) -> Floats:
    """VW `--regcb` (elimination) and `--regcbopt`: actions that may be best within a confidence range.

    The range of a score is the change by an update of weight w for which w (f² - (f - s w)²) stays below
    delta = c0 log(K t), where f is the distance from one beyond the end of the range and s is the
    sensitivity. For boosted trees it is computed from their leaves: learning rate / (Hessian + lambda),
    summed over trees.
    """
    q = view.scores
    s = np.clip(q * (1 - q) * view.sensitivity(), 1e-9, 1.0)
    delta = mellowness * np.log(view.k * max(view.learned, 2))
    upper = np.where(view.eligible, np.minimum(q + s * _weight(2 - q, s, delta), 1.0), -np.inf)
    if optimistic:
        return only(upper == upper.max(axis=1, keepdims=True))
    lower = np.where(view.eligible, np.maximum(q - s * _weight(1 + q, s, delta), 0.0), -np.inf)
    return only(upper >= lower.max(axis=1, keepdims=True))


def _weight(distance: Floats, s: Floats, delta: Floats) -> Floats:
    """Return the largest w with w (f² - (f - s w)²) <= delta and s w <= f."""
    low, high = np.zeros(distance.shape), distance / s
    for _ in range(30):
        middle = (low + high) / 2
        fits = middle * (distance**2 - (distance - s * middle) ** 2) <= delta
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(distance**3 / s <= delta, distance / s, low)


def ucb1(view: View, alpha: float = 1.0) -> Floats:
    """MABWiser `UCB1`: the score instead of the arm's mean, plus alpha sqrt(2 ln N / n of the arm)."""
    bonus = np.sqrt(2 * np.log(max(view.learned, 1)) / np.maximum(view.counts, 1))
    return first(view.masked + alpha * bonus)


def popularity(view: View) -> Floats:
    """MABWiser `Popularity`: in proportion to the expectations."""
    weight = np.where(view.eligible, np.maximum(view.scores, 1e-12), 0.0)
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


PEERS: tuple[Rule, ...] = (
    Rule("VW ε-greedy .05", "VW", lambda view: epsilon_greedy(view, 0.05)),
    Rule("VW ε-greedy .02", "VW", lambda view: epsilon_greedy(view, 0.02), "tuned"),
    Rule("VW softmax λ=1", "VW", lambda view: softmax(view, 1)),
    Rule("VW softmax λ=50", "VW", lambda view: softmax(view, 50), "tuned"),
    Rule("VW bag 5", "VW", lambda view: bag(view, 5)),
    Rule("VW cover 3", "VW", lambda view: cover(view, 3, 1.0)),
    Rule("VW cover 10 ψ=.1", "VW", lambda view: cover(view, 10, 0.1), "tuned"),
    Rule("VW RegCB elim", "VW", lambda view: reg_cb(view, 0.1, False)),
    Rule("VW RegCB opt", "VW", lambda view: reg_cb(view, 0.1, True)),
    Rule("VW RegCB elim c0=.001", "VW", lambda view: reg_cb(view, 0.001, False), "tuned"),
    Rule("VW SquareCB 10√t", "VW", lambda view: square_cb(view, 10)),
    Rule("VW SquareCB 100√t", "VW", lambda view: square_cb(view, 100), "tuned"),
    Rule("MABWiser ε .1", "MABWiser", lambda view: epsilon_greedy(view, 0.1)),
    Rule("MABWiser UCB1", "MABWiser", ucb1),
    Rule("MABWiser Popularity", "MABWiser", popularity),
    Rule("Eppo gamma 1", "Eppo", lambda view: eppo(view, 1)),
    Rule("Eppo gamma 1000", "Eppo", lambda view: eppo(view, 1000), "tuned"),
    Rule("router ε .05", "router", hedging),
)
REFERENCES: tuple[Rule, ...] = (
    Rule("greedy", "reference", greedy),
    Rule("uniform", "reference", uniform),
)
