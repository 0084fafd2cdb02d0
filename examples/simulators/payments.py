"""A simulated world of card payments: shoppers, choices and authorisations.

The parameters of the world are drawn once from a fixed seed and are not tuned. The traffic (contexts,
choices, outcomes) has its own seeds. Policies use contexts and outcomes only. `Payments.probability` is the
hidden truth, which only evaluations may use. docs/simulators.md states the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from examples.fraud.transactions import DAY_MS, Transactions
from examples.simulators import actions

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Seed of the world. Another seed is another world and changes the figures of the demo.
WORLD_SEED = 20_260_101

COUNTRIES = ("NL", "DE", "FR", "ES", "GB", "US", "BR")
SCHEMES = ("visa", "mastercard", "amex")
DEVICES = ("app", "browser")
DECLINES = ("none", "soft", "hard")

# (country, share of cards, takes part in 3DS), one row per issuing bank.
ISSUERS: tuple[tuple[str, float, bool], ...] = (
    ("NL", 0.17, True),
    ("NL", 0.11, True),
    ("DE", 0.12, True),
    ("DE", 0.08, True),
    ("FR", 0.11, True),
    ("FR", 0.07, True),
    ("ES", 0.07, True),
    ("ES", 0.03, False),
    ("GB", 0.10, True),
    ("US", 0.06, True),
    ("US", 0.05, True),
    ("BR", 0.03, True),
)
ISSUER_NAMES = tuple(f"{country}-bank-{number}" for number, (country, _, _) in enumerate(ISSUERS))
SCA_COUNTRIES = frozenset({"NL", "DE", "FR", "ES", "GB"})

_IN_COUNTRY: Ints = np.array([COUNTRIES.index(country) for country, _, _ in ISSUERS])
_DOES_3DS: Bools = np.array([able for _, _, able in ISSUERS])
_NEEDS_SCA: Bools = np.array([country in SCA_COUNTRIES for country, _, _ in ISSUERS])


@dataclass(frozen=True)
class Contexts:
    """The known properties of `n` payments before an action is chosen. Every column is `[n]`.

    Attributes:
        amount: Amount, EUR.
        hour: Hour of the day, 0 to 23.
        issuer: Position in `ISSUER_NAMES`.
        scheme: Position in `SCHEMES`.
        device: Position in `DEVICES`.
        last_decline: How the previous attempt failed: position in `DECLINES`.
        earlier_attempts: Failed attempts of the same payment in the last 24 hours.
        has_token: Whether the card has a network token.
        low_value_count: Low-value payments since the last authentication of the card.
        risk: Fraud score of the payment, 0 to 1.
        chance: Uniform draws that determine the outcomes, one per payment. The same draw is used for every
            action (common random numbers), so that policies are compared under equal chance. It is not a
            feature.
    """

    amount: Floats
    hour: Ints
    issuer: Ints
    scheme: Ints
    device: Ints
    last_decline: Ints
    earlier_attempts: Ints
    has_token: Bools
    low_value_count: Ints
    risk: Floats
    chance: Floats = field(repr=False)

    def __len__(self) -> int:
        return len(self.amount)

    @cached_property
    def country(self) -> Ints:
        """Country in which the card was issued: position in `COUNTRIES`."""
        return _IN_COUNTRY[self.issuer]

    def take(self, rows: npt.NDArray[np.intp] | slice) -> Contexts:
        """Return the payments at `rows`."""
        return Contexts(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})

    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return every column by name, categories as text, including those that the rules derive."""
        issuer_3ds, sca_required = _DOES_3DS[self.issuer], _NEEDS_SCA[self.issuer]
        return {
            "amount": self.amount,
            "hour": self.hour,
            "issuer": np.array(ISSUER_NAMES)[self.issuer],
            "country": np.array(COUNTRIES)[self.country],
            "scheme": np.array(SCHEMES)[self.scheme],
            "device": np.array(DEVICES)[self.device],
            "last_decline": np.array(DECLINES)[self.last_decline],
            "is_retry": self.last_decline > 0,
            "earlier_attempts": self.earlier_attempts,
            "has_token": self.has_token,
            "low_value_count": self.low_value_count,
            "risk": self.risk,
            "issuer_3ds": issuer_3ds,
            "sca_required": sca_required,
            "authentication_owed": sca_required & issuer_3ds,
        }

    def eligible(self) -> Bools:
        """Return `[n, actions]` whether each payment may use each action."""
        # The rules read these payments as rows of the task, so their module imports this one.
        from examples.simulators.eligibility import eligible

        return eligible(self)


def contexts(transactions: Transactions, risk: npt.NDArray[np.floating[Any]], seed: int) -> Contexts:
    """Return one payment for every transaction.

    Amount and hour are those of the transaction. The card's issuer, scheme and token, and the customer's
    share of app payments, belong to the customer and are the same in every call. The other columns are drawn
    for each payment.

    Args:
        transactions: The transactions.
        risk: `[n]` fraud scores, 0 to 1.
        seed: Seed of the draws per payment.
    """
    n = len(transactions)
    card = cards(int(transactions.customer.max()) + 1)
    rng = np.random.default_rng([seed, WORLD_SEED])
    again = rng.random(n) < 0.12
    last_decline = np.where(again, np.where(rng.random(n) < 0.8, 1, 2), 0)
    return Contexts(
        amount=transactions.amount,
        hour=transactions.time_ms % DAY_MS // 3_600_000,
        issuer=card["issuer"][transactions.customer],
        scheme=card["scheme"][transactions.customer],
        device=np.where(rng.random(n) < card["app"][transactions.customer], 0, 1),
        last_decline=last_decline,
        earlier_attempts=np.where(again, np.minimum(rng.geometric(0.6, n), 12), 0),
        has_token=card["token"][transactions.customer],
        low_value_count=np.minimum(rng.geometric(0.35, n) - 1, 8),
        risk=np.asarray(risk, dtype=np.float64),
        chance=rng.random(n),
    )


def cards(
    customers: int, seed: int = WORLD_SEED, shares: npt.ArrayLike | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return each customer's card, by column. It does not depend on the number of customers.

    Args:
        customers: Number of customers.
        seed: Seed of the cards.
        shares: `[issuers]` share of the cards of each issuer; None: those of `ISSUERS`.
    """

    def stream(which: int) -> Floats:
        return np.random.default_rng([seed, which]).random(customers)

    up_to = np.cumsum([share for _, share, _ in ISSUERS] if shares is None else shares)
    return {
        "issuer": np.searchsorted(up_to / up_to[-1], stream(1), side="right"),
        "scheme": np.searchsorted([0.50, 0.92], stream(2), side="right"),
        "token": stream(3) < 0.80,
        "app": stream(4),
    }


@dataclass(frozen=True)
class World:
    """The parameters of the hidden truth. Effects are on the log-odds of an authorisation.

    Attributes:
        base: `[issuers]` intercepts.
        three_ds: `[issuers, 3]` effects of the kinds of authentication.
        exemption: `[issuers, 3]` effects of the exemptions.
        route: `[issuers, 4]` effects of the routes.
        scheme_route: `[schemes, 4]` effects of the routes for each scheme.
        message: `[issuers, 3]` effects of the message flags.
        soft: `[issuers]` log-odds of a soft decline without authentication.
        step_up: `[issuers]` probability that a frictionless request becomes a challenge.
        recovery: `[issuers]` share of soft declines that a retry recovers.
        retry_penalty: `[issuers]` cost of announcing a retry, on the log-odds.
    """

    base: Floats
    three_ds: Floats
    exemption: Floats
    route: Floats
    scheme_route: Floats
    message: Floats
    soft: Floats
    step_up: Floats
    recovery: Floats
    retry_penalty: Floats

    @staticmethod
    def draw(seed: int) -> World:
        """Draw the parameters. They are the same for every policy."""
        rng = np.random.default_rng(seed)
        issuers, sizes = len(ISSUERS), [len(values) for values in actions.FACTORS.values()]
        return World(
            base=rng.uniform(1.3, 2.3, issuers),
            three_ds=rng.normal(0, 0.6, (issuers, sizes[0])),
            exemption=rng.normal(0, 0.4, (issuers, sizes[1])),
            route=rng.normal(0, 0.5, (issuers, sizes[2])),
            scheme_route=rng.normal(0, 0.25, (len(SCHEMES), sizes[2])),
            message=rng.normal(0, 0.3, (issuers, sizes[4])),
            soft=rng.uniform(-3.2, -1.4, issuers),
            step_up=rng.uniform(0.05, 0.35, issuers),
            recovery=rng.uniform(0.3, 0.8, issuers),
            retry_penalty=rng.uniform(0.0, 0.5, issuers),
        )


class OddsEffect(Protocol):
    """An effect that is added to the log-odds of every action."""

    def odds(self, given: Contexts) -> Floats:
        """Return the `[n, K]` effects."""


class Payments:
    """The authorisation environment.

    It reveals the outcomes of other actions only through `probability`, which is for evaluation. Learning
    uses `contexts`, `Contexts.eligible`, `log_baseline` and `authorised`.
    """

    def __init__(self, seed: int = WORLD_SEED) -> None:
        self._world = World.draw(seed)
        self._effect: OddsEffect | None = None

    @classmethod
    def of(cls, world: World, effect: OddsEffect | None = None) -> Payments:
        """Return the environment with these parameters.

        Args:
            world: The parameters.
            effect: The effect that is added to the log-odds of every action; None: nothing.
        """
        payments = cls.__new__(cls)
        payments._world, payments._effect = world, effect
        return payments

    def probability(self, given: Contexts) -> Floats:
        """Return the hidden truth: `[n, actions]` P(authorised | context, action), eligible or not."""
        world, table = self._world, actions.codes()
        three_ds, exemption, route, retry, message = table.T
        issuer, risk = given.issuer[:, None], given.risk[:, None]
        size = np.log1p(given.amount / 100.0)[:, None]
        night = (given.hour <= 6)[:, None]
        again = (given.last_decline > 0)[:, None]
        app = (given.device == 0)[:, None]
        attempts = given.earlier_attempts[:, None]

        # The share by which authentication reduces the effects of risk, amount and night.
        trusted = np.array([0.0, 0.35, 0.7])[three_ds][None, :]
        odds = (
            world.base[issuer]
            + world.three_ds[issuer, three_ds]
            + world.exemption[issuer, exemption]
            + world.route[issuer, route]
            + world.scheme_route[given.scheme[:, None], route]
            + world.message[issuer, message]
            - (0.45 * size + 2.5 * risk + 0.3 * night) * (1 - trusted)
            - 0.5 * again
            - 0.15 * attempts
            - world.retry_penalty[issuer] * retry[None, :]
        )
        if self._effect is not None:
            odds = odds + self._effect.odds(given)
        approved = _sigmoid(odds)

        # Shoppers abandon challenges, less often in an app and for larger amounts.
        completes = _sigmoid(1.9 + 0.7 * app + 0.3 * size)
        challenged = np.where(
            three_ds == 2,
            1.0,
            np.where(three_ds == 1, np.minimum(1.0, world.step_up[issuer] + 0.8 * risk), 0.0),
        )
        reaches = 1 - challenged * (1 - completes)

        # Without authentication the issuer may ask for it. Such a soft decline is lost unless it is retried.
        soft = np.where(three_ds == 0, _sigmoid(world.soft[issuer] + 0.8 * size + 1.5 * risk), 0.02)
        saved = retry * world.recovery[issuer] * completes * np.maximum(0.0, 1 - 0.15 * attempts)
        return np.asarray(reaches * approved * (1 - soft + soft * saved), dtype=np.float64)

    def authorised(self, given: Contexts, chosen: Ints) -> Ints:
        """Return `[n]` 1 if the payment was authorised with the action chosen for it, else 0."""
        truth = self.probability(given)[np.arange(len(given)), chosen]
        return (given.chance < truth).astype(np.int64)

    def best(self, given: Contexts) -> Floats:
        """Return `[n]` the highest probability of an eligible action, which limits any policy."""
        return np.asarray(np.where(given.eligible(), self.probability(given), -1.0).max(axis=1))


# The rank of ineligible actions, above all others.
NEVER = 10_000


def baseline_rule(given: Contexts) -> Ints:
    """Return `[n]` the action that a payment team could configure by hand.

    The rule takes the first eligible of: low-value exemption, risk-analysis exemption, no 3DS, frictionless,
    frictionless with exemption, challenge. Each scheme has a route, and the next one is used if that is not
    eligible. A retry in case of a soft decline is used if it is eligible. The message is plain.
    """
    return np.asarray(baseline_rank(given).argmin(axis=1))


def baseline_rank(given: Contexts) -> Ints:
    """Return `[n, actions]` the rule's order of preference, lowest first; `NEVER` where not eligible."""
    mask = given.eligible()
    three_ds, exemption, route, retry, message = actions.codes().T
    # Lower is preferred. Each factor has its own decimal digits, in order of importance.
    friction = np.select(
        [
            (three_ds == 0) & (exemption == 2),
            (three_ds == 0) & (exemption == 1),
            (three_ds == 0),
            three_ds == 1,
        ],
        [0, 1, 2, 3],
        default=5,
    )
    friction = np.where((three_ds == 1) & (exemption == 1), 4, friction)
    away = (route[None, :] - np.array([0, 1, 2])[given.scheme][:, None]) % 4
    rank = friction[None, :] * 1000 + away * 100 + ((1 - retry) * 10 + message)[None, :]
    return np.asarray(np.where(mask, rank, NEVER))


@dataclass(frozen=True)
class Logged:
    """Payments with the baseline's choices, which a system has before it learns.

    Attributes:
        contexts: The known properties of the payments.
        action: `[n]` chosen actions.
        propensity: `[n]` probabilities with which they were chosen.
        authorised: `[n]` 1 if the payment was authorised, else 0.
    """

    contexts: Contexts
    action: Ints
    propensity: Floats
    authorised: Ints

    def __len__(self) -> int:
        return len(self.action)


# The share of payments for which the baseline chooses uniformly among the eligible actions.
BASELINE_EXPLORATION = 0.2


def baseline_pmf(given: Contexts, exploration: float = BASELINE_EXPLORATION) -> Floats:
    """Return `[n, actions]` the probability with which the baseline chooses each action."""
    mask = given.eligible()
    pmf = np.asarray(exploration * mask / mask.sum(axis=1, keepdims=True), dtype=np.float64)
    pmf[np.arange(len(given)), baseline_rule(given)] += 1 - exploration
    return pmf


def log_baseline(world: Payments, given: Contexts, seed: int) -> Logged:
    """Run the baseline on payments and return its decisions with their outcomes."""
    rng = np.random.default_rng([seed, WORLD_SEED + 1])
    rows = np.arange(len(given))
    chosen, propensity = [], []
    # In blocks, because the probabilities of all actions for all payments would not fit into small machines.
    for block in np.array_split(rows, max(1, len(rows) // 8192)):
        pmf = baseline_pmf(given.take(block))
        chosen.append(draw(pmf, rng.random(len(block))))
        propensity.append(pmf[np.arange(len(block)), chosen[-1]])
    action = np.concatenate(chosen)
    worked = [
        world.authorised(given.take(block), action[block])
        for block in np.array_split(rows, max(1, len(rows) // 8192))
    ]
    return Logged(
        contexts=given,
        action=action,
        propensity=np.concatenate(propensity),
        authorised=np.concatenate(worked),
    )


def draw(pmf: Floats, chance: Floats) -> Ints:
    """Return `[n]` one action per row of `pmf`, never one with probability 0."""
    reached = np.cumsum(pmf, axis=1)
    chosen = (reached <= (chance * reached[:, -1])[:, None]).sum(axis=1)
    return np.asarray(chosen, dtype=np.int64)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))
