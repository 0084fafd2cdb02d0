"""Streams a log to Parquet: one pass for the outcomes, one for the decisions they join."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from scorer.errors import LogError
from scorer.log.bundles import BundleShelf
from scorer.log.outcomes import Conflict, OutcomeJoin
from scorer.log.reading import Advance, Finding, LogReader
from scorer.log.tables import OUTCOMES, Layout, decisions_batch, digest_of, outcomes_batch

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord

_ROW_GROUP = 16_384

_T = TypeVar("_T")


@dataclass(frozen=True)
class Exported:
    """What an export wrote and left out."""

    decisions: int
    with_outcome: int
    repeated: int
    """Decisions left out because an earlier record has the same id: the first one counts."""
    outside: int
    """Decisions left out by `since` and `until`."""
    outcomes: int
    outcome_duplicates: int
    outcomes_superseded: int
    orphans: int
    """Decisions that outcomes speak of and that are not in this log (or were left out)."""
    conflicts: tuple[Conflict, ...]
    unnamed: tuple[str, ...]
    """Digests whose bundle was not found: their features have no columns of their own."""
    findings: tuple[Finding, ...]


def export(
    directory: str | PathLike[str],
    to: str | PathLike[str],
    *,
    outcomes_to: str | PathLike[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    bundles: BundleShelf | None = None,
    advance: Advance | None = None,
) -> Exported:
    """Writes the decisions of a log, with what became known of them, to a Parquet file.

    Args:
        directory: The log.
        to: The file; it appears when it is complete and replaces an earlier one.
        outcomes_to: Another file for every reported outcome, one row per revision.
        since: Leave out decisions before this.
        until: Leave out decisions from here on. Outcomes join whenever they came.
        bundles: Where feature names come from.
        advance: Told the bytes read and to be read, over both passes.

    Raises:
        LogError: The directory is no log, or a file cannot be written.
    """
    window = _Window(_microseconds(since), _microseconds(until))
    layout, outcomes = Layout(), OutcomeJoin()
    unnamed = _gather(directory, window, bundles, layout, outcomes, advance)
    layout.kinds = outcomes.kinds
    reader = LogReader(directory)
    rows = _Decisions(window)
    joined = 0
    with _writing(Path(to), layout.schema) as writer:
        for chunk in _chunks(rows.of(reader, _second_half(advance)), _ROW_GROUP):
            writer.write_batch(decisions_batch(chunk, layout, outcomes), row_group_size=_ROW_GROUP)
            joined += sum(bool(outcomes.of(one.checkpoint, one.decision_id)) for _, one in chunk)
    if outcomes_to is not None:
        with _writing(Path(outcomes_to), OUTCOMES) as writer:
            for reports in _chunks(outcomes, _ROW_GROUP):
                writer.write_batch(outcomes_batch(reports), row_group_size=_ROW_GROUP)
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
        findings=tuple(reader.findings),
    )


@dataclass(frozen=True)
class _Window:
    since_us: int | None
    until_us: int | None

    def holds(self, decision: DecisionRecord) -> bool:
        at = decision.decided_at_us
        return (self.since_us is None or at >= self.since_us) and (
            self.until_us is None or at < self.until_us
        )


class _Decisions:
    """The decisions to write: within the window, and each id once."""

    def __init__(self, window: _Window) -> None:
        self._window = window
        self._seen: set[bytes] = set()
        self.written = 0
        self.repeated = 0
        self.outside = 0

    def of(self, reader: LogReader, advance: Advance | None) -> Iterator[tuple[int, DecisionRecord]]:
        for sequence, record in reader.records(advance):
            if record.WhichOneof("record") != "decision":
                continue
            decision = record.decision
            if not self._window.holds(decision):
                self.outside += 1
                continue
            identity = f"{decision.checkpoint}\0{decision.decision_id}".encode()
            key = hashlib.blake2b(identity, digest_size=16).digest()
            if key in self._seen:
                self.repeated += 1
                continue
            self._seen.add(key)
            self.written += 1
            yield sequence, decision


def _gather(
    directory: str | PathLike[str],
    window: _Window,
    bundles: BundleShelf | None,
    layout: Layout,
    outcomes: OutcomeJoin,
    advance: Advance | None,
) -> list[str]:
    """The first pass; returns the digests whose bundle is not known."""
    unnamed: dict[str, None] = {}
    for sequence, record in LogReader(directory).records(_first_half(advance)):
        kind = record.WhichOneof("record")
        if kind == "outcome":
            outcomes.add(sequence, record.outcome)
        elif kind == "decision" and window.holds(record.decision):
            layout.widths.add(len(record.decision.features))
            digest = digest_of(record.decision)
            if digest not in layout.features and digest not in unnamed:
                names = bundles.feature_names(digest) if bundles is not None else None
                if names is None:
                    unnamed[digest] = None
                else:
                    layout.features[digest] = names
    return list(unnamed)


@contextmanager
def _writing(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """A Parquet file that appears under its name when it is complete."""
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


def _first_half(advance: Advance | None) -> Advance | None:
    return advance and (lambda done, total: advance(done, 2 * total))


def _second_half(advance: Advance | None) -> Advance | None:
    return advance and (lambda done, total: advance(total + done, 2 * total))
