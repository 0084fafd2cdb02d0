"""Reference statistics: the distribution of the scores when the bundle was built."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Distribution
from scorer.errors import BundleError

_BINS = 50
_TWENTIETHS = 20


def distribution(scores: npt.ArrayLike) -> Distribution:
    """Return mean, 101 percentiles and a histogram of scores.

    The histogram has 50 bins of equal width, which are split again at the boundaries of the twentieths of the
    scores. For scores between 0 and 1 the equal bins span 0 to 1, otherwise the range of the scores.

    Args:
        scores: Finite scores, of any shape.

    Raises:
        BundleError: There are no scores, or one is not finite.
    """
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
    """Return the boundaries of the twentieths of the scores, each halfway between two neighbouring scores.

    Most scores of a fraud model fall into the lowest bin of equal width, where a shift would not be visible
    without these cuts. A cut is never equal to a score, because many rows can have the same score.
    """
    n = len(ordered)
    upper = ordered[[n * part // _TWENTIETHS for part in range(1, _TWENTIETHS)]]
    at = np.searchsorted(ordered, upper, side="left")
    below, above = ordered[np.maximum(at - 1, 0)], ordered[at]
    cuts = (below + above) / 2
    return np.unique(cuts[(cuts > below) & (cuts < above)])
