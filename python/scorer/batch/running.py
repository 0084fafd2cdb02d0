"""The run of a batch: reads an input, scores it on several threads and writes the output in order."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from scorer.batch.checksums import RowsChecksum
from scorer.batch.inputs import BatchInput, SourceOptions, open_input
from scorer.batch.outputs import BatchOutput, FinishedPart, RunRecord
from scorer.batch.scoring import PROBLEM, BatchScorer, unused
from scorer.errors import BatchError

MEMORY: Final = 256 << 20
PART_ROWS: Final = 1_000_000
_MOST_ROWS: Final = 16_384
"""Rows of a batch. More are not faster, because their columns do not fit the processor's cache."""
_LEAST_ROWS: Final = 64
_WAITING: Final = 2
"""Batches that are read or written while the others are scored."""

ReportRows = Callable[[int, int | None], None]
"""Function of the rows done and the total, which is None while it is unknown."""


@dataclass(frozen=True)
class BatchTotals:
    """The result of a run.

    Attributes:
        rows: Rows of the output.
        bad_rows: Rows of the output without results.
        parts: Parts that were written, over all runs.
        scored: Rows that this run scored; the others were finished before.
        seconds: Duration of this run.
        unused: Columns of the input that were not read.
    """

    rows: int
    bad_rows: int
    parts: int
    scored: int
    seconds: float
    unused: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Rows that this run scored per second."""
        return self.scored / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class BatchRun:
    """A run from an input to an output.

    A run that was interrupted is continued by the same run: finished parts are kept.

    Attributes:
        scorer: The scorer.
        source: What is read.
        output: A directory for Parquet parts, or a file that ends with .parquet, .pq or .csv.
        part_rows: Rows of a part.
        memory: Memory in bytes for the batches in flight.
        threads: Batches that are scored at the same time; 0 for one per usable core.
    """

    scorer: BatchScorer
    source: SourceOptions
    output: Path
    part_rows: int = PART_ROWS
    memory: int = MEMORY
    threads: int = 0

    def run(self, report: ReportRows | None = None) -> BatchTotals:
        """Score every row of the input that is not finished.

        Args:
            report: Called as rows are done.

        Raises:
            BatchError: The input cannot be read, a row is refused, or the output cannot be written or
                continued.
        """
        began = time.monotonic()
        source = open_input(self.source, self.scorer)
        output = BatchOutput(self.output)
        identity = run_identity(self.scorer, source, self.part_rows)
        result_schema(self._scorer_at(self.scorer.at, output), source, output)
        with output.opened(identity, self.scorer.at) as record:
            before = sum(part.rows for part in record.parts)
            if not record.complete:
                run = replace(self, scorer=self._scorer_at(record.at, output))
                schema = result_schema(run.scorer, source, output)
                run._finish(source, output, record, schema, report or ignore_rows)
            return totals_of(record, source, self.scorer, before, began)

    def _scorer_at(self, at: int, output: BatchOutput) -> BatchScorer:
        return self.scorer.for_run(at, joins_lists=output.is_csv)

    def _finish(
        self,
        source: BatchInput,
        output: BatchOutput,
        record: RunRecord,
        schema: pa.Schema,
        report: ReportRows,
    ) -> None:
        """Write the parts that are not finished, then complete the output."""
        done = sum(part.rows for part in record.parts)
        threads = self.threads or len(os.sched_getaffinity(0))
        most = batch_rows(self.scorer, self.memory, threads)
        skip = done if source.has_stable_rows else 0
        rows = _Rows(source.batches(skip, most))
        if not source.has_stable_rows:
            for part in record.parts:
                self._recognise(part, rows)
        pool = ThreadPoolExecutor(threads, thread_name_prefix="scorer-batch")
        try:
            while not (rows.at_end() and record.parts):
                checksum = None if source.has_stable_rows else RowsChecksum(self.scorer)
                number, count, bad = len(record.parts), 0, 0
                with output.writing(number, schema) as write:
                    for batch in self._scored(pool, threads, rows.take(self.part_rows), done, checksum):
                        write(batch)
                        count += batch.num_rows
                        bad += _bad_rows(batch)
                        report(done + count, source.rows)
                path = output.part(number)
                size, check = path.stat().st_size, checksum.hexadecimal() if checksum else ""
                record.parts.append(FinishedPart(path.name, count, bad, size, check))
                output.save(record)
                done += count
        finally:
            pool.shutdown(cancel_futures=True)
        output.finish(record)

    def _scored(
        self,
        pool: ThreadPoolExecutor,
        threads: int,
        batches: Iterator[pa.RecordBatch],
        first_row: int,
        checksum: RowsChecksum | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the results of batches in order, while the next ones are scored on other threads."""
        waiting: deque[Future[pa.RecordBatch]] = deque()
        for batch in batches:
            if checksum is not None:
                checksum.add(batch)
            waiting.append(pool.submit(self.scorer.score, batch, first_row))
            first_row += batch.num_rows
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _recognise(self, part: FinishedPart, rows: _Rows) -> None:
        """Read the rows of a finished part again and check that they are the same."""
        checksum, count = RowsChecksum(self.scorer), 0
        for batch in rows.take(part.rows):
            checksum.add(batch)
            count += batch.num_rows
        if count != part.rows or checksum.hexadecimal() != part.checksum:
            raise BatchError(
                f'output "{self.output}": the query returns other rows than when {part.name} was written; '
                "add ORDER BY to the query, or give another output"
            )


class _Rows:
    """Batches that are read in portions of rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._next: pa.RecordBatch | None = None

    def at_end(self) -> bool:
        """Return whether there are no more rows."""
        while self._next is None or not self._next.num_rows:
            self._next = next(self._batches, None)
            if self._next is None:
                return True
        return False

    def take(self, most: int) -> Iterator[pa.RecordBatch]:
        """Yield batches of the next rows, `most` rows in total."""
        while most > 0 and not self.at_end():
            batch: Any = self._next
            self._next = None
            if batch.num_rows > most:
                batch, self._next = batch.slice(0, most), batch.slice(most)
            most -= batch.num_rows
            yield batch


def _bad_rows(batch: pa.RecordBatch) -> int:
    at = batch.schema.get_field_index(PROBLEM)
    return 0 if at < 0 else batch.num_rows - batch.column(at).null_count


def result_schema(scorer: BatchScorer, source: BatchInput, output: BatchOutput) -> pa.Schema:
    """Return the schema of a run's output, with the bundle's digest and the time of its rules as metadata.

    Args:
        scorer: The scorer.
        source: The input.
        output: The output.

    Raises:
        BatchError: The output's format cannot hold a column.
    """
    schema = scorer.output_schema(source.schema)
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if output.is_csv and nested:
        raise BatchError(
            f'output "{output.path}": column "{nested[0]}" is a list or a struct, which CSV cannot hold; '
            "give an output that ends with .parquet"
        )
    metadata = {"scorer.bundle": scorer.bundle.digest}
    if scorer.bundle.rules is not None:
        metadata["scorer.at"] = datetime.fromtimestamp(scorer.at, UTC).isoformat()
    return schema.with_metadata(metadata)


def run_identity(scorer: BatchScorer, source: BatchInput, part_rows: int) -> dict[str, Any]:
    """Return what must be the same for a run to be continued.

    Args:
        scorer: The scorer.
        source: The input.
        part_rows: Rows of a part.
    """
    columns = asdict(scorer.columns)
    # Without a given time, a continued run has the time of the first one.
    if columns["at"] is None:
        del columns["at"]
    identity = {
        "bundle": scorer.bundle.digest,
        "input": dict(source.identity),
        "columns": columns,
        "part_rows": part_rows,
    }
    # Earlier versions did not apply rules, and their runs are not continued.
    return identity if scorer.bundle.rules is None else {**identity, "rules": "applied"}


def batch_rows(scorer: BatchScorer, memory: int, threads: int) -> int:
    """Return the number of rows of a batch.

    Args:
        scorer: The scorer.
        memory: Memory in bytes for the rows in work.
        threads: Batches that are scored at the same time.
    """
    return max(_LEAST_ROWS, min(_MOST_ROWS, memory // ((threads + _WAITING) * scorer.row_bytes)))


def totals_of(
    record: RunRecord, source: BatchInput, scorer: BatchScorer, before: int, began: float
) -> BatchTotals:
    """Return the totals of a run that has ended.

    Args:
        record: The record of the run.
        source: The input.
        scorer: The scorer.
        before: Rows that earlier runs have finished.
        began: Start of this run, by the monotonic clock in seconds.
    """
    rows = sum(part.rows for part in record.parts)
    return BatchTotals(
        rows=rows,
        bad_rows=sum(part.bad_rows for part in record.parts),
        parts=len(record.parts),
        scored=rows - before,
        seconds=time.monotonic() - began,
        unused=tuple(unused(source.schema, scorer.inputs)),
    )


def ignore_rows(_done: int, _total: int | None) -> None:
    """Report no progress to anyone."""
