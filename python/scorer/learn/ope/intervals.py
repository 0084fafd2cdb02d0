"""Intervals of policy values for one reading of a log: score and Student's (docs/off-policy.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

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


_BLOCK = 8_192


@dataclass(frozen=True)
class PseudoOutcomeDesign:
    """How pseudo-outcomes of some rows depend on action and reward.

    Attributes:
        logging: `[rows, K]` the pmf that chose.
        model: `[rows, K]` predicted rewards.
        weight: `[rows, K]` what the reward is multiplied by; signed in a difference.
        drift: `[rows, K]` `weight * (model - control)`; None: nothing, the control is the model.
        direct: `[rows]`.
    """

    logging: Floats
    model: Floats
    weight: Floats
    drift: Floats | None
    direct: Floats

    def minus(self, other: PseudoOutcomeDesign) -> PseudoOutcomeDesign:
        """Of the difference of two pseudo-outcomes of the same rows under the same model."""
        drift = self.drift
        if other.drift is not None:
            drift = -other.drift if drift is None else drift - other.drift
        return PseudoOutcomeDesign(
            self.logging, self.model, self.weight - other.weight, drift, self.direct - other.direct
        )


@dataclass(frozen=True)
class Moments:
    """Of one pseudo-outcome, averaged over rows; the reward's own noise apart from the rest.

    Attributes:
        noise: variance that the rewards' coin tosses bring.
        rest: variance that contexts and actions bring.
        noise_skew: third central moment of the tosses.
        rest_skew: what is left of the third central moment.
        kurtosis: fourth cumulant of the tosses, for the reliability of an empirical variance.
    """

    noise: float
    rest: float
    noise_skew: float
    rest_skew: float
    kurtosis: float


def moments(design: Callable[[slice], PseudoOutcomeDesign], rows: int) -> Moments:
    """Mean, variance and skewness of pseudo-outcomes as the logged pmf and a reward model imply them.

    A pseudo-outcome is `direct(x) + w(x, a) (r - c(x, a))` with a control `c`. The logging policy's whole
    pmf is known and the reward is 0 or 1, so given a model `q` of the reward its moments are sums over
    actions, also over those with large weights that the log happens to lack. The empirical variance sees
    such actions only once they have been drawn.
    """
    total = np.zeros(5)
    means, spreads = np.empty(rows), np.empty(rows)
    for start in range(0, rows, _BLOCK):
        block = slice(start, min(start + _BLOCK, rows))
        given = design(block)
        toss = np.clip(given.model, 0.0, 1.0)
        toss = toss * (1 - toss)
        square = given.weight**2
        noise2 = given.logging * square * toss
        noise3 = noise2 * given.weight * (1 - 2 * np.clip(given.model, 0.0, 1.0))
        spread = noise2.sum(axis=1)
        mean = given.direct
        between2 = between3 = 0.0
        if given.drift is not None:
            shift = (given.logging * given.drift).sum(axis=1)
            off = given.drift - shift[:, None]
            mean = mean + shift
            variance = (given.logging * off**2).sum(axis=1)
            between2 = float(variance.sum())
            between3 = float((given.logging * off**3).sum() + 3 * (noise2 * off).sum())
            spread = spread + variance
        total += (
            float(noise2.sum()),
            between2,
            float(noise3.sum()),
            between3,
            float((noise2 * square * (1 - 3 * toss)).sum()),
        )
        means[block], spreads[block] = mean, spread
    noise, between, noise_skew, between_skew, kurtosis = total / rows
    centred = means - means.mean()
    return Moments(
        noise=noise,
        rest=between + float(centred.var(ddof=1)) if rows > 1 else between,
        noise_skew=noise_skew,
        rest_skew=between_skew + float(3 * (centred * spreads).mean() + (centred**3).mean()),
        kurtosis=max(kurtosis, 0.0),
    )
