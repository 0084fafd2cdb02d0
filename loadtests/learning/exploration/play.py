"""The protocol in batches, as in the product: each generation learns from the log of the previous ones.

A first small batch is uniform. After it the log doubles with each generation. At the end of each generation
the oracle of every rule is trained anew on the rule's own log, by the same code with the same settings.
Regret is the known expected value (1 - p of the label), so chance affects only what a rule logs. The random
numbers (order of rows, first batch, draw of each action) are common to all rules of a seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadtests.learning.exploration.datasets import Classes
from loadtests.learning.exploration.oracle import Recipe, Trained
from loadtests.learning.exploration.view import Floats, Ints, Rule, View

FIRST = 50


@dataclass(frozen=True)
class Played:
    """The results of one rule on one set with one seed.

    Attributes:
        regret: Mean expected regret of a decision after the first batch.
        last: Mean expected regret of a decision in the last generation.
        lowest: Least probability of a chosen action.
    """

    regret: float
    last: float
    lowest: float


def recipe(classes: Classes) -> Recipe:
    """Return the settings of the oracle, which were chosen on uniform logs of seed 1000 only."""
    return Recipe(
        context=["q"] * classes.rows.shape[1],
        action=["c"],
        actions=np.arange(classes.k, dtype=np.float32)[:, None],
    )


def generations(n: int, start: int = FIRST) -> list[tuple[int, int]]:
    """Return the bounds of the generations after the first batch. A short remainder joins the last one."""
    out, low = [], min(start, n)
    while low < n:
        high = 2 * low if 2 * low < 0.9 * n else n
        out.append((low, min(high, n)))
        low = out[-1][1]
    return out


def play(classes: Classes, rule: Rule, seed: int, start: int = FIRST) -> Played:
    """Play one rule through a set, in the order of its rows."""
    n, k, settings = len(classes.label), classes.k, recipe(classes)
    luck = np.random.default_rng([seed, 11]).random(n)
    action, reward = np.zeros(n, dtype=np.int64), np.zeros(n)
    regret, propensity = np.zeros(n), np.ones(n)
    state: dict[str, object] = {}
    pmf = np.full((min(start, n), k), 1 / k)
    for low, high in [(0, min(start, n)), *generations(n, start)]:
        if low:
            oracle = settings.train(classes.rows[:low], action[:low], reward[:low], seed=seed)
            pmf = rule.pmf(_view(classes, settings, oracle, action[:low], reward[:low], high, seed, state))
        _check(pmf, rule)
        part, label = slice(low, high), classes.label[low:high]
        at = np.arange(high - low)
        regret[part] = 1 - pmf[at, label]
        action[part] = drawn(pmf, luck[part])
        propensity[part] = pmf[at, action[part]]
        reward[part] = action[part] == label
    return Played(float(regret[start:].mean()), float(regret[low:].mean()), float(propensity.min()))


def drawn(pmf: Floats, luck: Floats) -> Ints:
    """Return `[n]` actions at the `[n]` points of the cumulative sums."""
    total = pmf.cumsum(axis=1)
    return np.asarray((total < luck[:, None] * total[:, -1:]).sum(axis=1).clip(0, pmf.shape[1] - 1))


def _view(
    classes: Classes,
    settings: Recipe,
    oracle: Trained,
    action: Ints,
    reward: Floats,
    high: int,
    seed: int,
    state: dict[str, object],
) -> View:
    low = len(action)
    known, asked = classes.rows[:low], classes.rows[low:high]

    def members(count: int) -> Floats:
        rng = np.random.default_rng([seed, low, 5])
        weights = [rng.poisson(1, low).astype(np.float64) for _ in range(count)]
        trained = [
            settings.train(known, action, reward, seed=seed + number, weights=weight)
            for number, weight in enumerate(weights)
        ]
        return np.stack([one.every(asked) for one in trained])

    def excess() -> float:
        half = np.random.default_rng([seed, low, 6]).random(low) < 0.5
        q = np.zeros(low)
        for own in (half, ~half):
            other = settings.train(known[~own], action[~own], reward[~own], seed=seed)
            q[own] = other.chosen(known[own], action[own])
        return beyond_noise(q, reward)

    eligible = np.ones((high - low, classes.k), dtype=bool)
    return View(
        scores=oracle.every(asked),
        eligible=eligible,
        learned=low,
        counts=np.bincount(action, minlength=classes.k),
        members=members,
        sensitivity=lambda: oracle.sensitivity(asked, eligible),
        excess=excess,
        state=state,
    )


def beyond_noise(q: Floats, reward: Floats) -> float:
    """Return the product's excess error: the Brier score beyond that after isotonic recalibration."""
    from scorer.learn.training.policies import excess_error

    brier, floor = excess_error(q, reward)
    return max(brier - floor, 1 / len(reward))


def _check(pmf: Floats, rule: Rule) -> None:
    """Check that a rule returns a distribution, because otherwise regret is not defined."""
    if not (np.abs(pmf.sum(axis=1) - 1).max() < 1e-6 and pmf.min() >= 0):
        raise ValueError(f"{rule.name} gives no distribution: least {pmf.min()}")
