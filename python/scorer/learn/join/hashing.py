"""Hashes of decision ids, by which rows are found again and ordered."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.stats.arrays import Bools

Hashes = npt.NDArray[np.uint64]

_WORD = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def id_hashes(ids: Any) -> Hashes:
    """Return a 64-bit hash of each id, ``[n]``.

    The hashes are stored, so that they are the same on every machine and in every version.

    Args:
        ids: Ids as an Arrow array, of one or several chunks, or as NumPy texts.
    """
    if isinstance(ids, np.ndarray):
        ids = pa.array(ids.tolist(), pa.large_string())
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    ids = ids.cast(pa.large_string())
    if not len(ids):
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(ids.buffers()[1], np.int64)[ids.offset : ids.offset + len(ids) + 1]
    data = np.frombuffer(ids.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    found = np.empty(len(ids), np.uint64)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        padded = np.zeros((len(rows), -(-int(length) // _WORD) * _WORD), np.uint8)
        padded[:, :length] = data[offsets[rows][:, None] + np.arange(length)]
        state = np.full(len(rows), length, np.uint64) * _FACTOR
        for word in padded.view("<u8").T:
            state = (state ^ word) * _FACTOR
            state ^= state >> _SHIFT
        found[rows] = (state * _FACTOR) ^ (state >> _SHIFT)
    return found


def is_among(own: Hashes, wanted: Hashes) -> Bools:
    """Return which hashes, ``[n]``, are wanted.

    Args:
        own: In any order.
        wanted: In ascending order.
    """
    if not len(wanted):
        return np.zeros(len(own), bool)
    place = np.minimum(np.searchsorted(wanted, own), len(wanted) - 1)
    return np.asarray(wanted[place] == own)
