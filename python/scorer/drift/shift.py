"""Distances of binned counts over the last axis of arrays, and exact tests of rates.

Distances are smoothed as in `scorer.stats.distances`: a half is added to each bin. The arrays have any number
of leading axes, so that hundreds of features and looks are computed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special

from scorer.stats.arrays import Bools, Floats

LEAST_EXPECTED: Final = 5.0
"""Expected count of a bin in the smaller sample below which it is pooled with other such bins."""


@dataclass(frozen=True)
class PooledPair:
    """Counts of a reference and of a window over the same bins, `[..., B + 1]` each.

    Attributes:
        reference: Counts of the reference.
        window: Counts of the window.
        used: Whether a bin is compared. The last bin holds the rare ones together.
    """

    reference: Floats
    window: Floats
    used: Bools

    @property
    def free(self) -> Floats:
        """Degrees of freedom, `[...]`; 0 if nothing can be compared."""
        return np.asarray(np.maximum(self.used.sum(axis=-1) - 1, 0), dtype=np.float64)

    @property
    def noise(self) -> Floats:
        """The PSI that one unit of chi-square corresponds to, 1/N + 1/M, `[...]`; infinite without rows."""
        n, m = self.window.sum(axis=-1), self.reference.sum(axis=-1)
        empty = (n <= 0) | (m <= 0)
        return np.where(empty, np.inf, 1 / np.where(empty, 1, n) + 1 / np.where(empty, 1, m))


def pooled(reference: npt.ArrayLike, window: npt.ArrayLike, *, least: float = LEAST_EXPECTED) -> PooledPair:
    """Pool the bins whose expected count is too small for the chi-square approximation.

    Args:
        reference: `[..., B]` counts of the reference.
        window: `[..., B]` counts of the window.
        least: Expected count below which a bin is pooled, in the smaller of the two samples.
    """
    one, other = np.asarray(reference, dtype=np.float64), np.asarray(window, dtype=np.float64)
    m, n = one.sum(axis=-1, keepdims=True), other.sum(axis=-1, keepdims=True)
    total = m + n
    scale = np.minimum(m, n) / np.where(total > 0, total, 1)
    keep = (one + other) * scale >= least
    parts = []
    for counts in (one, other):
        rare = np.where(keep, 0, counts).sum(axis=-1, keepdims=True)
        parts.append(np.concatenate([np.where(keep, counts, 0), rare], axis=-1))
    rest = parts[0][..., -1:] + parts[1][..., -1:]
    enough = (rest > 0) & (rest * scale >= least)
    used = np.concatenate([keep, enough], axis=-1)
    return PooledPair(np.where(used, parts[0], 0), np.where(used, parts[1], 0), used)


def psi(pair: PooledPair) -> Floats:
    """Return the population stability index, `[...]`: the sum of (p - q) ln(p / q)."""
    p, q = _shares(pair.window, pair.used), _shares(pair.reference, pair.used)
    return np.asarray(((p - q) * _log_ratio(p, q)).sum(axis=-1))


def kl(pair: PooledPair) -> Floats:
    """Return the Kullback-Leibler divergence of the window from the reference in nats, `[...]`."""
    p, q = _shares(pair.window, pair.used), _shares(pair.reference, pair.used)
    return np.asarray((p * _log_ratio(p, q)).sum(axis=-1))


def js(pair: PooledPair) -> Floats:
    """Return the Jensen-Shannon divergence in nats, `[...]`; at most ln 2."""
    p, q = _shares(pair.window, pair.used), _shares(pair.reference, pair.used)
    middle = (p + q) / 2
    return np.asarray((p * _log_ratio(p, middle) + q * _log_ratio(q, middle)).sum(axis=-1) / 2)


def excess_variation(samples: Floats) -> Floats:
    """Return the mean squared distance of samples from their whole beyond that by chance, in units of PSI.

    It is Pearson's chi-square of homogeneity less its degrees of freedom, per sample and row.

    Args:
        samples: `[S, ..., B]` counts. Samples without rows are left out.

    Returns:
        `[...]`, at least 0; 0 if fewer than two samples have rows.
    """
    sizes = samples.sum(axis=-1, keepdims=True)
    whole = samples.sum(axis=0)
    total = whole.sum(axis=-1, keepdims=True)
    share = whole / np.maximum(total, 1)
    expected = sizes * share
    known = sizes > 0
    keep = (share > 0) & (np.where(known, expected, np.inf).min(axis=0) >= 1)
    terms = np.where(keep & known, (samples - expected) ** 2 / np.where(expected > 0, expected, 1), 0)
    number = known[..., 0].sum(axis=0)
    free = np.maximum(number - 1, 0) * np.maximum(keep.sum(axis=-1) - 1, 0)
    beyond = np.maximum(terms.sum(axis=(0, -1)) - free, 0)
    mean_rows = total[..., 0] / np.maximum(number, 1)
    return np.where(free > 0, beyond / (np.maximum(number - 1, 1) * np.maximum(mean_rows, 1)), 0.0)


def chi_square_critical(alpha: float, free: npt.ArrayLike) -> Floats:
    """Return the value that chi-square exceeds with probability `alpha`; 0 without degrees of freedom."""
    distinct, places = np.unique(np.asarray(free, np.float64), return_inverse=True)
    values = np.where(distinct > 0, special.chdtri(np.maximum(distinct, 1), alpha), 0.0)
    return np.asarray(values[places].reshape(np.shape(free)))


def excess_critical(alpha: float, history: npt.ArrayLike) -> Floats:
    """Return the value that F with 1 and `history` degrees of freedom exceeds with probability `alpha`."""
    distinct, places = np.unique(np.asarray(history, np.float64), return_inverse=True)
    bounded = np.maximum(distinct, 1)
    # F is a ratio that the beta distribution gives without the loss of digits of 1 - alpha.
    lower = special.betaincinv(bounded / 2, 0.5, alpha)
    values = bounded * (1 - lower) / lower
    return np.asarray(values[places].reshape(np.shape(history)))


def rate_chance(
    hits: npt.ArrayLike, rows: npt.ArrayLike, reference_hits: npt.ArrayLike, reference_rows: npt.ArrayLike
) -> Floats:
    """Return the two-sided probability of a difference of two rates by chance.

    The test is the binomial one of the hits of the window among all hits, given their sum, which is exact for
    rare hits. For rates above a half, the misses are compared instead.

    Args:
        hits: Hits of the window.
        rows: Rows of the window.
        reference_hits: Hits of the reference.
        reference_rows: Rows of the reference.
    """
    n, m = np.asarray(rows, np.float64), np.asarray(reference_rows, np.float64)
    a, b = np.asarray(hits, np.float64), np.asarray(reference_hits, np.float64)
    often = a + b > (n + m) / 2
    a, b = np.where(often, n - a, a), np.where(often, m - b, b)
    share = np.where(n + m > 0, n / np.where(n + m > 0, n + m, 1), 0.5)
    upper = np.where(a > 0, special.betainc(np.maximum(a, 1), b + 1, share), 1.0)
    lower = np.where(b > 0, special.betainc(np.maximum(b, 1), a + 1, 1 - share), 1.0)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(upper, lower)))


def _shares(counts: Floats, used: Bools) -> Floats:
    smooth = np.where(used, counts + 0.5, 0.0)
    total = smooth.sum(axis=-1, keepdims=True)
    return np.asarray(smooth / np.where(total > 0, total, 1))


def _log_ratio(p: Floats, q: Floats) -> Floats:
    known = (p > 0) & (q > 0)
    return np.log(np.where(known, p, 1) / np.where(known, q, 1))
