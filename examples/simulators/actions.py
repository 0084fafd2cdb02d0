"""The simulated payment actions. An action is one value per factor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

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


def _matches(factors: Mapping[str, str], pattern: Mapping[str, tuple[str, ...]]) -> bool:
    return all(factors[name] in values for name, values in pattern.items())
