"""A simulated world of card payments: who pays, what was chosen, whether it was authorised.

The world's parameters are drawn once from a fixed seed and never tuned; the
traffic in it (contexts, choices, outcomes) has seeds of its own. Policies see
contexts and outcomes only; `Payments.probability` is the hidden truth that a
judge may use. docs/simulators.md states the formulas.
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

# The world is this one; another number is another world, and the figures of the demo change with it.
WORLD_SEED = 20_260_101

COUNTRIES = ("NL", "DE", "FR", "ES", "GB", "US", "BR")
SCHEMES = ("visa", "mastercard", "amex")
DEVICES = ("app", "browser")
DECLINES = ("none", "soft", "hard")

# (country, share of cards, takes part in 3DS); one row per issuing bank.
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
    """What is known of `n` payments before an action is chosen; every column is `[n]`.

    Attributes:
        amount: EUR.
        hour: hour of the day, 0 to 23.
        issuer: position in `ISSUER_NAMES`.
        scheme: position in `SCHEMES`.
        device: position in `DEVICES`.
        last_decline: position in `DECLINES`: how the attempt before this one failed.
        earlier_attempts: failed attempts of the same payment in the last 24 hours.
        has_token: the card has a network token.
        low_value_count: low-value payments since the card was last authenticated.
        risk: fraud score of the payment, 0 to 1.
        chance: uniform draws that settle the outcome, one per payment. The
            same draw serves whichever action is chosen (common random
            numbers), so that policies compare on equal luck. Not a feature.
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
        """Position in `COUNTRIES`: where the card was issued."""
        return _IN_COUNTRY[self.issuer]

    def take(self, rows: npt.NDArray[np.intp] | slice) -> Contexts:
        """The payments at `rows`."""
        return Contexts(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})

    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """Every column by name, categories as text, with what the rules derive."""
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
        """`[n, actions]`: which actions each payment may use."""
        return actions.eligible(self.columns())


def contexts(transactions: Transactions, risk: npt.NDArray[np.floating[Any]], seed: int) -> Contexts:
    """Makes a payment of every transaction.

    Amount and hour are the transaction's; the card's issuer, scheme, token and
    device belong to the customer and stay the same in every call; the rest is
    drawn for each payment.

    Args:
        transactions: the stream.
        risk: `[n]` fraud scores, 0 to 1.
        seed: of the draws per payment.
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


def cards(customers: int, seed: int = WORLD_SEED) -> dict[str, npt.NDArray[Any]]:
    """Each customer's card, by column. A stream per column: a card must not depend on how many there are."""

    def stream(which: int) -> Floats:
        return np.random.default_rng([seed, which]).random(customers)

    shares = np.cumsum([share for _, share, _ in ISSUERS])
    return {
        "issuer": np.searchsorted(shares / shares[-1], stream(1), side="right"),
        "scheme": np.searchsorted([0.50, 0.92], stream(2), side="right"),
        "token": stream(3) < 0.80,
        "app": stream(4),
    }


@dataclass(frozen=True)
class World:
    """The hidden truth's parameters; effects are on the log-odds of an authorisation.

    Attributes:
        base: `[issuers]`.
        three_ds: `[issuers, 3]`: how an issuer takes each kind of authentication.
        exemption: `[issuers, 3]`.
        route: `[issuers, 4]`.
        scheme_route: `[schemes, 4]`.
        message: `[issuers, 3]`.
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
        """Draws the parameters; every policy faces the same ones."""
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
    """An addition to the log-odds of every action."""

    def odds(self, given: Contexts) -> Floats:
        """`[n, K]` to add."""


class Payments:
    """The authorisation environment.

    It never says what would have happened except through `probability`, which
    is for judging; learning uses `contexts`, `Contexts.eligible`, `logged`
    and `authorised`.
    """

    def __init__(self, seed: int = WORLD_SEED) -> None:
        self._world = World.draw(seed)
        self._effect: OddsEffect | None = None

    @classmethod
    def of(cls, world: World, effect: OddsEffect | None = None) -> Payments:
        """Return the environment with these parameters.

        Args:
            world: the parameters.
            effect: what is added to the log-odds of every action; None: nothing.
        """
        payments = cls.__new__(cls)
        payments._world, payments._effect = world, effect
        return payments

    def probability(self, given: Contexts) -> Floats:
        """The hidden truth: `[n, actions]` P(authorised | context, action), eligible or not."""
        world, table = self._world, actions.codes()
        three_ds, exemption, route, retry, message = table.T
        issuer, risk = given.issuer[:, None], given.risk[:, None]
        size = np.log1p(given.amount / 100.0)[:, None]
        night = (given.hour <= 6)[:, None]
        again = (given.last_decline > 0)[:, None]
        app = (given.device == 0)[:, None]
        attempts = given.earlier_attempts[:, None]

        # What authentication takes off the issuer's doubts about risk and amount.
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

        # Shoppers give up on challenges, less so in an app and for larger amounts.
        completes = _sigmoid(1.9 + 0.7 * app + 0.3 * size)
        challenged = np.where(
            three_ds == 2,
            1.0,
            np.where(three_ds == 1, np.minimum(1.0, world.step_up[issuer] + 0.8 * risk), 0.0),
        )
        reaches = 1 - challenged * (1 - completes)

        # Without authentication the issuer may ask for it: a soft decline, lost unless retried.
        soft = np.where(three_ds == 0, _sigmoid(world.soft[issuer] + 0.8 * size + 1.5 * risk), 0.02)
        saved = retry * world.recovery[issuer] * completes * np.maximum(0.0, 1 - 0.15 * attempts)
        return np.asarray(reaches * approved * (1 - soft + soft * saved), dtype=np.float64)

    def authorised(self, given: Contexts, chosen: Ints) -> Ints:
        """`[n]` 1 where the payment was authorised with the action chosen for it."""
        truth = self.probability(given)[np.arange(len(given)), chosen]
        return (given.chance < truth).astype(np.int64)

    def best(self, given: Contexts) -> Floats:
        """`[n]` the highest probability among each payment's eligible actions: the ceiling for any policy."""
        return np.asarray(np.where(given.eligible(), self.probability(given), -1.0).max(axis=1))


# The rank of what may not be chosen, above all others.
NEVER = 10_000


def baseline_rule(given: Contexts) -> Ints:
    """`[n]` the action a careful payment team would fix by hand.

    Prefer no authentication where an exemption is allowed, else a
    frictionless request, else a challenge, else plain; one route per scheme
    (the next one where it may not be used); a retry after a soft decline
    wherever allowed; a plain message.
    """
    return np.asarray(baseline_rank(given).argmin(axis=1))


def baseline_rank(given: Contexts) -> Ints:
    """`[n, actions]` the payment team's order of preference, lowest first; `NEVER` where not eligible."""
    mask = given.eligible()
    three_ds, exemption, route, retry, message = actions.codes().T
    # Lower is preferred; the factors' order of importance is the order of the digits.
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
    """Payments with the baseline's choices: what a system has before it learns.

    Attributes:
        contexts: what was known.
        action: `[n]` what was chosen.
        propensity: `[n]` with which probability.
        authorised: `[n]` 1 where it worked.
    """

    contexts: Contexts
    action: Ints
    propensity: Floats
    authorised: Ints

    def __len__(self) -> int:
        return len(self.action)


# The share of payments on which the baseline tries something else, evenly over what is eligible.
BASELINE_EXPLORATION = 0.2


def baseline_pmf(given: Contexts, exploration: float = BASELINE_EXPLORATION) -> Floats:
    """`[n, actions]` with which probability the baseline chooses each action."""
    mask = given.eligible()
    pmf = np.asarray(exploration * mask / mask.sum(axis=1, keepdims=True), dtype=np.float64)
    pmf[np.arange(len(given)), baseline_rule(given)] += 1 - exploration
    return pmf


def log_baseline(world: Payments, given: Contexts, seed: int) -> Logged:
    """Runs the baseline over payments and logs what it did."""
    rng = np.random.default_rng([seed, WORLD_SEED + 1])
    rows = np.arange(len(given))
    chosen, propensity = [], []
    # In blocks: the probabilities of all actions for every payment would not fit small machines.
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
    """`[n]` one action per row of `pmf`, never one with probability 0."""
    reached = np.cumsum(pmf, axis=1)
    chosen = (reached <= (chance * reached[:, -1])[:, None]).sum(axis=1)
    return np.asarray(chosen, dtype=np.int64)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))
