"""How much each logged decision counts in training: min(p^-tau, M), scaled to mean 1.

tau = 0 is plain regression, right where the model can express the truth; tau = 1
is inverse propensity, the fit as if actions had been drawn evenly, at the price
of variance; 1/2 lies between. Which is best depends on the log, so it is chosen
by progressive validation. XGBoost's `min_child_weight` and regularisation count
in weights, hence the mean of 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def sample_weights(propensity: Floats, tau: float, clip: float) -> Floats:
    """`[n]` weights of decisions taken with these probabilities, each above 0."""
    raw = np.minimum(np.asarray(propensity, dtype=np.float64) ** -tau, clip)
    return np.asarray(raw / raw.mean(), dtype=np.float64)
