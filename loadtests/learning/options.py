"""The options and the list of the parts of the learning benchmark."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Final

# The seeds of all parts. A part that needs fewer takes the first ones.
SEEDS: Final = tuple(range(1, 21))


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a measurement.

    Attributes:
        seeds: Seeds of all random numbers.
        quick: Whether a smaller run of the same code is made, for tests. Its figures have no meaning.
    """

    seeds: tuple[int, ...] = field(default=SEEDS)
    quick: bool = False


@dataclass(frozen=True)
class Part:
    """Figures that are measured together, by ``loadtests.learning.<name>.run(figures, options)``."""

    name: str
    about: str

    @property
    def module(self) -> str:
        """Name of the module that contains ``run``."""
        return f"loadtests.learning.{self.name}"


_PARTS: Final = (
    Part("estimators", "off-policy estimators beside Open Bandit Pipeline, and its published digits table"),
    Part("intervals", "coverage and width of intervals at authorisation rates .6, .9 and .96"),
    Part("peeking", "A/A tests that are read 200 times"),
    Part("sets", "regret of exploration rules on six supervised sets, every rule on the same oracle"),
    Part("payments", "regret of exploration rules on simulated payments, every rule on the same oracle"),
    Part("worlds", "regret beside the real Vowpal Wabbit online and a weekly linear model, in other worlds"),
    Part("generations", "value from one generation to the next over 26 weeks"),
    Part("shock", "an issuer declines one action family at noon: how long until most of it is won back"),
    Part("revisions", "a bundle's next revision: to make it, and to answer by it"),
    Part("caps", "caps on share and cost under their controller; invariants of every pmf"),
    Part("routing", "a real routing log: what each provider, and a capped policy, would have earned"),
)


def parts() -> dict[str, Part]:
    """Return the parts whose module exists, by name."""
    return {part.name: part for part in _PARTS if importlib.util.find_spec(part.module)}
