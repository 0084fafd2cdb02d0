"""Simple policies that learn from the same log as the bandit. Its advantage over them is due to its method.

Every policy has `pmf(contexts)`, which returns `[n, K]` probabilities over the actions. `FixedRanking` and
`IssuerLinear` are greedy. `examples.loop.rules.IssuerRules` is the kind of policy that a payment team
configures.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

from examples.oracle import SimpleOracle
from examples.simulators.actions import FACTORS, codes
from examples.simulators.payments import (
    DECLINES,
    DEVICES,
    ISSUER_NAMES,
    SCHEMES,
    Bools,
    Contexts,
    Floats,
    baseline_pmf,
)
from examples.simulators.task import context_rows
from scorer.learn.experience import Experience

# Positions of the columns of `examples.simulators.task.CONTEXT`.
AMOUNT, HOUR, ISSUER, SCHEME, DEVICE, DECLINE, ATTEMPTS, TOKEN, LOW_VALUE, RISK = (
    0,
    1,
    2,
    4,
    5,
    6,
    8,
    9,
    10,
    11,
)

_LEVELS = [len(values) for values in FACTORS.values()]
_FIRST_LEVEL = np.concatenate([[0], np.cumsum(_LEVELS)[:-1]])
LEVELS = sum(_LEVELS)
"""Number of values of all factors together."""


class Policy(Protocol):
    """A policy, which returns the probability of each action for a payment."""

    def pmf(self, given: Contexts) -> Floats:
        """Return `[n, K]` probabilities; 0 where not eligible."""


class Uniform:
    """Every eligible action with the same probability, as a lower reference."""

    def pmf(self, given: Contexts) -> Floats:
        """Return `[n, K]` probabilities."""
        mask = given.eligible()
        return np.asarray(mask / mask.sum(axis=1, keepdims=True))


class Baseline:
    """The baseline's rule with its share of uniform exploration: the policy of the first log."""

    def pmf(self, given: Contexts) -> Floats:
        """Return `[n, K]` probabilities."""
        return baseline_pmf(given)


class Greedy:
    """The eligible action with the highest prediction of an oracle: the bandit without its exploration.

    Args:
        oracle: The oracle of the bandit's policy.
    """

    def __init__(self, oracle: SimpleOracle) -> None:
        self._oracle = oracle

    def pmf(self, given: Contexts) -> Floats:
        """Return `[n, K]` 1 for the highest eligible prediction."""
        return greedy(
            np.asarray(self._oracle.predict(context_rows(given)), dtype=np.float64), given.eligible()
        )


class FixedRanking:
    """One order of the actions for every payment, by each action's smoothed mean reward in the log.

    Args:
        log: Decisions; those without an outcome are not used.
        prior: Number of prior payments with the overall mean, for each action's mean.
    """

    def __init__(self, log: Experience, prior: float = 50.0) -> None:
        known = log.settled()
        actions, overall = len(codes()), float(known.reward.mean())
        count = np.bincount(known.action, minlength=actions)
        total = np.bincount(known.action, known.reward, minlength=actions)
        self.value: Floats = (total + prior * overall) / (count + prior)

    def pmf(self, given: Contexts) -> Floats:
        """Return `[n, K]` 1 for the highest eligible action of the ranking."""
        return greedy(np.broadcast_to(self.value, (len(given), len(self.value))), given.eligible())


class IssuerLinear:
    """Logistic regression on issuer x factor level, with the other context columns as main effects.

    It is the maximum a posteriori under normal priors on the log-odds: standard deviation `spread` for each
    coefficient and `within` for an issuer's deviation. It has about 200 coefficients, no trees, and no
    interactions beyond issuer x factor.

    Args:
        log: Decisions; those without an outcome are not used.
        spread: Prior standard deviation of the context's and the levels' effects.
        within: Prior standard deviation of an issuer's deviation from a level's effect.
        steps: Largest number of Newton steps.
    """

    def __init__(self, log: Experience, spread: float = 0.25, within: float = 0.5, steps: int = 8) -> None:
        known = log.settled()
        rows, reward = known.context, known.reward
        x = sparse.hstack([context_effects(rows), action_effects(rows, known.action)], format="csr")
        deviation = np.full(x.shape[1], spread)
        deviation[-len(ISSUER_NAMES) * LEVELS :] = within
        # The intercept is practically unpenalised.
        deviation[0] = 10.0
        beta = np.zeros(x.shape[1])
        for _ in range(steps):
            p = 1 / (1 + np.exp(-(x @ beta)))
            gradient = x.T @ (reward - p) - beta / deviation**2
            hessian = (x.T @ x.multiply((p * (1 - p))[:, None])).toarray() + np.diag(1 / deviation**2)
            step = np.linalg.solve(hessian, gradient)
            beta = beta + step
            if float(np.abs(step).max()) < 1e-3:
                break
        split = CONTEXT_EFFECTS
        self._context = beta[:split]
        levels = beta[split : split + LEVELS]
        own = beta[split + LEVELS :].reshape(len(ISSUER_NAMES), LEVELS)
        of_action = codes() + _FIRST_LEVEL
        # `[issuers, K]`, without the context's effect, which is the same for every action.
        self._table = np.stack([(levels + issuer)[of_action].sum(axis=1) for issuer in own])

    def probability(self, rows: npt.NDArray[np.floating[Any]]) -> Floats:
        """Return `[n, K]` P(authorised) of every action, eligible or not.

        Args:
            rows: `[n, 12]` contexts in the order of `examples.simulators.task.CONTEXT`.
        """
        odds = (context_effects(rows) @ self._context)[:, None] + self._table[
            rows[:, ISSUER].astype(np.int64)
        ]
        return np.asarray(1 / (1 + np.exp(-odds)))

    def pmf(self, given: Contexts) -> Floats:
        """Return `[n, K]` 1 for the eligible action with the highest probability."""
        return greedy(self.probability(context_rows(given)), given.eligible())


def greedy(value: Floats, eligible: Bools) -> Floats:
    """Return `[n, K]` 1 for the eligible action with the highest value, the first of equal ones."""
    chosen = np.where(eligible, value, -np.inf).argmax(axis=1)
    pmf = np.zeros(eligible.shape)
    pmf[np.arange(len(pmf)), chosen] = 1.0
    return pmf


def context_effects(rows: npt.NDArray[np.floating[Any]]) -> Floats:
    """Return `[n, effects]`: intercept, numbers in comparable units, categories one-hot."""
    one_hot = [
        np.eye(len(names))[rows[:, column].astype(np.int64)]
        for column, names in (
            (ISSUER, ISSUER_NAMES),
            (SCHEME, SCHEMES),
            (DEVICE, DEVICES),
            (DECLINE, DECLINES),
        )
    ]
    numbers = [
        np.ones(len(rows)),
        np.log1p(rows[:, AMOUNT] / 100),
        rows[:, HOUR] <= 6,
        rows[:, ATTEMPTS],
        rows[:, TOKEN],
        rows[:, LOW_VALUE] / 4,
        2 * rows[:, RISK],
    ]
    return np.asarray(np.column_stack([*numbers, *one_hot]), dtype=np.float64)


CONTEXT_EFFECTS = 7 + len(ISSUER_NAMES) + len(SCHEMES) + len(DEVICES) + len(DECLINES)
"""Number of columns of `context_effects`."""


def action_effects(rows: npt.NDArray[np.floating[Any]], action: npt.NDArray[np.int64]) -> sparse.csr_matrix:
    """Return `[n, LEVELS + issuers * LEVELS]`: the chosen action's levels, alone and within the issuer."""
    level = (codes() + _FIRST_LEVEL)[action]
    within = LEVELS + rows[:, ISSUER].astype(np.int64)[:, None] * LEVELS + level
    columns = np.concatenate([level, within], axis=1)
    starts = np.arange(0, columns.size + 1, columns.shape[1])
    shape = (len(rows), LEVELS * (1 + len(ISSUER_NAMES)))
    return sparse.csr_matrix((np.ones(columns.size), columns.ravel(), starts), shape=shape)
