"""Intervals of policy values for one reading of a log: score and Student's (docs/off-policy.md)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from scorer.learn.ope.moments import Moments, PseudoOutcomeDesign, moments
from scorer.stats.arrays import Floats, Ints
from scorer.stats.interval import Interval
from scorer.stats.means import student

# The Cornish-Fisher quantile is used up to this skewness of the mean; beyond it, it folds over.
_SKEWEST = 1.0
# How much a badly known empirical variance is discounted; chosen on seeds of its own (docs/off-policy.md).
_DOUBT = 20.0
# Values nearer to 0 or 1 are judged as if they were here.
_EDGE = 1e-6


def student_by_size(
    pseudo: Floats, effective_rows: float, *, alpha: float = 0.05, clusters: Ints | None = None
) -> Interval:
    """Return Student's interval of an estimate with the degrees of freedom of its effective sample size.

    Args:
        pseudo: `[n]` with the estimate as their mean.
        effective_rows: Effective sample size: a few heavy rows leave the spread badly known.
        alpha: One minus the two-sided confidence.
        clusters: `[n]` codes; rows of one code count as one draw.
    """
    return student(pseudo, confidence=1 - alpha / 2, degrees=effective_rows - 1, clusters=clusters)


def score(
    pseudo: Floats,
    effective_rows: float,
    design: Callable[[slice], PseudoOutcomeDesign],
    *,
    alpha: float = 0.05,
    bounded: float | None = None,
) -> Interval:
    """All values that the estimate does not contradict, judged by the moments they imply.

    What Wilson's interval is to a share: the variance is taken at the value in question, not at the
    estimate. A log of good luck, without a failure among its heavy rows, thus does not count as certain.
    Skewness enters through the Cornish-Fisher quantile; where the empirical variance is larger than
    the implied one, it is believed as far as it can be known.

    Args:
        pseudo: `[n]` with the estimate as their mean.
        effective_rows: gives the degrees of freedom.
        design: the pseudo-outcomes' moments.
        alpha: one minus the confidence.
        bounded: the policy's value under the reward model, for a value between 0 and 1 whose noise
            grows with `V (1 - V)`; None, for a difference: the noise is taken as it is.
    """
    n = len(pseudo)
    value = float(pseudo.mean())
    implied = moments(design, n)
    excess = _excess(float(pseudo.var(ddof=1)), implied, n)
    z = _quantile(alpha, effective_rows)
    if math.isinf(excess):
        return student_by_size(pseudo, effective_rows, alpha=alpha)
    if bounded is None:
        below, above = (_reach(sign * z, n, implied, excess, 1.0) for sign in (1.0, -1.0))
        return Interval(value - below, value - above)
    return _invert(value, z, n, implied, excess, bounded)


def _quantile(alpha: float, effective_rows: float) -> float:
    return float(stats.t.ppf(1 - alpha / 2, max(effective_rows - 1, 1.0)))


def _excess(variance: float, implied: Moments, n: int) -> float:
    """By what factor the variance is larger than implied, shrunk by how badly it is known."""
    whole = implied.noise + implied.rest
    if whole <= 0:
        return math.inf if variance > 0 else 1.0
    noise = implied.kurtosis / whole**2 / n
    return max(1.0, 1 + (variance / whole - 1) / (1 + _DOUBT * noise))


def _reach(z: float, n: int, implied: Moments, excess: float, scale: float) -> float:
    """How far the estimate's quantile at `z` is above the value, with `scale` times the implied noise."""
    variance = (implied.noise * scale + implied.rest) * excess
    if variance <= 0:
        return 0.0
    skew = (implied.noise_skew * scale + implied.rest_skew) * excess / variance**1.5 / math.sqrt(n)
    skew = min(max(skew, -_SKEWEST), _SKEWEST)
    return float((z + skew * (z * z - 1) / 6) * math.sqrt(variance / n))


def _invert(value: float, z: float, n: int, implied: Moments, excess: float, expected: float) -> Interval:
    """Ends of the values between 0 and 1 that the estimate does not contradict."""
    toss = min(max(expected, _EDGE), 1 - _EDGE)
    toss *= 1 - toss

    def above(at: float, sign: float) -> float:
        """How far the estimate is above the quantile on one side if the value were `at`."""
        inside = min(max(at, _EDGE), 1 - _EDGE)
        return value - at - _reach(sign * z, n, implied, excess, inside * (1 - inside) / toss)

    # An estimate outside 0 to 1 contradicts its own neighbourhood, where nothing is left to chance;
    # what it agrees with begins further inside.
    inner = [value] if 0 < value < 1 else sorted(np.linspace(0, 1, 401), key=lambda at: abs(at - value))
    agreed = next((float(at) for at in inner if above(at, 1.0) <= 0 <= above(at, -1.0)), None)
    if agreed is None:
        edge = min(max(value, 0.0), 1.0)
        return Interval(edge, edge)
    low, high = 0.0, 1.0
    if above(0.0, 1.0) > 0:
        low = _crossing(lambda at: above(at, 1.0) > 0, 0.0, agreed)
    if above(1.0, -1.0) < 0:
        high = 1.0 if value >= 1 else _crossing(lambda at: above(at, -1.0) < 0, 1.0, agreed)
    return Interval(low, high)


def _crossing(contradicted: Callable[[float], bool], outer: float, inner: float) -> float:
    """Where, from a contradicted value to an agreed one, contradiction ends."""
    for _ in range(50):
        middle = (outer + inner) / 2
        if contradicted(middle):
            outer = middle
        else:
            inner = middle
    return inner
