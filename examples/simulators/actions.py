"""The simulated payment actions, and the rules by which payments may use them.

Both are data. An action is one value per factor. A rule states that actions with certain factor values
require the payment to meet certain conditions. docs/simulators.md lists the rules with their sources.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]

FACTORS: Mapping[str, tuple[str, ...]] = {
    "three_ds": ("none", "frictionless", "challenge"),
    "exemption": ("none", "tra", "lvp"),
    "route": ("A", "B", "C", "D"),
    "retry": ("no", "soft_decline"),
    "message": ("plain", "address", "network_token"),
}

# Combinations that are not possible for any payment.
IMPOSSIBLE: tuple[Mapping[str, tuple[str, ...]], ...] = (
    # An exemption is a request not to challenge.
    {"three_ds": ("challenge",), "exemption": ("tra", "lvp")},
    # The low-value exemption is claimed in the authorisation, without 3DS.
    {"three_ds": ("frictionless",), "exemption": ("lvp",)},
    # Route D's fraud rate is too high for it to offer transaction risk analysis at any amount.
    {"route": ("D",), "exemption": ("tra",)},
)


@dataclass(frozen=True)
class Action:
    """One payment action.

    Attributes:
        id: The factors in order, `three_ds=none|exemption=tra|...`.
        factors: The value of each factor.
        codes: The position of each value in its factor, in the order of `FACTORS`. These are the action's
            features.
    """

    id: str
    factors: Mapping[str, str]
    codes: tuple[int, ...]


@cache
def catalogue() -> tuple[Action, ...]:
    """Return every possible action, in a fixed order."""
    actions = []
    for values in itertools.product(*FACTORS.values()):
        factors = dict(zip(FACTORS, values, strict=True))
        if any(_matches(factors, pattern) for pattern in IMPOSSIBLE):
            continue
        actions.append(
            Action(
                id="|".join(f"{name}={value}" for name, value in factors.items()),
                factors=factors,
                codes=tuple(FACTORS[name].index(value) for name, value in factors.items()),
            )
        )
    return tuple(actions)


@cache
def codes() -> npt.NDArray[np.int64]:
    """Return `[actions, factors]` the position of each action's value in each factor."""
    table = np.array([action.codes for action in catalogue()])
    table.setflags(write=False)
    return table


@dataclass(frozen=True)
class Rule:
    """Actions with these factor values require the payment to meet all of these conditions.

    Attributes:
        name: Name in reports.
        actions: The values of each factor to which the rule applies.
        needs: Conditions as (column of the context, comparison, value). The comparison is one of `<`, `<=`,
            `==`, `in`, `not in`.
        source: The source of the rule.
    """

    name: str
    actions: Mapping[str, tuple[str, ...]]
    needs: tuple[tuple[str, str, Any], ...]
    source: str


RULES: tuple[Rule, ...] = (
    Rule(
        "low value",
        {"exemption": ("lvp",)},
        (("amount", "<=", 30.0), ("low_value_count", "<", 5)),
        "PSD2 RTS (EU) 2018/389, Article 16: at most EUR 30, and five payments since the last authentication",
    ),
    *(
        Rule(
            f"risk analysis on route {route}",
            {"exemption": ("tra",), "route": (route,)},
            (("amount", "<=", limit), ("risk", "<", 0.5)),
            f"PSD2 RTS, Article 18 and Annex: EUR {limit:.0f} needs a fraud rate of at most {bps} basis"
            " points, and no sign of fraud on the payment itself",
        )
        for route, limit, bps in (("A", 500.0, 1), ("B", 250.0, 6), ("C", 100.0, 13))
    ),
    Rule(
        "nothing to exempt from",
        {"exemption": ("tra", "lvp")},
        (("sca_required", "==", True),),
        "PSD2 RTS, Article 2 and EBA Q&A 2018_4031: one-leg-out payments are outside the rule",
    ),
    Rule(
        "authentication is owed",
        {"three_ds": ("none",), "exemption": ("none",)},
        (("authentication_owed", "==", False),),
        "PSD2, Article 97(1): remote payments are authenticated unless exempt; owed if the issuer can do 3DS",
    ),
    Rule(
        "issuer cannot authenticate",
        {"three_ds": ("frictionless", "challenge")},
        (("issuer_3ds", "==", True),),
        "EMV 3-D Secure: the card range must be enrolled",
    ),
    Rule(
        "too risky without a challenge",
        {"three_ds": ("frictionless",)},
        (("risk", "<", 0.8),),
        "PSD2 RTS, Article 2(2): monitoring must be able to stop a payment that looks fraudulent",
    ),
    Rule(
        "scheme not on route B",
        {"route": ("B",)},
        (("scheme", "not in", ("amex",)),),
        "the simulated acquirer's contract",
    ),
    Rule(
        "country not on route D",
        {"route": ("D",)},
        (("country", "not in", ("US", "BR")),),
        "the simulated acquirer's licence",
    ),
    Rule(
        "no more retries",
        {"retry": ("soft_decline",)},
        (("last_decline", "not in", ("hard",)), ("earlier_attempts", "<", 10)),
        "Visa: category 1 declines are never retried; Mastercard: fees from the tenth decline in 24 hours",
    ),
    Rule(
        "no address check",
        {"message": ("address",)},
        (("country", "in", ("US", "BR")),),
        "address verification is a service of issuers in few countries; the list is simulated",
    ),
    Rule(
        "no network token",
        {"message": ("network_token",)},
        (("has_token", "==", True),),
        "EMV Payment Tokenisation: the card must have been provisioned",
    ),
)

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "in": np.isin,
    "not in": lambda column, values: ~np.isin(column, values),
}


def eligible(columns: Mapping[str, npt.NDArray[Any]], rules: tuple[Rule, ...] = RULES) -> Bools:
    """Return the actions that each payment may use.

    Args:
        columns: The context by column, `[n]` each; categories as text.
        rules: The rules to apply.

    Returns:
        `[n, actions]`, True where eligible.
    """
    rows = len(next(iter(columns.values())))
    mask = np.ones((rows, len(catalogue())), dtype=bool)
    for rule in rules:
        met = np.ones(rows, dtype=bool)
        for column, comparison, value in rule.needs:
            met &= _COMPARE[comparison](columns[column], value)
        concerned = np.array([_matches(action.factors, rule.actions) for action in catalogue()])
        mask &= met[:, None] | ~concerned[None, :]
    return mask


def _matches(factors: Mapping[str, str], pattern: Mapping[str, tuple[str, ...]]) -> bool:
    return all(factors[name] in values for name, values in pattern.items())
