"""Reference statistics: how scores were distributed when the bundle was built."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Distribution
from scorer.errors import BundleError

_BINS = 50


def distribution(scores: npt.ArrayLike) -> Distribution:
    """Mean, percentiles and a histogram; probabilities get even bins from 0 to 1."""
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
    counts, edges = np.histogram(values, bins=_BINS, range=(low, high))
    return Distribution(
        count=len(values),
        mean=float(values.mean()),
        quantiles=np.maximum.accumulate(np.quantile(values, np.linspace(0.0, 1.0, 101))).tolist(),
        edges=edges.tolist(),
        counts=counts.tolist(),
    )
