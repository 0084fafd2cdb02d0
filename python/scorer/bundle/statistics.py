"""Reference statistics: how scores were distributed when the bundle was built."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Distribution
from scorer.errors import BundleError

_BINS = 50
_TWENTIETHS = 20


def distribution(scores: npt.ArrayLike) -> Distribution:
    """Mean, percentiles and a histogram; probabilities get even bins from 0 to 1, cut again at twentieths."""
    values = np.asarray(scores, dtype=np.float64).ravel()
    if len(values) == 0 or not np.isfinite(values).all():
        raise BundleError(
            "reference data: no scores, or scores that are not finite; give rows the model can score"
        )
    low, high = float(values.min()), float(values.max())
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    elif low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.union1d(np.linspace(low, high, _BINS + 1), _cuts(np.sort(values)))
    counts, _ = np.histogram(values, bins=edges)
    return Distribution(
        count=len(values),
        mean=float(values.mean()),
        quantiles=np.maximum.accumulate(np.quantile(values, np.linspace(0.0, 1.0, 101))).tolist(),
        edges=edges.tolist(),
        counts=counts.tolist(),
    )


def _cuts(ordered: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Where each twentieth of the scores ends, halfway between two scores.

    Scores of fraud crowd into the lowest even bin; what shifts there would not be seen. No cut is at a score
    itself, as many rows share one.
    """
    n = len(ordered)
    upper = ordered[[n * part // _TWENTIETHS for part in range(1, _TWENTIETHS)]]
    at = np.searchsorted(ordered, upper, side="left")
    below, above = ordered[np.maximum(at - 1, 0)], ordered[at]
    cuts = (below + above) / 2
    return np.unique(cuts[(cuts > below) & (cuts < above)])
