"""Export of a log to Parquet, in several passes: for outcomes, for decisions and for observations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from scorer.errors import LogError
from scorer.ids import record_key
from scorer.log.bundles import BundleShelf
from scorer.log.outcomes import Conflict, OutcomeJoin
from scorer.log.reading import Advance, LogFinding
from scorer.log.scanning import LogScan, scan
from scorer.log.sealing import ReaderKey, SealedCounts
from scorer.log.tables import (
    OUTCOMES,
    ExportLayout,
    decisions_batch,
    observations_batch,
    observations_schema,
    outcomes_batch,
)

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

_ROW_GROUP = 16_384

_T = TypeVar("_T")


@dataclass(frozen=True)
class Exported:
    """Counts of what an export wrote and skipped."""

    decisions: int
    """Decisions that were written."""
    with_outcome: int
    """Decisions that were written with at least one outcome."""
    repeated: int
    """Decisions that were skipped because an earlier record has the same id."""
    outside: int
    """Decisions that were skipped because of `since` and `until`."""
    outcomes: int
    """Reports of outcomes in the log."""
    outcome_duplicates: int
    """Reports that repeat an earlier one."""
    outcomes_superseded: int
    """Reports that do not count because another revision does."""
    orphans: int
    """Decisions with outcomes that are not in this log or were skipped."""
    conflicts: tuple[Conflict, ...]
    """Reports that contradict an earlier one."""
    unnamed: tuple[str, ...]
    """Digests whose bundle was not found. Their features have no columns by name."""
    findings: tuple[LogFinding, ...]
    """Faults of the log's files."""
    observations: int = 0
    """Observations that were written; 0 without `observations_to`."""
    observations_repeated: int = 0
    """Observations that were skipped because the same lane and bundle had observed the decision before."""
    observations_unwritten: int = 0
    """Observations within the time window that were not written because `observations_to` was not given."""
    sealed: SealedCounts = field(default_factory=SealedCounts)
    """Sensitive features of the log's decisions."""


def export(
    directory: str | PathLike[str],
    to: str | PathLike[str],
    *,
    outcomes_to: str | PathLike[str] | None = None,
    observations_to: str | PathLike[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    bundles: BundleShelf | None = None,
    advance: Advance | None = None,
    reader_key: ReaderKey | None = None,
) -> Exported:
    """Write the decisions of a log with their outcomes to a Parquet file.

    Args:
        directory: The log's directory.
        to: The file to write. It is created atomically and replaces an existing file.
        outcomes_to: A second file for all reported outcomes, one row per revision.
        observations_to: A third file for observations, one row per lane and decision. The columns of features
            have the names in the observing bundles.
        since: Skip decisions, and observations of decisions, before this time.
        until: Skip decisions, and observations of decisions, at or after this time. Outcomes are joined
            whatever their time is.
        bundles: Bundles that give features their names.
        advance: Called with the bytes read so far and the total bytes, over all passes.
        reader_key: Key that decrypts sensitive features; without it they are null.

    Returns:
        Counts of the rows that were written and skipped.

    Raises:
        LogError: The directory is not a log, or a file cannot be written.
    """
    window = _Window(_microseconds(since), _microseconds(until))
    passes = 2 if observations_to is None else 3
    layout, observed, outcomes = ExportLayout(), ExportLayout(), OutcomeJoin()
    unnamed, unwritten = _gather(
        directory, window, bundles, layout, observed, outcomes, _part(advance, 0, passes)
    )
    layout.kinds = outcomes.kinds
    entries = scan(directory, kinds={"decision"}, advance=_part(advance, 1, passes), reader_key=reader_key)
    rows = _Decisions(window)
    joined = 0
    with _writing(Path(to), layout.schema) as writer:
        for chunk in _chunks(rows.of(entries), _ROW_GROUP):
            writer.write_batch(decisions_batch(chunk, layout, outcomes), row_group_size=_ROW_GROUP)
            joined += sum(bool(outcomes.of(one.checkpoint, one.decision_id)) for _, one in chunk)
    if outcomes_to is not None:
        with _writing(Path(outcomes_to), OUTCOMES) as writer:
            for reports in _chunks(outcomes, _ROW_GROUP):
                writer.write_batch(outcomes_batch(reports), row_group_size=_ROW_GROUP)
    observations = _Observations(window)
    if observations_to is not None:
        unwritten = 0
        with _writing(Path(observations_to), observations_schema(observed)) as writer:
            again = scan(
                directory, kinds={"observation"}, advance=_part(advance, 2, passes), reader_key=reader_key
            )
            for seen in _chunks(observations.of(again), _ROW_GROUP):
                writer.write_batch(observations_batch(seen, observed), row_group_size=_ROW_GROUP)
    return Exported(
        decisions=rows.written,
        with_outcome=joined,
        repeated=rows.repeated,
        outside=rows.outside,
        outcomes=outcomes.reports,
        outcome_duplicates=outcomes.duplicates,
        outcomes_superseded=outcomes.superseded,
        orphans=len(outcomes) - joined,
        conflicts=tuple(outcomes.conflicts),
        unnamed=tuple(unnamed),
        findings=tuple(entries.findings),
        observations=observations.written,
        observations_repeated=observations.repeated,
        observations_unwritten=unwritten,
        sealed=entries.sealed,
    )


@dataclass(frozen=True)
class _Window:
    since_us: int | None
    until_us: int | None

    def holds(self, at: int) -> bool:
        return (self.since_us is None or at >= self.since_us) and (
            self.until_us is None or at < self.until_us
        )


class _Decisions:
    """Selects the decisions to write: those within the time window, and the first of each id."""

    def __init__(self, window: _Window) -> None:
        self._window = window
        self._seen: set[bytes] = set()
        self.written = 0
        self.repeated = 0
        self.outside = 0

    def of(self, entries: LogScan) -> Iterator[tuple[int, DecisionRecord]]:
        for sequence, _, decision in entries:
            if not self._window.holds(decision.decided_at_us):
                self.outside += 1
                continue
            key = record_key(decision.checkpoint, decision.decision_id)
            if key in self._seen:
                self.repeated += 1
                continue
            self._seen.add(key)
            self.written += 1
            yield sequence, decision


class _Observations:
    """Selects the observations to write: in the time window, and the first per decision, lane and bundle."""

    def __init__(self, window: _Window) -> None:
        self._window = window
        self._seen: set[bytes] = set()
        self.written = 0
        self.repeated = 0

    def of(self, entries: LogScan) -> Iterator[tuple[int, ObservationRecord]]:
        for sequence, _, observation in entries:
            decision = observation.decision
            if not self._window.holds(observation.answered_at_us):
                continue
            key = record_key(decision.checkpoint, decision.decision_id, decision.lane, decision.bundle.hex())
            if key in self._seen:
                self.repeated += 1
                continue
            self._seen.add(key)
            self.written += 1
            yield sequence, observation


def _gather(
    directory: str | PathLike[str],
    window: _Window,
    bundles: BundleShelf | None,
    layout: ExportLayout,
    observed: ExportLayout,
    outcomes: OutcomeJoin,
    advance: Advance | None,
) -> tuple[list[str], int]:
    """Run the first pass. Return the digests of unknown bundles, and the number of observations."""
    unnamed: dict[str, None] = {}
    observations = 0
    for sequence, kind, record in scan(directory, advance=advance):
        unknown: str | None = None
        if kind == "outcome":
            outcomes.add(sequence, record)
        elif kind == "decision" and window.holds(record.decided_at_us):
            unknown = layout.add(record, bundles)
        elif kind == "observation" and window.holds(record.answered_at_us):
            observations += 1
            unknown = observed.add(record.decision, bundles)
        if unknown is not None:
            unnamed[unknown] = None
    return list(unnamed), observations


@contextmanager
def _writing(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Open a temporary Parquet file for writing, and rename it to `path` when it is complete."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            yield writer
        partial.replace(path)
    except OSError as error:
        raise LogError(
            f'cannot write "{path}": {error.strerror or error}; name a file in a directory with room'
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _chunks(items: Iterable[_T], count: int) -> Iterator[list[_T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, count)):
        yield chunk


def _microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1_000_000)


def _part(advance: Advance | None, at: int, of: int) -> Advance | None:
    return advance and (lambda done, total: advance(at * total + done, of * total))
