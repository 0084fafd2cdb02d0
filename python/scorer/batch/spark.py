"""Batch scoring in Spark: of files, which its tasks read and write, and of data frames, by `mapInArrow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from scorer.batch.cluster import ClusterRun, PartResult
from scorer.batch.inputs import SourceOptions
from scorer.batch.plans import PlannedPart
from scorer.batch.portions import one_line
from scorer.batch.running import MEMORY, PART_ROWS, BatchTotals
from scorer.batch.scoring import BatchColumns, BatchScorer
from scorer.batch.workers import worker_scorer
from scorer.errors import BatchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def score_files(
    session: SparkSession,
    inputs: str | PathLike[str] | Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    bundle: str | PathLike[str],
    columns: BatchColumns | None = None,
    *,
    delta_version: int | None = None,
    part_rows: int = PART_ROWS,
    memory: int = MEMORY,
) -> BatchTotals:
    """Score files. Spark's tasks read them and write the output; their columns do not pass through Spark.

    The same call continues an interrupted run. All paths must be the same on every machine.

    Args:
        session: The session. A task of it scores one part on one core.
        inputs: Parquet or CSV files, or one directory of such files or with a Delta table.
        output: A directory for Parquet parts.
        bundle: The bundle's directory.
        columns: The columns that are read and returned; None for the scores alone.
        delta_version: Version of the Delta table; None for the newest.
        part_rows: Greatest number of rows of a part, unless a row group has more.
        memory: Memory in bytes for the rows in work, in each worker.

    Raises:
        BundleError: The bundle is not valid.
        BatchError: The input cannot be read, a row is refused, the output cannot be written or continued, or
            Spark has ended the job.
    """
    source = SourceOptions.of_files(inputs, delta_version)
    run = ClusterRun(
        bundle=Path(bundle),
        columns=columns or BatchColumns(),
        source=source,
        output=Path(output),
        part_rows=part_rows,
        memory=memory,
    )
    return run.run(partial(execute_parts, session))


def execute_parts(
    session: SparkSession, score: Callable[[PlannedPart], PartResult], parts: Sequence[PlannedPart]
) -> Iterable[PartResult]:
    """Call a function for each part, in a task of its own; see `scorer.batch.cluster.ExecuteParts`.

    Args:
        session: The session.
        score: The function.
        parts: The parts.

    Raises:
        BatchError: Spark has ended the job.
    """
    from py4j.protocol import Py4JError

    try:
        rows = session.sparkContext.parallelize(parts, len(parts))
        results: list[PartResult] = rows.map(score).collect()
    except Py4JError as error:
        raise BatchError(
            f"Spark has ended the job: {one_line(error)}; correct the cause and start the run again, which "
            "continues it"
        ) from error
    return results


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
    score = partial(_score_batches, fspath(bundle), scorer.bundle.digest, scorer.columns_at(scorer.at))
    return rows.mapInArrow(score, from_arrow_schema(scorer.output_schema(schema)))


def _score_batches(
    bundle: str, digest: str, columns: BatchColumns, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    scorer = worker_scorer(bundle, digest, columns)
    for batch in batches:
        yield scorer.score(batch)
