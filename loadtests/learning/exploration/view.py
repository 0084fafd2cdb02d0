"""What an exploration rule is given, and what a rule is."""

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
    """One generation's decisions as every rule sees them.

    Attributes:
        scores: `[n, K]` the oracle's P(reward), the same code for every rule, trained on the rule's own log.
        eligible: `[n, K]`.
        learned: how many outcomes the oracle learned from.
        counts: `[K]` how often each action was chosen among them.
        members: makes `[B, n, K]` scores of B boosters, trained like the oracle with Poisson(1) weights.
        sensitivity: makes `[n, K]`: how far one more outcome would move a score's log-odds.
        excess: makes the oracle's measured out-of-fold error beyond noise.
        state: what the rule itself keeps from one generation to the next.
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
        """`[n, 1]` how many actions are eligible."""
        return np.asarray(self.eligible.sum(axis=1, keepdims=True))

    @property
    def best(self) -> Floats:
        """`[n, 1]` the best eligible action's score."""
        return np.asarray(self.masked.max(axis=1, keepdims=True))

    @property
    def masked(self) -> Floats:
        """`[n, K]` scores, minus infinity where not eligible."""
        return np.where(self.eligible, self.scores, -np.inf)


@dataclass(frozen=True)
class Rule:
    """One way to explore.

    Attributes:
        name: as tables show it.
        family: whose it is: `ours`, `VW`, `MABWiser`, `Eppo`, `router` or `reference`.
        pmf: a view to `[n, K]` probabilities.
        setting: which setting this is: `default` as the peer ships it, or `tuned` (docs/exploration.md).
    """

    name: str
    family: str
    pmf: Callable[[View], Floats]
    setting: str = "default"


def only(mask: Bools) -> Floats:
    """`[n, K]` evenly over the marked actions."""
    return np.asarray(mask / mask.sum(axis=1, keepdims=True))


def first(values: Floats) -> Floats:
    """`[n, K]` all on the highest value, the first of them at a tie."""
    out = np.zeros(values.shape)
    out[np.arange(len(values)), values.argmax(axis=1)] = 1.0
    return out
