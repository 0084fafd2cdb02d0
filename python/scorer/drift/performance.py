"""Performance of scores that are counted in bins: measured with outcomes, and estimated before them.

The estimate is confidence-based (CBPE): each bin has the positive rate that matured decisions had there. The
expected counts of positives and negatives in the bins of new decisions then give any figure of a ranking or a
threshold. It holds as long as the outcome rate of a score stays the same: it shows the effect of another
mix of payments, and not that of a new kind of fraud, which only outcomes show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from scorer.stats.arrays import Floats


@dataclass(frozen=True)
class BinnedAuc:
    """An area under the ROC curve.

    Attributes:
        value: The area; NaN without both classes.
        error: Its standard error (Hanley and McNeil, 1982); NaN likewise.
    """

    value: float
    error: float


def auc(positives: npt.ArrayLike, negatives: npt.ArrayLike) -> BinnedAuc:
    """Return the AUC of scores in bins, where rows of one bin are ties.

    Args:
        positives: `[S]` number, or expected number, of positive rows in the bins, ascending by score.
        negatives: `[S]` the same of negative rows.
    """
    one, zero = np.asarray(positives, np.float64), np.asarray(negatives, np.float64)
    p, n = float(one.sum()), float(zero.sum())
    if p <= 0 or n <= 0:
        return BinnedAuc(math.nan, math.nan)
    below = np.cumsum(zero) - zero
    value = float((one * (below + zero / 2)).sum() / (p * n))
    both, twice = value / (2 - value), 2 * value**2 / (1 + value)
    variance = value * (1 - value) + (p - 1) * (both - value**2) + (n - 1) * (twice - value**2)
    return BinnedAuc(value, math.sqrt(max(variance, 0.0) / (p * n)))


@dataclass(frozen=True)
class Calibration:
    """How well the outcome rates that scores had before hold for other decisions.

    Attributes:
        expected: Expected number of positive rows.
        observed: Observed number.
        error: Mean absolute difference of expected and observed rate over the bins, by rows (ECE).
        chance: Two-sided probability of the difference of the numbers by chance.
    """

    expected: float
    observed: float
    error: float
    chance: float


def calibration(
    rates: Floats, rows: npt.ArrayLike, positives: npt.ArrayLike, dispersion: float = 1.0
) -> Calibration:
    """Compare the outcomes of decisions with the rates of their scores.

    Args:
        rates: `[S]` outcome rate of each bin of the scores.
        rows: `[S]` matured decisions.
        positives: `[S]` those with a positive outcome.
        dispersion: Variance relative to that of independent rows, at least 1.
    """
    n, y = np.asarray(rows, np.float64), np.asarray(positives, np.float64)
    total, expected, observed = float(n.sum()), float((n * rates).sum()), float(y.sum())
    variance = float((n * rates * (1 - rates)).sum()) * max(dispersion, 1.0)
    gap = np.where(n > 0, np.abs(y / np.maximum(n, 1) - rates), 0)
    error = float((n * gap).sum() / total) if total else math.nan
    if variance <= 0:
        return Calibration(expected, observed, error, 1.0 if expected == observed else 0.0)
    z = (observed - expected) / math.sqrt(variance)
    return Calibration(expected, observed, error, float(2 * special.ndtr(-abs(z))))


def outcome_rates(rows: npt.ArrayLike, positives: npt.ArrayLike) -> Floats:
    """Return the outcome rate of each bin of the scores, non-decreasing in the score, `[S]`.

    Rates are smoothed by one row of the overall rate, and pooled where they would decrease (isotonic
    regression by the pool-adjacent-violators algorithm).

    Args:
        rows: `[S]` matured decisions in the bins, ascending by score.
        positives: `[S]` those with a positive outcome.
    """
    n, y = np.asarray(rows, np.float64), np.asarray(positives, np.float64)
    overall = float(y.sum() / n.sum()) if n.sum() else 0.0
    blocks: list[tuple[float, float, int]] = []
    for weight, hits in zip((n + 1).tolist(), (y + overall).tolist(), strict=True):
        block = (weight, hits, 1)
        while blocks and blocks[-1][1] / blocks[-1][0] > block[1] / block[0]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    return np.concatenate([np.full(size, hits / weight) for weight, hits, size in blocks])


@dataclass(frozen=True)
class EstimatedPerformance:
    """Performance of decisions whose outcomes are not known yet.

    Attributes:
        auc: Expected AUC.
        positive_rate: Expected outcome rate.
        precision: Expected precision of the bins from the threshold on; NaN without rows there.
        recall: Expected recall of these bins; NaN without expected positives.
    """

    auc: float
    positive_rate: float
    precision: float
    recall: float


def estimate(rates: Floats, rows: npt.ArrayLike, threshold: int) -> EstimatedPerformance:
    """Estimate the performance of decisions by the outcome rates of their scores.

    Args:
        rates: `[S]` of `outcome_rates`.
        rows: `[S]` decisions in the bins.
        threshold: First bin of the scores that are flagged.
    """
    n = np.asarray(rows, np.float64)
    hits = n * rates
    total, flagged = float(n.sum()), float(n[threshold:].sum())
    return EstimatedPerformance(
        auc=auc(hits, n - hits).value,
        positive_rate=float(hits.sum()) / total if total else math.nan,
        precision=float(hits[threshold:].sum()) / flagged if flagged else math.nan,
        recall=float(hits[threshold:].sum()) / float(hits.sum()) if hits.sum() > 0 else math.nan,
    )
