"""The segment whose figures differ most from the others of its own past, among a bounded number.

A scan compares the rate of each segment in a window with its rate in the reference. The false-alarm rate is
divided by the number of segments that are compared (Bonferroni), which is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scorer.drift.shift import rate_chance
from scorer.stats.arrays import Floats

MOST_SLICES: Final = 256
"""Number of segments that are compared; those with the most rows."""


@dataclass(frozen=True)
class SliceShift:
    """A segment whose rate differs from that of its past.

    Attributes:
        name: Name of the segment, such as `issuer=A`.
        rows: Rows in the window.
        rate: Rate in the window.
        reference_rate: Rate in the reference.
        excess: Hits beyond those that the reference's rate gives.
        chance: Probability of the difference by chance, times the number of segments, at most 1.
    """

    name: str
    rows: int
    rate: float
    reference_rate: float
    excess: float
    chance: float


def scan(
    names: Sequence[str],
    window: Floats,
    reference: Floats,
    *,
    alpha: float,
    least_rows: int,
) -> list[SliceShift]:
    """Return the segments whose rates differ, the one with the largest excess of hits first.

    Args:
        names: Names of the segments, `G`.
        window: `[G, 2]` hits and misses in the window.
        reference: `[G, 2]` hits and misses in the reference.
        alpha: False-alarm rate of the whole scan.
        least_rows: Rows of a segment, in both samples, below which it is not compared.
    """
    rows, before = window.sum(axis=1), reference.sum(axis=1)
    known = np.flatnonzero((rows >= least_rows) & (before >= least_rows))
    known = known[np.argsort(-rows[known], kind="stable")][:MOST_SLICES]
    if not len(known):
        return []
    chances = rate_chance(window[known, 0], rows[known], reference[known, 0], before[known])
    chances = np.minimum(chances * len(known), 1.0)
    found = [
        SliceShift(
            names[at],
            int(rows[at]),
            float(window[at, 0] / rows[at]),
            float(reference[at, 0] / before[at]),
            float(window[at, 0] - rows[at] * reference[at, 0] / before[at]),
            float(value),
        )
        for at, value in zip(known.tolist(), chances.tolist(), strict=True)
        if value < alpha
    ]
    return sorted(found, key=lambda one: -abs(one.excess))
