"""A cell: the counts of one series in one minute, hour or day, as pairs of a code and a count.

Every quantity is a count of rows, so cells add up over time, servers and versions, and a withdrawn record is
subtracted again. Times are counted in bins with logarithmic widths, from which a quantile is read with a
relative error of at most `RELATIVE_ERROR`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from scorer.stats.arrays import Floats, Ints

RELATIVE_ERROR: Final = 0.02
"""Largest error of a quantile of times, relative to the quantile of the rows themselves."""
_GAMMA: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_MOST_US: Final = 2**32 - 1
"""Times are recorded as uint32 microseconds."""
TIME_BINS: Final = 2 + math.ceil(math.log(_MOST_US) / math.log(_GAMMA))
SCORE_BINS: Final = 64
"""Limit on the merged bins of a reference; the gates aim at 10."""
LABELS: Final = 64
"""Decisions or actions that are counted by name; further ones are counted together."""

ROWS: Final = 0
FALLBACKS: Final = 1
ERRORS: Final = 2
REPORTED: Final = 3
"""Decisions with an outcome that counts."""
POSITIVE: Final = 4
"""Of these, those whose outcome is above 0.5, as the gates define it."""
UNPROVEN: Final = 5
"""Decisions whose only outcomes are unproven, and excluded by the checkpoint's settings."""
UNPLACED: Final = 6
"""Decisions with an outcome whose time and version are not known."""
EXEC: Final = 16
LOAD: Final = EXEC + TIME_BINS
SCORE: Final = LOAD + TIME_BINS
LABEL: Final = SCORE + SCORE_BINS
OTHER_LABELS: Final = LABEL + LABELS
WIDTH: Final = OTHER_LABELS + 1
"""Number of codes."""
MOST: Final = 2**32 - 1
"""Largest count of a cell: of one day, 49,000 decisions a second of one server, lane and version."""


def time_bins(us: npt.ArrayLike) -> Ints:
    """Return the bins of times in microseconds, `[n]`: 0 for no time, i + 1 for (gamma^(i-1), gamma^i]."""
    values = np.asarray(us, dtype=np.float64).clip(0, _MOST_US)
    found = np.ceil(np.log(np.maximum(values, 1.0)) / math.log(_GAMMA) - 1e-12).astype(np.int64) + 1
    return np.where(values < 1, 0, found)


def time_of(place: int) -> float:
    """Return the time in microseconds that stands for a bin."""
    return 0.0 if place == 0 else 2 * _GAMMA ** (place - 1) / (_GAMMA + 1)


def quantile(counts: npt.NDArray[np.integer], q: float) -> float:
    """Return a quantile in microseconds of `[TIME_BINS]` counts; NaN without rows.

    It is the time of the bin that holds the smallest value which at least a share `q` of the rows does not
    exceed, as `scorer.stats.quantiles.quantile` defines it.
    """
    total = int(counts.sum())
    if not total:
        return math.nan
    rank = max(math.ceil(q * total), 1)
    return time_of(int(np.searchsorted(np.cumsum(counts), rank)))


def encode(codes: Ints, counts: Ints) -> tuple[bytes, bytes]:
    """Return a cell as the bytes of its codes (uint16) and counts (uint32), ascending by code.

    Larger counts are recorded as `MOST`.
    """
    return codes.astype("<u2").tobytes(), np.minimum(counts, MOST).astype("<u4").tobytes()


def decode(codes: bytes, counts: bytes) -> Ints:
    """Return the `[WIDTH]` counts of a cell."""
    dense = np.zeros(WIDTH, dtype=np.int64)
    dense[np.frombuffer(codes, "<u2")] = np.frombuffer(counts, "<u4")
    return dense


def added(rows: Sequence[tuple[bytes, bytes]], places: Ints, shape: int, width: int) -> Floats:
    """Add cells up, `[shape, width]`.

    Args:
        rows: Bytes of the codes and counts of each cell.
        places: `[n]` row of the result that each cell is added to.
        shape: Number of rows of the result.
        width: Only codes below this one; `WIDTH`: all.
    """
    # Codes ascend, so that no more of them than `width` are looked at.
    codes = np.frombuffer(b"".join(row[0][: 2 * width] for row in rows), "<u2").astype(np.int64)
    counts = np.frombuffer(b"".join(row[1][: 4 * width] for row in rows), "<u4")
    lengths = np.array([min(len(row[0]) // 2, width) for row in rows], dtype=np.int64)
    kept = codes < width
    flat = (np.repeat(places * width, lengths) + codes)[kept]
    sums = np.bincount(flat, weights=counts[kept], minlength=shape * width)
    return np.asarray(sums.reshape(shape, width), dtype=np.float64)
