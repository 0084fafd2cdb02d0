"""Reading single records of a log: which segments there are, and the records of given sequences."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scorer.log.reading import LogReader
from scorer.log.scanning import WITHDRAWN, Entry, entry_of

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
    """Return the segments whose headers can be read, newest first; others are read with their predecessor."""
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


def log_identity(directory: Path) -> str | None:
    """Return the id of the log in a directory as 32 hexadecimal digits, None where there is no log yet."""
    try:
        segments = segment_files(directory)
    except OSError:
        return None
    return segments[-1].log.hex() if segments else None


def entries_at(directory: Path, sequences: Iterable[int]) -> list[Entry]:
    """Return the entries of some sequences, in order, without those that are gone or withdrawn.

    A withdrawal counts if its own sequence is among those that are given.

    Costs at most one segment's bytes for each stretch of sequences that are near one another.
    """
    found = list(_read_at(directory, sequences))
    withdrawn = {entry.record.sequence for entry in found if entry.kind == WITHDRAWN}
    return [entry for entry in found if entry.kind != WITHDRAWN and entry.sequence not in withdrawn]


def _read_at(directory: Path, sequences: Iterable[int]) -> Iterator[Entry]:
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
            yield entry_of(at, payload)
