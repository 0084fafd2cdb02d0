"""Reading the records of a log's directory in sequence order, and finding faults of its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, TypeAlias

from scorer.errors import LogError

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import LogRecord

Advance: TypeAlias = Callable[[int, int], None]
"""Callback for progress, called with the bytes read so far and the total bytes."""

_RECORDS = 4096
_BYTES = 8 << 20


@dataclass(frozen=True)
class LogFinding:
    """A fault or an unusual state of a log's files."""

    kind: str
    severity: str
    """``info``, ``warning`` (no acknowledged record is lost) or ``error``."""
    segment: str
    offset: int
    bytes: int
    lost: tuple[int, int] | None
    """First and last lost sequence."""
    detail: str


@dataclass(frozen=True)
class LogSegment:
    """One file of the log."""

    name: str
    bytes: int
    records: int
    sequences: tuple[int, int] | None
    """First and last sequence that were read from the segment; None if it has no records."""
    created_us: int
    sealed: bool
    good_end: int
    """Offset in bytes after the last complete record."""
    torn: int
    damaged: bool


class LogReader:
    """One pass over a log's directory. It takes no lock and writes nothing.

    Args:
        directory: The log's directory.
        start_sequence: Sequence of the first record of interest. Segments that end before it are skipped by
            their header and seal. Continuing an earlier pass at its last sequence + 1 therefore reads at most
            one segment again. Damage inside skipped segments is not found.

    Raises:
        LogError: The directory is not a log or cannot be read.
    """

    def __init__(self, directory: str | PathLike[str], start_sequence: int = 0) -> None:
        from scorer import bridge

        self._raw = bridge.LogReader(fspath(directory), start_sequence)

    def payloads(self, advance: Advance | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the sequence and the encoded bytes of each record from `start_sequence` on."""
        while (batch := self._raw.next_batch(_RECORDS, _BYTES)) is not None:
            yield from zip(*batch, strict=True)
            if advance is not None:
                advance(self._raw.bytes_read, self._raw.total_bytes)

    def batch(self, records: int, size: int) -> tuple[list[int], list[bytes]] | None:
        """Return the sequences and encoded bytes of the next records; None at the end.

        Args:
            records: Largest number of records.
            size: Size in bytes of the records at which the batch ends. The last record may exceed it.
        """
        return self._raw.next_batch(records, size)

    def records(self, advance: Advance | None = None) -> Iterator[tuple[int, LogRecord]]:
        """Yield the sequence and the decoded message of each record; see also `scorer.log.scan`."""
        for sequence, payload in self.payloads(advance):
            yield sequence, decode(sequence, payload)

    @property
    def findings(self) -> list[LogFinding]:
        """Faults of the part of the log that was read so far; complete after the last record."""
        found = json.loads(self._raw.findings())
        return [LogFinding(**{**one, "lost": one["lost"] and tuple(one["lost"])}) for one in found]

    @property
    def segments(self) -> list[LogSegment]:
        """The segments read so far."""
        names = LogSegment.__dataclass_fields__
        kept = [{name: one[name] for name in names} for one in json.loads(self._raw.segments())]
        return [
            LogSegment(**{**one, "sequences": one["sequences"] and tuple(one["sequences"])}) for one in kept
        ]


def decode(sequence: int, payload: bytes) -> LogRecord:
    """Decode a record.

    Raises:
        LogError: The bytes have the right checksum but are not a record of a scorer log.
    """
    from google.protobuf.message import DecodeError

    from scorer.v1.log_pb2 import LogRecord

    try:
        return LogRecord.FromString(payload)
    except DecodeError:
        raise LogError(
            f"record {sequence} is intact but no scorer.v1.LogRecord: another program wrote it; "
            "give the directory of a scorer server"
        ) from None


def is_serious(finding: LogFinding) -> bool:
    """Return whether a finding means that records are lost or damaged."""
    return finding.severity == "error"
