"""Reading single records of a log: which segments there are, and the records of given sequences."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.log import LogReader

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import LogRecord

# Passing over so many records costs less than opening a reader, which begins at a segment's start.
_NEAR = 20_000
_HEADER = 96


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One segment by its header; docs/decision-log.md has the bytes."""

    log: bytes
    """UUID of the log: another one, another log in the same place."""
    number: int
    first: int
    """Sequence of its first record."""


def segment_files(directory: Path) -> list[SegmentFile]:
    """The segments whose headers can be read, newest first. One without is read with the one before it."""
    found = []
    for path in directory.glob("*.seg"):
        try:
            with path.open("rb") as file:
                header = file.read(_HEADER)
        except OSError:
            continue  # collected meanwhile
        if len(header) == _HEADER and header.startswith(b"scorerDL"):
            number, _, first = struct.unpack_from("<QqQ", header, 48)
            found.append(SegmentFile(header[16:32], number, first))
    return sorted(found, key=lambda one: one.number, reverse=True)


def records_at(directory: Path, sequences: Iterable[int]) -> Iterator[tuple[int, LogRecord]]:
    """The records of some sequences, in order; those that are gone are left out.

    Costs at most one segment's bytes for each stretch of sequences that are near one another.
    """
    from scorer.v1.log_pb2 import LogRecord

    payloads: Iterator[tuple[int, bytes]] = iter(())
    at, payload = -_NEAR - 1, b""
    for wanted in sorted(set(sequences)):
        if wanted - at > _NEAR:
            payloads, at = LogReader(directory, wanted).payloads(), wanted - 1
        while at < wanted:
            following = next(payloads, None)
            if following is None:
                return
            at, payload = following
        if at == wanted:
            yield at, LogRecord.FromString(payload)
