"""Conversion between log-odds and probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def sigmoid(x: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """1 / (1 + exp(-x)), in float64."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.asarray(x, dtype=np.float64))))
