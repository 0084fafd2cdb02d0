"""Batch scoring in Ray Data, by `Dataset.map_batches`."""

from __future__ import annotations

from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scorer.batch.scoring import BatchColumns, BatchScorer
from scorer.batch.workers import worker_scorer

if TYPE_CHECKING:
    from ray.data import Dataset

_BATCH = 16_384


def score_dataset(
    dataset: Dataset,
    bundle: str | PathLike[str],
    columns: BatchColumns | None = None,
    *,
    batch_size: int = _BATCH,
    **options: Any,
) -> Dataset:
    """Score a data set. Each worker process loads the bundle once.

    Args:
        dataset: The rows.
        bundle: The bundle's directory, at the same path on every machine.
        columns: The columns that are read and returned; None for the scores alone.
        batch_size: Rows of a batch.
        options: Other arguments of `Dataset.map_batches`, such as `num_cpus`.

    Returns:
        A data set with the kept columns and the results.

    Raises:
        BundleError: The bundle is not valid.
        BatchError: The columns do not suit the kind of the bundle.
    """
    scorer = BatchScorer.load(bundle, columns)
    score = partial(_score_table, fspath(bundle), scorer.bundle.digest, scorer.columns)
    return dataset.map_batches(
        score, batch_format="pyarrow", batch_size=batch_size, zero_copy_batch=True, **options
    )


def _score_table(bundle: str, digest: str, columns: BatchColumns, table: pa.Table) -> pa.Table:
    scorer = worker_scorer(bundle, digest, columns)
    scorer.check(table.schema, "the data set")
    batches = [scorer.score(batch) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, scorer.output_schema(table.schema))
