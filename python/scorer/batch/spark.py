"""Batch scoring in Spark, by `DataFrame.mapInArrow`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING

import pyarrow as pa

from scorer.batch.scoring import BatchColumns, BatchScorer
from scorer.batch.workers import worker_scorer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def score_frame(
    frame: DataFrame, bundle: str | PathLike[str], columns: BatchColumns | None = None
) -> DataFrame:
    """Score a data frame. Each worker process loads the bundle once.

    Args:
        frame: The rows.
        bundle: The bundle's directory, at the same path on every machine.
        columns: The columns that are read and returned; None for the scores alone.

    Returns:
        A data frame with the kept columns and the results.

    Raises:
        BundleError: The bundle is not valid.
        BatchError: A column is missing or has a type that cannot be used.
    """
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    scorer = BatchScorer.load(bundle, columns)
    needed = set(scorer.inputs)
    schema = to_arrow_schema(StructType([field for field in frame.schema.fields if field.name in needed]))
    scorer.check(schema, "the data frame")
    rows = frame.select(*(f"`{name.replace('`', '``')}`" for name in scorer.inputs))
    score = partial(_score_batches, fspath(bundle), scorer.bundle.digest, scorer.columns)
    return rows.mapInArrow(score, from_arrow_schema(scorer.output_schema(schema)))


def _score_batches(
    bundle: str, digest: str, columns: BatchColumns, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    scorer = worker_scorer(bundle, digest, columns)
    for batch in batches:
        yield scorer.score(batch)
