"""Distances of two distributions of scores, over common bins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from scorer.stats.arrays import Floats, Ints
from scorer.stats.distributions import chi_square_upper

BINS = 10
"""Number of bins to aim for, each with about a tenth of the rows."""


@dataclass(frozen=True)
class BinnedPair:
    """Counts of two samples over the same bins; `[bins]` each."""

    edges: Floats
    """Inner edges, `[bins - 1]`: a value at an edge is in the bin above it."""
    first: Floats
    second: Floats

    @property
    def noise(self) -> float:
        """The PSI that corresponds to one unit of chi-square: 1/N + 1/M; infinite if a sample is empty."""
        n, m = float(self.first.sum()), float(self.second.sum())
        return 1 / n + 1 / m if n and m else math.inf

    def null_psi(self, alpha: float) -> float:
        """Return the PSI that two samples of one population exceed with probability `alpha`.

        Their PSI is about chi-square with B - 1 degrees of freedom times 1/N + 1/M (Yurdakul, 2018).
        """
        free = len(self.first) - 1
        return _chi_square(alpha, free) * self.noise if free else 0.0


@cache
def _chi_square(alpha: float, free: int) -> float:
    """Return the value that a chi-square with `free` degrees of freedom exceeds with probability `alpha`."""
    return chi_square_upper(alpha, free)


def smoothed_shares(counts: npt.ArrayLike) -> Floats:
    """Return the shares of `[bins]` counts after adding a half to each, so that no bin has probability 0."""
    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray((counts + 0.5) / (counts.sum() + 0.5 * len(counts)))


def psi(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return the population stability index of `[bins]` counts: the sum of (p - q) ln(p / q), smoothed."""
    p, q = smoothed_shares(first), smoothed_shares(second)
    return float(((p - q) * np.log(p / q)).sum())


def kl(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return the Kullback-Leibler divergence of `first` from `second`, `[bins]` counts, in nats, smoothed."""
    p, q = smoothed_shares(first), smoothed_shares(second)
    return float((p * np.log(p / q)).sum())


def js(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return the Jensen-Shannon divergence of `[bins]` counts in nats, smoothed; at most ln 2."""
    p, q = smoothed_shares(first), smoothed_shares(second)
    middle = (p + q) / 2
    return float((p * np.log(p / middle)).sum() + (q * np.log(q / middle)).sum()) / 2


@dataclass(frozen=True)
class ReferenceBins:
    """A reference histogram whose neighbouring bins are merged; `[bins]` counts."""

    edges: Floats
    """Inner edges, `[bins - 1]`: a value at an edge is in the bin above it."""
    counts: Floats

    def places(self, scores: Floats) -> Ints:
        """Return the bin of each score, `[n]`. Values outside the reference's range are in the outer bins."""
        return np.searchsorted(self.edges, scores, side="right")


def reference_bins(counts: npt.ArrayLike, edges: npt.ArrayLike, *, bins: int = BINS) -> ReferenceBins:
    """Merge neighbouring bins of a reference histogram to about 1 / `bins` of its rows each.

    Args:
        counts: `[m]` rows of the reference in each of its bins.
        edges: `[m + 1]` edges of these bins, ascending.
        bins: Number of bins to aim for.
    """
    counts, edges = np.asarray(counts, dtype=np.float64), np.asarray(edges, dtype=np.float64)
    groups = _merge(counts, bins)
    return ReferenceBins(edges[groups[1:]], np.add.reduceat(counts, groups))


def by_reference(
    counts: npt.ArrayLike, edges: npt.ArrayLike, scores: Floats, *, bins: int = BINS
) -> BinnedPair:
    """Bin a sample by a reference histogram, whose neighbouring bins are merged to about 1 / `bins` each.

    The bins depend on the reference alone, so the sample does not influence the bins that it is compared in.

    Args:
        counts: `[m]` rows of the reference in each of its bins.
        edges: `[m + 1]` edges of these bins, ascending.
        scores: `[n]` the sample; values outside the edges are counted in the outer bins.
        bins: Number of bins to aim for.

    Returns:
        The counts of the reference as `first`, those of the sample as `second`.
    """
    reference = reference_bins(counts, edges, bins=bins)
    sample = np.bincount(reference.places(scores), minlength=len(reference.counts)).astype(np.float64)
    return BinnedPair(reference.edges, reference.counts, sample)


def by_samples(first: Floats, second: Floats, *, bins: int = BINS) -> BinnedPair:
    """Bin two samples by the quantiles of both together; equal values stay in one bin.

    Args:
        first: `[n]` finite values.
        second: `[m]` finite values.
        bins: Number of bins to aim for.
    """
    if not len(first) or not len(second):
        return BinnedPair(np.empty(0), np.array([float(len(first))]), np.array([float(len(second))]))
    values, count = np.unique(np.concatenate([first, second]), return_counts=True)
    groups = _merge(count.astype(np.float64), bins)
    # Half way between two values, so that a rounding error does not move a value to another bin.
    inner = (values[groups[1:] - 1] + values[groups[1:]]) / 2
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    counts = [np.histogram(sample, edges)[0].astype(np.float64) for sample in (first, second)]
    return BinnedPair(inner, *counts)


def _merge(counts: Floats, bins: int) -> Ints:
    """Return where groups of neighbouring bins start, so that each holds at least 1 / `bins` of the rows."""
    before = np.concatenate([[0.0], np.cumsum(counts)])
    total, starts = before[-1], [0]
    # The tolerance allows for rounding if the number of rows is not a multiple of the number of bins.
    goal = total / bins * (1 - 1e-9)
    for at in range(1, len(counts)):
        if before[at] - before[starts[-1]] >= goal and total - before[at] >= goal:
            starts.append(at)
    return np.array(starts)
