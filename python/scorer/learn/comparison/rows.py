"""The decisions of a comparison in arrays, the same for score and action checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scorer.learn.comparison.weeks import Week
from scorer.stats.arrays import Bools, Floats, Ints

Advance = Callable[[str, float], None]
"""Receives the name of a step and the share of it that is done."""


@dataclass(frozen=True)
class ComparedRows:
    """`n` decisions of settled weeks with labels, and what `v` versions make of them.

    Attributes:
        time_us: `[n]` when each was decided, microseconds since the Unix epoch.
        week: `[n]` position in `weeks`.
        outcome: `[n]` the label, 1 or 0; the reward of an action.
        weight: `[n]` number of decisions that it stands for.
        served: `[n]` position of the version that answered; -1: another one.
        stopped: `[n]` whether the recorded decision did not let the payment through.
        amount: `[n]` NaN where it is not known.
        values: `[v, n]` scores; of action versions doubly robust terms. NaN: the version cannot be evaluated.
        flags: `[v, n]` whether the version does not let the payment through; of actions False.
        ratios: `[v, n]` importance weights of action versions; else empty.
    """

    time_us: Ints
    week: Ints
    outcome: Floats
    weight: Floats
    served: Ints
    stopped: Bools
    amount: Floats
    values: Floats
    flags: Bools
    ratios: Floats

    def __len__(self) -> int:
        return len(self.time_us)

    def take(self, chosen: Bools | Ints) -> ComparedRows:
        """Return some of the decisions: a mask or indices."""
        return ComparedRows(
            self.time_us[chosen],
            self.week[chosen],
            self.outcome[chosen],
            self.weight[chosen],
            self.served[chosen],
            self.stopped[chosen],
            self.amount[chosen],
            self.values[:, chosen],
            self.flags[:, chosen],
            self.ratios[:, chosen] if self.ratios.size else self.ratios,
        )


@dataclass(frozen=True)
class Prepared:
    """What a comparison needs of the logs.

    Attributes:
        kind: Kind of the checkpoint's bundles, `score` or `action`.
        rows: The decisions.
        weeks: The weeks, settled or not.
        missing: Why a version has no values in a week, by the positions of both.
        left_out: Number of decisions that are not used, by reason.
        notes: Further remarks, in sentences.
    """

    kind: str
    rows: ComparedRows
    weeks: tuple[Week, ...]
    missing: Mapping[tuple[int, int], str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
