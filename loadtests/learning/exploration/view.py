"""The inputs of an exploration rule, and the rule itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class View:
    """The decisions of one generation, as input of an exploration rule.

    Attributes:
        scores: `[n, K]` P(reward) of the oracle, which the same code trains for every rule on the rule's own
            log.
        eligible: `[n, K]` whether an action is eligible.
        learned: Number of outcomes that the oracle was trained on.
        counts: `[K]` how often each action was chosen among them.
        members: Returns `[B, n, K]` scores of B boosters, trained like the oracle with Poisson(1) weights.
        sensitivity: Returns `[n, K]` the change of a score's log-odds by one more outcome.
        excess: Returns the oracle's measured out-of-fold error beyond noise.
        state: Values that the rule itself keeps from one generation to the next.
    """

    scores: Floats
    eligible: Bools
    learned: int
    counts: Ints
    members: Callable[[int], Floats] = field(repr=False)
    sensitivity: Callable[[], Floats] = field(repr=False)
    excess: Callable[[], float] = field(repr=False)
    state: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def k(self) -> Ints:
        """`[n, 1]` number of eligible actions."""
        return np.asarray(self.eligible.sum(axis=1, keepdims=True))

    @property
    def best(self) -> Floats:
        """`[n, 1]` score of the best eligible action."""
        return np.asarray(self.masked.max(axis=1, keepdims=True))

    @property
    def masked(self) -> Floats:
        """`[n, K]` scores; minus infinity for ineligible actions."""
        return np.where(self.eligible, self.scores, -np.inf)


@dataclass(frozen=True)
class Rule:
    """An exploration rule.

    Attributes:
        name: Name in tables.
        family: Its origin: `ours`, `VW`, `MABWiser`, `Eppo`, `router` or `reference`.
        pmf: Returns `[n, K]` probabilities for a view.
        setting: `default` if the peer ships this setting, or `tuned` (docs/exploration.md).
    """

    name: str
    family: str
    pmf: Callable[[View], Floats]
    setting: str = "default"


def only(mask: Bools) -> Floats:
    """Return `[n, K]` probabilities that are equal for all marked actions."""
    return np.asarray(mask / mask.sum(axis=1, keepdims=True))


def first(values: Floats) -> Floats:
    """Return `[n, K]` probability 1 for the highest value, for the first one if several are equal."""
    out = np.zeros(values.shape)
    out[np.arange(len(values)), values.argmax(axis=1)] = 1.0
    return out
