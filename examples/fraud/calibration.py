"""Calibration of a model's output to a probability by centred isotonic regression.

Plain isotonic regression is a step function: all transactions on a step have the same probability, and the
model's ranking among them is lost. Here each step is replaced by its centre, and the map is linear between
centres (Oron and Flournoy 2017), so that it is strictly increasing and keeps the ranking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A strictly increasing, piecewise linear map from the model's output to a probability.

    Attributes:
        outputs: `[k]` positions of the knots, ascending from 0 to 1.
        probabilities: `[k]` value at each knot, ascending.
    """

    outputs: Floats
    probabilities: Floats

    def __call__(self, outputs: npt.NDArray[np.floating]) -> Floats:
        """Return the probabilities of outputs."""
        return np.asarray(np.interp(outputs, self.outputs, self.probabilities))


def fit_calibration(outputs: npt.NDArray[np.floating], labels: npt.NDArray[np.integer]) -> Calibration:
    """Fit the map on rows that the model was not trained on.

    Args:
        outputs: `[n]` uncalibrated outputs of the model, 0 to 1.
        labels: `[n]` 0 or 1, both present.
    """
    outputs = np.asarray(outputs, dtype=np.float64)
    steps = IsotonicRegression(y_min=0.0, y_max=1.0).fit_transform(outputs, labels)
    order = np.argsort(outputs, kind="stable")
    values, first, count = np.unique(steps[order], return_index=True, return_counts=True)
    centres = np.add.reduceat(outputs[order], first) / count
    # A step of exactly 0 does not mean that fraud is impossible, so one more fraud is assumed. The same
    # applies to 1.
    if values[0] == 0:
        values[0] = min(0.5 / (count[0] + 1), values[1] / 2)
    if values[-1] == 1:
        values[-1] = max(1 - 0.5 / (count[-1] + 1), (1 + values[-2]) / 2)
    # The ranking is kept beyond the outer centres as well: the map continues to half of the lowest step at 0,
    # and to half of the way to 1 at 1.
    knots = np.concatenate([[0.0], centres, [1.0]])
    heights = np.concatenate([[values[0] / 2], values, [(1 + values[-1]) / 2]])
    rising = np.concatenate([[True], (np.diff(knots) > 0) & (np.diff(heights) > 0)])
    return Calibration(outputs=knots[rising], probabilities=heights[rising])
