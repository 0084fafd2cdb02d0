"""Batch scoring in Ray: of files, by tasks that read and write them, and of data sets, by `map_batches`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from ray.data import Dataset

_BATCH = 16_384
_SUBMITTED = 1000
"""Greatest number of tasks that have been given to Ray and have not ended."""


def score_files(
    inputs: str | PathLike[str] | Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    bundle: str | PathLike[str],
    columns: BatchColumns | None = None,
    *,
    delta_version: int | None = None,
    part_rows: int = PART_ROWS,
    memory: int = MEMORY,
    **options: Any,
) -> BatchTotals:
    """Score files. Ray's tasks read them and write the output; their columns do not pass through Ray.

    The same call continues an interrupted run. All paths must be the same on every machine.

    Args:
        inputs: Parquet or CSV files, or one directory of such files or with a Delta table.
        output: A directory for Parquet parts.
        bundle: The bundle's directory.
        columns: The columns that are read and returned; None for the scores alone.
        delta_version: Version of the Delta table; None for the newest.
        part_rows: Greatest number of rows of a part, unless a row group has more.
        memory: Memory in bytes for the rows in work, in each worker.
        options: Options of the tasks, such as `max_retries`. A task scores one part on one core.

    Raises:
        BundleError: The bundle is not valid.
        BatchError: The input cannot be read, a row is refused, the output cannot be written or continued, or
            Ray has ended a task.
    """
    run = ClusterRun(
        bundle=Path(bundle),
        columns=columns or BatchColumns(),
        source=SourceOptions.of_files(inputs, delta_version),
        output=Path(output),
        part_rows=part_rows,
        memory=memory,
    )
    return run.run(partial(execute_parts, options))


def execute_parts(
    options: Mapping[str, Any], score: Callable[[PlannedPart], PartResult], parts: Sequence[PlannedPart]
) -> Iterator[PartResult]:
    """Call a function for each part, in a task of its own; see `scorer.batch.cluster.ExecuteParts`.

    Args:
        options: Options of the tasks.
        score: The function.
        parts: The parts.

    Raises:
        BatchError: Ray has ended a task.
    """
    import ray
    from ray.exceptions import RayError

    task = ray.remote(_call).options(**{"num_cpus": 1, **options})
    function = ray.put(score)
    waiting = deque(parts)
    running: list[Any] = []
    try:
        while waiting or running:
            while waiting and len(running) < _SUBMITTED:
                running.append(task.remote(function, waiting.popleft()))
            done, running = ray.wait(running, num_returns=1)
            yield from ray.get(done)
    except RayError as error:
        raise BatchError(
            f"Ray has ended a task: {one_line(error)}; correct the cause and start the run again, which "
            "continues it"
        ) from error
    finally:
        for one in running:
            ray.cancel(one)


def _call(score: Callable[[PlannedPart], PartResult], part: PlannedPart) -> PartResult:
    return score(part)


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
    score = partial(_score_table, fspath(bundle), scorer.bundle.digest, scorer.columns_at(scorer.at))
    return dataset.map_batches(
        score, batch_format="pyarrow", batch_size=batch_size, zero_copy_batch=True, **options
    )


def _score_table(bundle: str, digest: str, columns: BatchColumns, table: pa.Table) -> pa.Table:
    scorer = worker_scorer(bundle, digest, columns)
    scorer.check(table.schema, "the data set")
    batches = [scorer.score(batch) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, scorer.output_schema(table.schema))
