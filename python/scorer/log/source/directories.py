"""Sources whose logs are local directories: those of one server or of several."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scorer.errors import LogError
from scorer.log.columns import ColumnBatch, record_columns, scan_columns
from scorer.log.erasure import erased
from scorer.log.reading import Advance, LogFinding
from scorer.log.scanning import DELIVERY, UNKNOWN, WITHDRAWN, LogScan, scan
from scorer.log.segments import log_identity, segment_files
from scorer.log.source.interface import Kind, ReadPosition, SourceBatch, SourceQuery
from scorer.log.source.rows import Record, table_of

PRUNED: Final = "pruned_unread"
"""Kind of the finding that records were removed before they were read."""

_KINDS: Final[dict[str, Kind]] = {
    "decision": "decisions",
    "outcome": "outcomes",
    DELIVERY: "deliveries",
    WITHDRAWN: "withdrawals",
    UNKNOWN: "unknown",
}


@dataclass(frozen=True)
class LogDirectories:
    """A source of one or more directories that servers write.

    Attributes:
        logs: The directories.
    """

    logs: tuple[LogDirectory, ...]


def log_directories(paths: Sequence[str | Path], base: Path | None = None) -> LogDirectories:
    """Return the source that reads the logs in these directories.

    Args:
        paths: The directories. They need not exist.
        base: Directory that relative paths start from; default: the working directory.

    Raises:
        LogError: There is no directory, one is given twice, or one is a URL.
    """
    if not paths:
        raise LogError("no decision log is given; name at least one directory")
    found: dict[Path, str] = {}
    for path in paths:
        if "://" in str(path):
            raise LogError(
                f'log "{path}" is a URL; name a directory that a server writes its log to, or '
                f'"delta:{path}" for the tables of `scorer ship`'
            )
        place = (base or Path()) / path
        if place.resolve() in found:
            raise LogError(f'log "{path}" is given twice; name each log once')
        found[place.resolve()] = str(path)
    return LogDirectories(
        tuple(LogDirectory(name, (base or Path()) / name) for name in found.values()),
    )


@dataclass(frozen=True)
class LogDirectory:
    """The log of one server in a local directory; a server may write to it at the same time.

    Attributes:
        name: Name in findings: the path as it was given.
        path: The directory.
    """

    name: str
    path: Path

    @property
    def location(self) -> str:
        """Path of the directory, as text for another process."""
        return str(self.path)

    @property
    def identity(self) -> str | None:
        """Identity of the log; None: there is none yet, or the directory cannot be read."""
        return log_identity(self.path)

    @property
    def erasures(self) -> str:
        """A value that changes with each erasure."""
        return erased(self.path).version

    def read(
        self, query: SourceQuery, after: ReadPosition | None = None, advance: Advance | None = None
    ) -> DirectoryPass:
        """Begin a pass; see `scorer.log.source.interface.ServerLog`."""
        identity = self.identity
        # The position without a mark is that of a log that had no record.
        known = after if after is not None and after.log == identity and after.mark else None
        return DirectoryPass(self, query, identity or "", known, advance)

    @property
    def identities(self) -> Sequence[str]:
        """Identity of the log, if there is one."""
        identity = self.identity
        return () if identity is None else (identity,)

    def records(self, identity: str, start: int) -> LogScan:
        """Begin a pass over whole records; see `scorer.log.source.records.RecordLog`."""
        return scan(self.path, start_sequence=start)

    def columns(
        self, checkpoint: str, advance: Advance | None = None, *, since_us: int = 0, mixed: bool = False
    ) -> Iterator[ColumnBatch]:
        """Yield the decisions and outcomes of a checkpoint as columns."""
        if mixed:
            return record_columns(scan(self.path, checkpoint=checkpoint, advance=advance), checkpoint)
        return scan_columns(self.path, checkpoint, advance=advance)


class DirectoryPass:
    """One pass over a local directory.

    A log is read in the order of its records, whatever their times are, so `SourceQuery.since_us` has no
    effect. A pass holds up to `SourceQuery.rows` records, and the `scorer.log.scanning.REACH` encoded records
    among which a withdrawal is expected. Continuing reads the last record of the earlier pass again, to
    compare it.

    Args:
        log: The directory.
        query: The rows that are needed.
        identity: Identity of the log.
        after: The end of an earlier pass over the log of this identity.
        advance: Called with the bytes read so far and the total bytes.
    """

    since_us = 0
    erased = False

    def __init__(
        self,
        log: LogDirectory,
        query: SourceQuery,
        identity: str,
        after: ReadPosition | None,
        advance: Advance | None,
    ) -> None:
        self._log, self._query, self._advance = log, query, advance
        self._identity, self._after = identity, after
        self._pruned: tuple[int, int] | None = None
        self._scan = self._open(0 if after is None else after.next - 1)
        if after is not None and not self._continues(after):
            self._after = None
            self._scan = self._open(0)

    @property
    def continued(self) -> bool:
        """Whether the pass begins after the given position."""
        return self._after is not None

    def __iter__(self) -> Iterator[SourceBatch]:
        """Yield the rows, after every `SourceQuery.rows` records and at the end."""
        start = 0 if self._after is None else self._after.next
        waiting: dict[tuple[str, Kind], list[Record]] = {}
        count = 0
        for entry in self._scan:
            if entry.sequence < start:
                continue
            place = entry.checkpoint or "", _KINDS[entry.kind]
            waiting.setdefault(place, []).append((entry.sequence, entry.record))
            count += 1
            if count >= self._query.rows:
                yield from _batches(waiting)
                waiting, count = {}, 0
        yield from _batches(waiting)

    @property
    def position(self) -> ReadPosition:
        """The end of the pass."""
        if self._scan.last is None:
            return self._after or ReadPosition(self._identity, 0, "")
        sequence, payload = self._scan.last
        return ReadPosition(self._identity, sequence + 1, _mark(payload))

    @property
    def first_sequence(self) -> int:
        """Lowest sequence that the log still has."""
        return min((one.sequences[0] for one in self._scan.segments if one.sequences), default=0)

    @property
    def segments(self) -> Mapping[str, bool]:
        """Names of the segments, and whether each is sealed."""
        return {one.name: one.sealed for one in self._scan.segments}

    @property
    def findings(self) -> list[LogFinding]:
        """Faults of the part of the log that was read."""
        found = self._scan.findings
        if self._pruned is not None:
            first, last = self._pruned
            name = next(iter(self.segments), "")
            detail = f"records {first} to {last} were removed before they were read"
            found = [LogFinding(PRUNED, "error", name, 0, 0, (first, last), detail), *found]
        return found

    def _open(self, start: int) -> LogScan:
        return scan(
            self._log.path,
            kinds=set(_KINDS),
            checkpoint=self._query.checkpoint,
            start_sequence=start,
            advance=self._advance,
            reader_key=self._query.reader_key,
        )

    def _continues(self, after: ReadPosition) -> bool:
        """Whether the log still has the records that the earlier pass read, or only removed its oldest."""
        first = self._scan.first
        if first is None:
            # Retention may have removed everything but a segment that has no record yet.
            return any(one.first >= after.next for one in segment_files(self._log.path))
        sequence, payload = first
        if sequence > after.next and self._oldest() > after.next:
            self._pruned = (after.next, self._oldest() - 1)
        return sequence >= after.next or _mark(payload) == after.mark

    def _oldest(self) -> int:
        return segment_files(self._log.path)[-1].first


def _batches(waiting: Mapping[tuple[str, Kind], Sequence[Record]]) -> Iterator[SourceBatch]:
    for (checkpoint, kind), records in waiting.items():
        yield SourceBatch(checkpoint, kind, table_of(kind, records))


def _mark(payload: bytes) -> str:
    return f"{zlib.crc32(payload):08x}"
