"""Records of a log directory, in sequence order, and what is wrong with it."""

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
"""Called with the bytes read so far and the bytes in all."""

_RECORDS = 4096
_BYTES = 8 << 20


@dataclass(frozen=True)
class LogFinding:
    """A fault or peculiarity of a log's bytes."""

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
    """First and last sequence that it delivered."""
    created_us: int
    sealed: bool
    good_end: int
    """Offset after its last whole record."""
    torn: int
    damaged: bool


class LogReader:
    """One pass over a log directory; takes no lock and writes nothing.

    Args:
        directory: The log.
        start_sequence: The first record of interest. Whole segments before it are passed over by their
            header and seal, so reading on from where an earlier pass ended (its last sequence + 1) costs
            at most one segment; what is damaged inside of those passed over is not found.

    Raises:
        LogError: The directory is no log or cannot be read; one line that names it and what to do.
    """

    def __init__(self, directory: str | PathLike[str], start_sequence: int = 0) -> None:
        from scorer import bridge

        self._raw = bridge.LogReader(fspath(directory), start_sequence)

    def payloads(self, advance: Advance | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield sequences and encoded records."""
        while (batch := self._raw.next_batch(_RECORDS, _BYTES)) is not None:
            yield from zip(*batch, strict=True)
            if advance is not None:
                advance(self._raw.bytes_read, self._raw.total_bytes)

    def records(self, advance: Advance | None = None) -> Iterator[tuple[int, LogRecord]]:
        """Yield sequences and whole records; `scorer.log.scan` yields them by their kind."""
        for sequence, payload in self.payloads(advance):
            yield sequence, decode(sequence, payload)

    @property
    def findings(self) -> list[LogFinding]:
        """What is wrong with the log as far as it was read; complete after the last record."""
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
        LogError: The bytes are intact but no record of a scorer log.
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
