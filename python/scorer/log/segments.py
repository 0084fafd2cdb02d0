"""Listing the segments of a log, and reading the records with given sequences."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scorer.log.erasure import erased
from scorer.log.reading import LogReader
from scorer.log.scanning import WITHDRAWN, Entry, entry_of

# Skipping up to this many records takes less time than opening a reader at a segment's start.
_NEAR = 20_000
_HEADER = 96


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """The header of one segment; docs/decision-log.md describes its bytes."""

    log: bytes
    """UUID of the log, which tells it from a later log in the same directory."""
    number: int
    """Number of the segment."""
    first: int
    """Sequence of the segment's first record. Records of earlier segments from here on are void."""
    uuid: bytes
    """UUID of the segment, which is also in the file's name."""
    durable: int
    """Every sequence below was on stable storage when the segment was made."""

    @property
    def name(self) -> str:
        """Name of the segment: its file's name without the extension."""
        return f"{self.number:010}-{self.uuid.hex()}"


def segment_files(directory: Path) -> list[SegmentFile]:
    """Return the segments whose headers can be read, newest first."""
    found = []
    for path in directory.glob("*.seg"):
        try:
            with path.open("rb") as file:
                header = file.read(_HEADER)
        except OSError:
            continue  # retention has removed the file since it was listed
        if len(header) == _HEADER and header.startswith(b"scorerDL"):
            number, _, first, durable = struct.unpack_from("<QqQQ", header, 48)
            found.append(SegmentFile(header[16:32], number, first, header[32:48], durable))
    return sorted(found, key=lambda one: one.number, reverse=True)


def log_identity(directory: Path) -> str | None:
    """Return the UUID of the log in a directory as 32 hexadecimal digits, or None if there is no log yet."""
    try:
        segments = segment_files(directory)
    except OSError:
        return None
    return segments[-1].log.hex() if segments else None


def entries_at(directory: Path, sequences: Iterable[int]) -> list[Entry]:
    """Return the entries with given sequences, in order.

    Records that are removed or withdrawn, and those of erased entities, are skipped. A withdrawal is applied
    only if its own sequence is given too, and an erasure to an outcome only if its decision's sequence is.
    Each group of sequences with gaps below 20,000 reads at most one segment more than the records themselves.

    Args:
        directory: The log's directory.
        sequences: The sequences, in any order.

    Raises:
        LogError: The directory is not a log, or cannot be read.
    """
    hidden = erased(directory)
    found = [entry for entry in _read_at(directory, sequences) if not hidden.covers(entry.kind, entry.record)]
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
