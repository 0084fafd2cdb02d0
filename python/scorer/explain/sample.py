"""A bounded random sample of a table's rows, encoded for a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from scorer.batch.encoding import ColumnEncoder
from scorer.batch.inputs import SourceOptions, open_input
from scorer.batch.scoring import BatchColumns
from scorer.bundle.check import read_schema, verify
from scorer.bundle.loaded import Bundle
from scorer.errors import BundleError
from scorer.stats.arrays import Bools, Rows32

Progress = Callable[[int, int | None], None]

_BATCH: Final = 8192
MAX_VALUES: Final = 1 << 25
"""Largest number of values of a sample, which bounds the memory of an explanation."""


class FeatureReader:
    """A bundle that reads its features from a table, and no other columns.

    Args:
        directory: The bundle's directory.

    Raises:
        BundleError: The bundle is not valid.
    """

    def __init__(self, directory: Path) -> None:
        self.bundle = verify(directory)
        self.encoder = ColumnEncoder(read_schema(directory).features)
        self.columns = BatchColumns()

    @property
    def inputs(self) -> list[str]:
        """Names of the columns that are read."""
        return self.encoder.names

    def check(self, schema: pa.Schema, where: str) -> None:
        """Check that a table has the features, each of a usable type; see `ColumnEncoder.check`."""
        self.encoder.check(schema, where)


@dataclass(frozen=True)
class RowSample:
    """A uniform sample of the accepted rows of a table, in their order.

    Attributes:
        rows: Encoded rows ``[n, features]``.
        seen: Rows that were read.
        refused: Rows among them that the schema rejects.
        source: Names of the files, without directories.
    """

    rows: Rows32
    seen: int
    refused: int
    source: str

    @property
    def digest(self) -> str:
        """SHA-256 of the encoded rows."""
        return f"sha256:{hashlib.sha256(np.ascontiguousarray(self.rows).tobytes()).hexdigest()}"


def read_sample(
    reader: FeatureReader, source: SourceOptions, most: int, seed: int, progress: Progress | None = None
) -> RowSample:
    """Read a table once and keep a random sample of the rows that the bundle accepts.

    Args:
        reader: The bundle.
        source: What is read.
        most: Largest number of rows of the sample.
        seed: Seed of the sample. The same seed and rows give the same sample.
        progress: Called with the rows read and their total, which is None while it is unknown.

    Raises:
        BatchError: The table cannot be read, or a column is missing or has a wrong type.
        BundleError: The table has no row that the bundle accepts, or the sample would be too large.
    """
    features = len(reader.encoder.features)
    if most * max(features, 1) > MAX_VALUES:
        raise BundleError(
            f"rows: a sample of {most:,} rows of {features} features has more than {MAX_VALUES:,} values; "
            f"use at most {MAX_VALUES // max(features, 1):,} rows"
        )
    table = open_input(source, reader)
    random = np.random.default_rng(seed)
    # The rows with the smallest random numbers are a uniform sample, however many rows there are.
    kept = np.empty((0, features), np.float32)
    keys = np.empty(0)
    places = np.empty(0, np.int64)
    seen = refused = 0
    first = ""
    for batch in table.batches(0, _BATCH):
        columns, problems = reader.encoder.encode(batch)
        rows = np.ascontiguousarray(columns.T)
        accepted = np.ones(len(rows), dtype=bool)
        accepted[list(problems)] = False
        first = first or next(iter(problems.values()), "")
        first = _refuse(reader.bundle, rows, accepted) or first
        own = random.random(len(rows))
        keys = np.concatenate([keys, own[accepted]])
        places = np.concatenate([places, seen + np.flatnonzero(accepted)])
        kept = np.concatenate([kept, rows[accepted]])
        if len(keys) > most:
            best = np.sort(np.argpartition(keys, most - 1)[:most])
            keys, places, kept = keys[best], places[best], kept[best]
        seen += len(rows)
        refused += int((~accepted).sum())
        if progress is not None:
            progress(seen, table.rows)
    if not len(kept):
        reason = f"; the first reason is: {first}" if first else "; it has no rows"
        raise BundleError(f"input: the bundle accepts none of its {seen:,} rows{reason}")
    order = np.argsort(places)
    return RowSample(np.ascontiguousarray(kept[order]), seen, refused, _name(source))


def _refuse(bundle: Bundle, rows: Rows32, accepted: Bools) -> str:
    """Mark the rows that the schema rejects; return the reason of one of them."""
    where = np.flatnonzero(accepted)
    reason = ""
    waiting = [where] if len(where) else []
    while waiting:
        part = waiting.pop()
        try:
            bundle.check(rows[part])
        except BundleError as error:
            if len(part) == 1:
                accepted[part[0]] = False
                reason = str(error)
            else:
                waiting += np.array_split(part, 2)
    return reason


def _name(source: SourceOptions) -> str:
    if source.sql is not None:
        return "query"
    names = [Path(path).name for path in source.paths]
    shown = ", ".join(names[:5])
    return shown[:400] + (f" and {len(names) - 5} more" if len(names) > 5 else "")
