"""Whether a log can carry an estimate at all: shown beside every one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scorer.learn.ope.logged import Target
from scorer.stats.means import effective_sample_size

# Below, an interval's own coverage is in doubt (measured: docs/off-policy.md).
FEWEST_EFFECTIVE_ROWS = 50


@dataclass(frozen=True)
class Diagnostics:
    """Of one target on one log.

    Attributes:
        rows: evaluated on.
        mean_weight: 1 where propensities and support are right.
        mean_weight_error: its standard error.
        effective_rows: (sum w)^2 / sum w^2.
        largest_weight: of a row.
        outside: share of the target's probability on actions that the log could not have taken.
        outside_rows: rows with any such probability above 1e-6.
        clipped: share of rows whose weight is above the limit asked about.
        limit: that limit.
        excluded: reason to number of rows left out.
    """

    rows: int
    mean_weight: float
    mean_weight_error: float
    effective_rows: float
    largest_weight: float
    outside: float
    outside_rows: int
    clipped: float
    limit: float
    excluded: Mapping[str, int]

    def warnings(self) -> list[str]:
        """What a reader must know before believing the estimate; empty when all is well."""
        found = []
        expected = 1 - self.outside
        if abs(self.mean_weight - expected) > 3 * self.mean_weight_error + 1e-9:
            found.append(
                f"the mean weight is {self.mean_weight:.3f}, more than three standard errors from "
                f"{expected:.3f}: the propensities are not those of the draw"
            )
        if self.effective_rows < FEWEST_EFFECTIVE_ROWS:
            found.append(
                f"{self.effective_rows:.0f} effective rows: too few for an interval to be believed; log with "
                "more exploration, or judge a policy nearer to the logged one"
            )
        if self.outside > 1e-3:
            found.append(
                f"{self.outside:.2%} of the target's choices could not have been logged: nothing is known of "
                "them but what a model says"
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnostics as plain JSON, with their warnings."""
        return asdict(self) | {"excluded": dict(self.excluded), "warnings": self.warnings()}


def diagnose(target: Target, limit: float = 10.0) -> Diagnostics:
    """Looks at the weights and at what they cannot reach."""
    weight, logged = target.weight, target.logged
    n = len(weight)
    outside, outside_rows = 0.0, 0
    if logged.pmf is not None:
        unreachable = (target.pmf * (logged.pmf <= 0)).sum(axis=1)
        outside, outside_rows = float(unreachable.mean()), int((unreachable > 1e-6).sum())
    return Diagnostics(
        rows=n,
        mean_weight=float(weight.mean()),
        mean_weight_error=float(weight.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf,
        effective_rows=effective_sample_size(weight),
        largest_weight=float(weight.max()),
        outside=outside,
        outside_rows=outside_rows,
        clipped=float((weight > limit).mean()),
        limit=limit,
        excluded=dict(logged.excluded),
    )
