"""Checksums of rows, which do not depend on how the rows are divided into batches."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scorer.batch.encoding import text_buffers
from scorer.batch.scoring import BatchScorer


class RowsChecksum:
    """A checksum of the values that a scorer reads.

    Features count as the float32 values that they are encoded to, so equal checksums mean equal results.

    Args:
        scorer: The scorer of the rows.
    """

    def __init__(self, scorer: BatchScorer) -> None:
        self._scorer = scorer
        self._hashes: defaultdict[str, Any] = defaultdict(lambda: hashlib.blake2b(digest_size=16))

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next rows.

        Args:
            batch: The rows.
        """
        encoded, _ = self._scorer.encoder.encode(batch)
        for feature, column in zip(self._scorer.encoder.features, encoded, strict=True):
            # NaN has several bit patterns, all of which mean a missing value.
            self._add(f"feature {feature.name}", np.where(np.isnan(column), np.float32(np.nan), column))
        eligible, _ = self._scorer.eligible(batch)
        if eligible is not None:
            self._add("eligible", eligible)
        for name in {*self._scorer.columns.keep, self._scorer.columns.id} - {None}:
            lengths, text = _texts(batch.column(name))
            self._add(f"lengths {name}", lengths)
            self._add(f"text {name}", text)

    def hexadecimal(self) -> str:
        """Return the checksum of the rows that have been added."""
        parts = [f"{name}\0{found.hexdigest()}" for name, found in sorted(self._hashes.items())]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def _add(self, name: str, values: Any) -> None:
        self._hashes[name].update(np.ascontiguousarray(values).view(np.uint8))


def _texts(column: pa.Array) -> tuple[Any, Any]:
    """Return the lengths of the values as text, -1 for null, and their bytes."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        column = pa.array([repr(value) for value in column.to_pylist()], pa.string())
    texts = column.cast(pa.large_binary() if _is_binary(column.type) else pa.large_string())
    lengths = pc.binary_length(texts).fill_null(-1).to_numpy()
    return lengths, text_buffers(texts.drop_null())[0]


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)
