"""How far two distributions of scores are apart, over common bins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from scorer.bundle.models import Distribution

Floats = npt.NDArray[np.float64]

BINS = 10


@dataclass(frozen=True)
class Binned:
    """Counts of two samples over the same bins; `[bins]` each."""

    edges: Floats
    """Inner edges, `[bins - 1]`: a value at an edge is in the bin above it."""
    first: Floats
    second: Floats

    @property
    def noise(self) -> float:
        """What a unit of chi-square is worth in PSI: 1/N + 1/M."""
        n, m = float(self.first.sum()), float(self.second.sum())
        return 1 / n + 1 / m if n and m else math.inf

    def chance(self, alpha: float) -> float:
        """The PSI that two samples of one population exceed with probability alpha.

        Their PSI is about chi-square with B - 1 degrees of freedom times 1/N + 1/M (Yurdakul, 2018).
        """
        free = len(self.first) - 1
        return float(stats.chi2.isf(alpha, free)) * self.noise if free else 0.0


def smoothed(counts: npt.ArrayLike) -> Floats:
    """Shares of `[bins]` counts, each plus a half: an empty bin is rare, not impossible."""
    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray((counts + 0.5) / (counts.sum() + 0.5 * len(counts)))


def psi(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Population stability index of `[bins]` counts: the sum of (p - q) ln(p / q), smoothed."""
    p, q = smoothed(first), smoothed(second)
    return float(((p - q) * np.log(p / q)).sum())


def kl(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Kullback-Leibler divergence of the first from the second, nats, smoothed."""
    p, q = smoothed(first), smoothed(second)
    return float((p * np.log(p / q)).sum())


def js(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Jensen-Shannon divergence, nats, smoothed: at most ln 2."""
    p, q = smoothed(first), smoothed(second)
    middle = (p + q) / 2
    return float((p * np.log(p / middle)).sum() + (q * np.log(q / middle)).sum()) / 2


def by_reference(reference: Distribution, scores: Floats, *, bins: int = BINS) -> Binned:
    """A sample over the bins that a bundle brings, neighbours put together to about a tenth each.

    The bins are chosen from the reference alone, so that the sample cannot choose what it is judged by.
    """
    counts = np.asarray(reference.counts, dtype=np.float64)
    edges = np.asarray(reference.edges, dtype=np.float64)
    groups = _merge(counts, bins)
    inner = edges[groups[1:]]
    place = np.searchsorted(inner, scores, side="right")
    found = np.bincount(place, minlength=len(groups)).astype(np.float64)
    return Binned(inner, np.add.reduceat(counts, groups), found)


def by_samples(first: Floats, second: Floats, *, bins: int = BINS) -> Binned:
    """Two samples over the tenths of both together; what is tied stays in one bin."""
    if not len(first) or not len(second):
        return Binned(np.empty(0), np.array([float(len(first))]), np.array([float(len(second))]))
    values, count = np.unique(np.concatenate([first, second]), return_counts=True)
    groups = _merge(count.astype(np.float64), bins)
    # Between two values, so that what is a bit off falls where its neighbour does.
    inner = (values[groups[1:] - 1] + values[groups[1:]]) / 2
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    own = [np.histogram(sample, edges)[0].astype(np.float64) for sample in (first, second)]
    return Binned(inner, *own)


def _merge(counts: Floats, bins: int) -> npt.NDArray[np.int64]:
    """Where groups of neighbouring bins begin, so that each holds at least 1 / bins of all but the last."""
    before = np.concatenate([[0.0], np.cumsum(counts)])
    total, starts = before[-1], [0]
    goal = total / bins
    for at in range(1, len(counts)):
        # The tolerance: tenths of counts that are no multiple of ten.
        enough = before[at] - before[starts[-1]] >= goal * (1 - 1e-9)
        if enough and total - before[at] >= goal * (1 - 1e-9):
            starts.append(at)
    return np.array(starts)
