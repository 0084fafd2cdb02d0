"""Comparison of one rule with the best of its peers on the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.learning.exploration.view import Floats


@dataclass(frozen=True)
class Compared:
    """Mean regret of our rule, and of the peer whose mean is lowest on the same seeds.

    The peer is chosen with hindsight among default and tuned settings, which favours the peers.

    Attributes:
        ours: Our mean over seeds.
        best: Name of the peer.
        theirs: Its mean over seeds.
        low: Lower end of the 95 % interval of the mean difference ours - theirs.
        high: Upper end of that interval.
    """

    ours: float
    best: str
    theirs: float
    low: float
    high: float

    @classmethod
    def of(cls, regret: Mapping[str, Floats], ours: str, peers: Sequence[str]) -> Compared:
        """Compare the rule `ours` with the best of `peers`.

        Args:
            regret: `[seeds]` regret of every rule.
            ours: Name of our rule.
            peers: Names of the peers' rules.
        """
        best = min(peers, key=lambda name: float(regret[name].mean()))
        low, high = paired_interval(regret[ours] - regret[best])
        return cls(float(regret[ours].mean()), best, float(regret[best].mean()), low, high)

    def note(self, seeds: int) -> str:
        """Return the text of the interval for the note of a figure."""
        return f"ours - theirs {self.low:+.4f} to {self.high:+.4f} (95 %, paired over {seeds} seeds)"


def paired_interval(difference: Floats, resamples: int = 4000) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of `[seeds]` paired differences."""
    rng = np.random.default_rng(2026)
    picked = difference[rng.integers(0, len(difference), (resamples, len(difference)))].mean(axis=1)
    low, high = np.quantile(picked, [0.025, 0.975])
    return float(low), float(high)
