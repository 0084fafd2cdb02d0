"""From a model's output to a probability, by centred isotonic regression.

Plain isotonic regression is a staircase: all transactions on a step get the
same probability and the model's ranking among them is lost. Here each step is
replaced by its centre and the map runs in straight lines between centres
(Oron and Flournoy 2017), so that it rises strictly and keeps the ranking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A strictly rising map in straight lines from margin to probability, constant outside its knots.

    Attributes:
        margins: `[k]` where the knots are, ascending.
        probabilities: `[k]` the value at each knot, ascending.
    """

    margins: Floats
    probabilities: Floats

    def __call__(self, margins: npt.NDArray[np.floating]) -> Floats:
        """Maps margins to probabilities."""
        return np.asarray(np.interp(margins, self.margins, self.probabilities))


def fit_calibration(margins: npt.NDArray[np.floating], labels: npt.NDArray[np.integer]) -> Calibration:
    """Fits the map on rows that the model was not trained on.

    Args:
        margins: `[n]` the model's raw outputs.
        labels: `[n]` 0 or 1, both present.
    """
    margins = np.asarray(margins, dtype=np.float64)
    steps = IsotonicRegression(y_min=0.0, y_max=1.0).fit_transform(margins, labels)
    order = np.argsort(margins, kind="stable")
    values, first, count = np.unique(steps[order], return_index=True, return_counts=True)
    centres = np.add.reduceat(margins[order], first) / count
    # Beyond the outer centres the ranking is kept as well: the map goes on, towards half
    # the lowest step and half way to 1, at the outermost margins seen.
    low, high = margins.min() - 1.0, margins.max() + 1.0
    knots = np.concatenate([[low], centres, [high]])
    # A lowest step of exactly 0 says "none seen", not "impossible": one more fraud might come.
    values = np.clip(values, 0.5 / (count[0] + 1), 1 - 0.5 / (count[-1] + 1))
    heights = np.concatenate([[values[0] / 2], values, [(1 + values[-1]) / 2]])
    rising = np.concatenate([[True], (np.diff(knots) > 0) & (np.diff(heights) > 0)])
    return Calibration(margins=knots[rising], probabilities=heights[rising])
