"""The actions that rules leave eligible on many rows, and the rules that exclude the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scorer.bundle.rules import RuleInfo


@dataclass(frozen=True)
class Exclusion:
    """Why an action is not eligible."""

    rule: str
    """Id of the rule that excludes it."""
    source: str
    """The regulation or agreement that the rule follows."""

    def __str__(self) -> str:
        """Return the rule with its source in one line."""
        return f"{self.rule} ({self.source})"


@dataclass(frozen=True)
class Eligibility:
    """What a rule set makes of `n` rows and `K` actions.

    It has an entry for each rule that removes actions from a row, in the order of rows and rules.
    """

    rules: tuple[RuleInfo, ...]
    """The rules of the set."""
    actions: int
    """Number of actions of the catalogue, `K`."""
    ends: npt.NDArray[np.uint32]
    """End of each row's entries, ``[n]``."""
    rule: npt.NDArray[np.uint16]
    """Position of each entry's rule in `rules`, ``[entries]``."""
    removed: npt.NDArray[np.uint8]
    """Actions that each entry removes, ``[entries, bytes]``; the first action is the lowest bit."""
    unknown: int = 0
    """Number of times that a rule did not fire because a value is missing."""
    errors: int = 0
    """Number of times that a rule did not fire because its condition has no value."""
    conflicts: int = 0
    """Number of times that rules of a group contradicted each other."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ends)

    @cached_property
    def row(self) -> npt.NDArray[np.int64]:
        """Row of each entry, ``[entries]``."""
        return np.repeat(np.arange(len(self)), self._counts)

    @cached_property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Whether the rules leave each action eligible, ``[n, K]``."""
        gone = np.zeros((len(self), self.removed.shape[1]), np.uint8)
        some = self._counts > 0
        if some.any():
            starts = (self.ends - self._counts)[some].astype(np.int64)
            gone[some] = np.bitwise_or.reduceat(self.removed, starts, axis=0)
        return np.asarray(np.unpackbits(gone, axis=1, count=self.actions, bitorder="little") == 0)

    def reasons(self, row: int, action: int) -> tuple[Exclusion, ...]:
        """Return the rules that exclude an action from a row; none if it is eligible.

        Args:
            row: Position of the row.
            action: Position of the action in the catalogue.
        """
        byte, bit = divmod(action, 8)
        found = []
        for entry in range(int(self.ends[row] - self._counts[row]), int(self.ends[row])):
            if self.removed[entry, byte] >> bit & 1:
                rule = self.rules[int(self.rule[entry])]
                found.append(Exclusion(rule.id, rule.source or ""))
        return tuple(found)

    def removals(self) -> Mapping[str, int]:
        """Return how many pairs of a row and an action each rule removes, alone or with others."""
        pairs = np.bitwise_count(self.removed).sum(axis=1)
        counts = np.bincount(self.rule, weights=pairs, minlength=len(self.rules))
        return {rule.id: int(count) for rule, count in zip(self.rules, counts, strict=True)}

    def removes_any(self, actions: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return whether each entry removes at least one of its row's given actions, ``[entries]``.

        Args:
            actions: Actions of each row, ``[n, K]``.
        """
        packed = np.packbits(actions, axis=1, bitorder="little")
        return np.asarray((packed[self.row] & self.removed).any(axis=1))

    @cached_property
    def _counts(self) -> npt.NDArray[np.uint32]:
        return np.diff(self.ends, prepend=np.uint32(0))
