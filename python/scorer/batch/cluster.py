"""Runs on a cluster whose tasks read their files, score them and write their part of the output themselves.

The driver plans the parts and sends each task the names of its files and row groups. No column of the input
passes through the driver or the engine. Each attempt of a task writes a staged file of its own, and the
driver gives one staged file of each part the part's name, so an attempt that is repeated doubles no rows. A
run that is started again uses the staged files that the last one has left.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from scorer.batch.inputs import SourceOptions, open_input
from scorer.batch.outputs import BatchOutput, RunRecord, writing_file
from scorer.batch.plans import PlannedPart, plan_parts
from scorer.batch.portions import Portion
from scorer.batch.running import (
    MEMORY,
    PART_ROWS,
    BatchTotals,
    ReportRows,
    batch_rows,
    ignore_rows,
    result_schema,
    run_identity,
    totals_of,
)
from scorer.batch.scoring import BatchColumns, BatchScorer
from scorer.batch.workers import worker_scorer
from scorer.errors import BatchError, BundleError

_ATTEMPTS: Final = 3
"""How often a part is tried whose files could not be read or written."""


@dataclass(frozen=True)
class PartTask:
    """What a task must have beside its part.

    Attributes:
        bundle: The bundle's directory.
        digest: The bundle's digest.
        columns: The columns that are read and returned.
        output: The output's directory.
        run: Name of the run, which is in the names of staged files.
        schema: Schema of the results.
        memory: Memory in bytes for the rows in work.
    """

    bundle: str
    digest: str
    columns: BatchColumns
    output: Path
    run: str
    schema: pa.Schema
    memory: int


@dataclass(frozen=True)
class PartResult:
    """What a task returns to the driver.

    Attributes:
        number: Number of the part.
        staged: Name of the file that was written; empty if there is a problem.
        problem: Why the part could not be scored.
        is_transient: Whether another attempt can succeed.
    """

    number: int
    staged: str = ""
    problem: str = ""
    is_transient: bool = False


ExecuteParts = Callable[[Callable[[PlannedPart], PartResult], Sequence[PlannedPart]], Iterable[PartResult]]
"""Function of an engine: calls a function for each part in worker processes. The order of results is free."""


@dataclass(frozen=True)
class ClusterRun:
    """A run from files to a directory of Parquet parts, by the workers of an engine.

    A run that was interrupted is continued by the same run: finished parts are kept.

    Attributes:
        bundle: The bundle's directory, at the same path on every machine.
        columns: The columns that are read and returned.
        source: Files or a Delta table, at the same path on every machine.
        output: A directory, at the same path on every machine.
        part_rows: Greatest number of rows of a part, unless a row group has more.
        memory: Memory in bytes for the rows in work, in each worker.
    """

    bundle: Path
    columns: BatchColumns
    source: SourceOptions
    output: Path
    part_rows: int = PART_ROWS
    memory: int = MEMORY

    def run(self, execute: ExecuteParts, report: ReportRows | None = None) -> BatchTotals:
        """Score every part that is not finished.

        Args:
            execute: Runs a function on the engine.
            report: Called as parts are done.

        Raises:
            BundleError: The bundle is not valid.
            BatchError: The input cannot be read, a row is refused, or the output cannot be written or
                continued.
        """
        began = time.monotonic()
        scorer = BatchScorer.load(self.bundle, self.columns)
        source = open_input(self.source, scorer)
        output = BatchOutput(self.output.absolute())
        if output.is_file:
            raise BatchError(
                f'output "{self.output}": a cluster writes a directory of Parquet parts; give an output '
                "without this ending"
            )
        parts = plan_parts(source.portions(), self.part_rows)
        result_schema(scorer, source, output)
        identity = {**run_identity(scorer, source, self.part_rows), "cut": "row groups"}
        with output.opened(identity, scorer.at) as record:
            task = PartTask(
                bundle=str(self.bundle.absolute()),
                digest=scorer.bundle.digest,
                columns=scorer.columns_at(record.at),
                output=output.path,
                run=_name(identity),
                schema=result_schema(scorer.for_run(record.at, joins_lists=False), source, output),
                memory=self.memory,
            )
            # Files that workers of an interrupted run have completed.
            staged = output.staged(task.run)
            missing = staged.keys() - output.numbers(record)
            output.commit(
                record, {at: staged[at] for at in missing}, {part.number: part.rows for part in parts}
            )
            before = sum(part.rows for part in record.parts)
            if not record.complete:
                self._finish(task, parts, output, record, execute, report or ignore_rows)
            return totals_of(record, source, scorer, before, began)

    def _finish(
        self,
        task: PartTask,
        parts: Sequence[PlannedPart],
        output: BatchOutput,
        record: RunRecord,
        execute: ExecuteParts,
        report: ReportRows,
    ) -> None:
        """Have the parts written that are not finished, then complete the output."""
        rows = {part.number: part.rows for part in parts}
        counts = rows.values()
        total = None if None in counts else sum(count or 0 for count in counts)
        finished = output.numbers(record)
        todo = [part for part in parts if part.number not in finished]
        failures: dict[int, PartResult] = {}
        for _ in range(_ATTEMPTS):
            if not todo:
                break
            staged: dict[int, Path] = {}
            done = sum(part.rows for part in record.parts)
            for result in execute(partial(score_part, task), todo):
                if result.problem:
                    failures[result.number] = result
                    continue
                failures.pop(result.number, None)
                staged[result.number] = output.path / result.staged
                done += rows[result.number] or 0
                report(done, total)
            output.commit(record, staged, rows)
            todo = [parts[at] for at, result in sorted(failures.items()) if result.is_transient]
        if failures:
            first = failures[min(failures)].problem
            more = f" (and {len(failures) - 1:,} more parts)" if len(failures) > 1 else ""
            raise BatchError(f"{first}{more}")
        if missing := rows.keys() - output.numbers(record):
            raise BatchError(
                f'output "{output.path}": the engine returned no result of part {min(missing)}; start the '
                "run again, which continues it"
            )
        output.discard_staged()
        output.finish(record)


def score_part(task: PartTask, part: PlannedPart) -> PartResult:
    """Score a part in a worker process and write it to a staged file.

    A problem is returned and not raised: the engine would start the task again although it cannot succeed.

    Args:
        task: The bundle, the output and what is returned.
        part: The rows.
    """
    try:
        staged = BatchOutput(task.output).stage(part.number, task.run)
        scorer = worker_scorer(task.bundle, task.digest, task.columns)
        most = batch_rows(scorer, task.memory, threads=1)
        with writing_file(staged, task.schema) as write:
            for portion in part.portions:
                for batch in _scored(scorer, portion, most):
                    write(batch)
    except (BatchError, BundleError) as error:
        return PartResult(part.number, "", str(error), isinstance(error.__cause__, OSError))
    return PartResult(part.number, staged.name)


def _scored(scorer: BatchScorer, portion: Portion, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the results of a portion. The worker may use one core, so nothing is done in parallel."""
    row = portion.first_row
    for batch in portion.batches(0, most, parallel=False):
        try:
            yield scorer.score(batch, row)
        except BatchError as error:
            raise BatchError(f'input "{portion.name}": {error}') from error
        row += batch.num_rows


def _name(identity: Mapping[str, Any]) -> str:
    """Return the name of a run, which a continued run has, too."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
