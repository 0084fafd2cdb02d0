"""Agreement of two rankings on what one of them puts at its top."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def expected_among_highest(scores: npt.NDArray[np.float64], marked: npt.NDArray[np.bool_]) -> float:
    """Return how many marked rows are among as many rows with the highest scores.

    Rows that tie for the last places share them, so a constant score finds what chance finds.

    Args:
        scores: `[n]`, finite.
        marked: `[n]`.
    """
    places = int(marked.sum())
    if not places:
        return 0.0
    last = np.partition(scores, len(scores) - places)[len(scores) - places]
    above, level = scores > last, scores == last
    share = (places - int(above.sum())) / int(level.sum())
    return float((above & marked).sum() + share * (level & marked).sum())
