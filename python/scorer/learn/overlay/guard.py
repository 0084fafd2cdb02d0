"""When an overlay is switched off: as soon as outcomes speak against it, at any moment one looks.

Two e-detectors (Shin, Ramdas, Rinaldo, "E-detectors", 2022) in the form of
CUSUMs of log e-values. With p₁ what the overlay says of an outcome and p₀ what
is said without it, 1 + v·(p₀/p₁ - 1) has expectation 1 while the overlay is
right, for every weight v in [0, 1] that does not look at the outcome beyond its
chance of being seen; so the product rarely grows large by luck: an overlay
that is right is switched off at most once in `harm` outcomes on average.
The same with p₁ and p₀ exchanged switches it on again. Log-loss is proper, so
worse calibration is harm like any other.

Outcomes come from actions that were chosen because the overlay puts them first,
so on average it says a little too much of just these (the winner's curse), and
what is said without it does not. Hence an allowance: so many nats an outcome
are no harm. It makes false alarms rarer still.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scorer.stats.arrays import Floats


@dataclass
class Guard:
    """Watches one overlay, or one part of it.

    Attributes:
        harm: evidence that switches off: the mean number of outcomes between false alarms.
        help: evidence that switches on again.
        allowance: nats of harm an outcome that are let pass.
        on: whether it may be served.
        against: log evidence that it harms, since it last spoke for it.
        speaks_for: log evidence that it helps, likewise.
        switched: how often it was switched off.
    """

    harm: float = 1000.0
    help: float = 20.0
    allowance: float = 0.005
    on: bool = True
    against: float = 0.0
    speaks_for: float = 0.0
    switched: int = 0

    def watch(self, served: Floats, without: Floats, share: Floats) -> bool:
        """Takes outcomes in, in order.

        Args:
            served: `[m]` the probability of what happened with the overlay as it was before.
            without: `[m]` the same without it.
            share: `[m]` weights in [0, 1].

        Returns:
            Whether it may be served.
        """
        if len(served) == 0:
            return self.on
        self.against, worst = cusum(self.against, np.log1p(share * (without / served - 1)) - self.allowance)
        self.speaks_for, best = cusum(self.speaks_for, np.log1p(share * (served / without - 1)))
        if self.on and worst >= np.log(self.harm):
            self.on, self.against, self.speaks_for = False, 0.0, 0.0
            self.switched += 1
        elif not self.on and best >= np.log(self.help):
            self.on, self.against, self.speaks_for = True, 0.0, 0.0
        return self.on


def cusum(start: float, steps: Floats) -> tuple[float, float]:
    """Where max(0, ·) + step ends, and its highest value."""
    path = start + np.cumsum(steps)
    path = path - np.minimum(0.0, np.minimum.accumulate(path))
    return float(path[-1]), float(path.max())
