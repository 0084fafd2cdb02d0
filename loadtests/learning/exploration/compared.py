"""One rule beside the best of its peers, on the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.learning.exploration.view import Floats


@dataclass(frozen=True)
class Compared:
    """Mean regret of ours beside the peer whose mean is lowest on these very seeds.

    That peer is chosen with hindsight, among defaults and tuned settings, which favours the peers.

    Attributes:
        ours: mean over seeds.
        best: the peer's name.
        theirs: its mean.
        low, high: of the mean difference ours - theirs, 95 %.
    """

    ours: float
    best: str
    theirs: float
    low: float
    high: float

    @classmethod
    def of(cls, regret: Mapping[str, Floats], ours: str, peers: Sequence[str]) -> Compared:
        """From `[seeds]` of every rule."""
        best = min(peers, key=lambda name: float(regret[name].mean()))
        low, high = paired_interval(regret[ours] - regret[best])
        return cls(float(regret[ours].mean()), best, float(regret[best].mean()), low, high)

    def note(self, seeds: int) -> str:
        """For the figure."""
        return f"ours - theirs {self.low:+.4f} to {self.high:+.4f} (95 %, paired over {seeds} seeds)"


def paired_interval(difference: Floats, resamples: int = 4000) -> tuple[float, float]:
    """Percentile bootstrap of the mean of `[seeds]` paired differences, 95 %."""
    rng = np.random.default_rng(2026)
    picked = difference[rng.integers(0, len(difference), (resamples, len(difference)))].mean(axis=1)
    low, high = np.quantile(picked, [0.025, 0.975])
    return float(low), float(high)
