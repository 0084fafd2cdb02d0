"""Cumulative incidence of events that can come late, never, or after the end of the observation.

With one cause the estimate is one minus that of Kaplan and Meier (1958), and its variance that of Greenwood
(1926). With several causes it is that of Aalen and Johansen (1978), with the delta method's variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scorer.stats.arrays import Floats, Ints
from scorer.stats.distributions import normal_quantile

CENSORED = 0
"""Cause of a row without an event until its observation ended."""


@dataclass(frozen=True)
class Incidence:
    """A step function: the probability that an event of some causes has come by a delay.

    Attributes:
        delay: `[m]` delays with an event of any cause, ascending, in the unit of the rows.
        at_risk: `[m]` rows that were observed without an event until just before the delay.
        events: `[m]` events of the causes at the delay.
        share: `[m]` probability of such an event by the delay, the delay included.
        low: `[m]` lower bound of `share`.
        high: `[m]` upper bound of `share`.
    """

    delay: Floats
    at_risk: Ints
    events: Ints
    share: Floats
    low: Floats
    high: Floats

    def place(self, delay: Floats) -> Ints:
        """Return the step that holds at each delay, `[k]`; -1 before the first event."""
        return np.searchsorted(self.delay, delay, side="right").astype(np.int64) - 1


def cumulative_incidence(
    delay: Floats, cause: Ints, *, of: tuple[int, ...] = (), confidence: float = 0.95
) -> Incidence:
    """Estimate the probability that an event of some causes has come by each delay.

    A row whose observation ends at the delay of an event is still at risk of that event. The bounds are
    pointwise. They are those of log(-log(1 - share)), so that they stay between 0 and 1. Until the first
    event of the causes, the upper bound is that of a binomial share without hits among the rows at risk.

    Args:
        delay: `[n]` delay of the first event, or of the end of the observation, 0 or above.
        cause: `[n]` cause of the event from 1 on; `CENSORED`: none was seen.
        of: The causes that count; none: all.
        confidence: Two-sided confidence of the bounds at one delay.

    Raises:
        ValueError: A delay is negative or not finite, the lengths differ, or the confidence is not between
            0 and 1.
    """
    delay, cause = np.asarray(delay, dtype=np.float64), np.asarray(cause, dtype=np.int64)
    if delay.shape != cause.shape or not np.isfinite(delay).all() or (delay < 0).any():
        raise ValueError("delays and causes have one length, and delays are finite and at least 0")
    if not 0 < confidence < 1:
        raise ValueError("the confidence is between 0 and 1")
    counts = cause != CENSORED
    chosen = np.isin(cause, of) if of else counts
    times, every = np.unique(delay[counts], return_counts=True)
    n = len(delay) - np.searchsorted(np.sort(delay), times, side="left")
    own = np.zeros(len(times), dtype=np.int64)
    np.add.at(own, np.searchsorted(times, delay[chosen]), 1)
    survival = np.cumprod(1 - every / n)
    before = np.concatenate([np.ones(1), survival])[: len(times)]
    share = np.cumsum(before * own / n)
    low, high = _bounds(share, _variance(n, every, own, before, share), n, own, confidence)
    return Incidence(times, n.astype(np.int64), own, share, low, high)


def _variance(n: Ints, every: Ints, own: Ints, before: Floats, share: Floats) -> Floats:
    """Return the variance of each share, `[m]`; see Marubini and Valsecchi (1995), 10.2.

    The sum over the earlier steps contains the share of the step itself. It is expanded, so that cumulative
    sums suffice.
    """
    left = n - every
    # At a delay without rows left, the factor of this term is zero.
    a = np.divide(every, n * left.astype(np.float64), out=np.zeros(len(n)), where=left > 0)
    b = before * own / n.astype(np.float64) ** 2
    c = before**2 * own * (n - own) / n.astype(np.float64) ** 3
    found = (
        share**2 * np.cumsum(a)
        - 2 * share * np.cumsum(a * share)
        + np.cumsum(a * share**2)
        + np.cumsum(c)
        - 2 * (share * np.cumsum(b) - np.cumsum(b * share))
    )
    return np.asarray(np.maximum(found, 0.0), dtype=np.float64)


def _bounds(share: Floats, variance: Floats, n: Ints, own: Ints, confidence: float) -> tuple[Floats, Floats]:
    z = normal_quantile((1 + confidence) / 2)
    low, high = np.zeros(len(share)), np.ones(len(share))
    inside = (share > 0) & (share < 1 - 1e-12)
    logs = np.log1p(-share[inside])
    spread = z * np.sqrt(variance[inside]) / (np.exp(logs) * -logs)
    low[inside] = -np.expm1(logs * np.exp(-spread))
    high[inside] = -np.expm1(logs * np.exp(np.minimum(spread, 700.0)))
    none = np.cumsum(own) == 0
    high[none] = -np.expm1(math.log((1 - confidence) / 2) / n[none])
    # Nothing is left at risk: the last bound below still holds.
    whole = share >= 1 - 1e-12
    if whole.any():
        first = int(np.argmax(whole))
        low[whole] = low[first - 1] if first else 0.0
    return low, high
