"""What training and validation read of decisions, whether they are in memory or in files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy.typing as npt

from scorer.stats.arrays import Bools, Floats, Ints, Rows32

if TYPE_CHECKING:
    from scorer.learn.experience import Texts


@dataclass(frozen=True)
class DecisionBlock:
    """Some consecutive decisions in memory, with their contexts.

    Attributes:
        context: `[n, context columns]`.
        eligible: `[n, K]`.
        action: `[n]` position in the catalogue.
        propensity: `[n]`.
        reward: `[n]` 0 or 1; NaN unless settled.
    """

    context: Rows32
    eligible: Bools
    action: Ints
    propensity: Floats
    reward: Floats

    def __len__(self) -> int:
        return len(self.action)


class DecisionRows(Protocol):
    """`n` decisions over a catalogue of `K` actions, in order of time.

    Columns of one value per decision are arrays. Contexts and eligible actions are read with `blocks`.
    """

    @property
    def time_ms(self) -> Ints:
        """`[n]` when it was decided, Unix time."""
        ...

    @property
    def settled_ms(self) -> Ints:
        """`[n]` when its reward became known; -1 where it is not."""
        ...

    @property
    def action(self) -> Ints:
        """`[n]` position in the catalogue."""
        ...

    @property
    def propensity(self) -> Floats:
        """`[n]` the probability of `action` when it was drawn."""
        ...

    @property
    def reward(self) -> Floats:
        """`[n]` 0 or 1; NaN unless settled."""
        ...

    @property
    def state(self) -> npt.NDArray[Any]:
        """`[n]` whether its outcome is known, as a `State`."""
        ...

    @property
    def eligible_count(self) -> Ints:
        """`[n]` number of eligible actions."""
        ...

    @property
    def took_eligible(self) -> Bools:
        """`[n]` whether the action taken was eligible."""
        ...

    @property
    def actions(self) -> tuple[str, ...]:
        """The ids of the catalogue's actions."""
        ...

    @property
    def bundles(self) -> tuple[str, ...]:
        """Digests of the bundles that decided."""
        ...

    @property
    def context_columns(self) -> int:
        """Number of the context's columns."""
        ...

    def __len__(self) -> int: ...

    def take(self, rows: slice | npt.NDArray[Any]) -> Self:
        """Return the decisions at `rows`: a mask, ascending indices or a slice."""
        ...

    def settled(self) -> Self:
        """Return the decisions whose reward is known."""
        ...

    def between(self, start_ms: int, end_ms: int) -> Self:
        """Return the decisions of `[start_ms, end_ms)`."""
        ...

    def blocks(self, most: int) -> Iterator[DecisionBlock]:
        """Yield all decisions in order, at most `most` at a time."""
        ...

    def names(self) -> Iterator[Texts]:
        """Yield the shopper of each decision in order, or the decision's id where there is none."""
        ...

    def contexts(self) -> Rows32:
        """Return contexts as reference data: all, or an evenly spaced sample where they are in files."""
        ...

    def digest(self) -> str:
        """Return `sha256:<hex>` of the data."""
        ...
