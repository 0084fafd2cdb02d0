"""Search of a decision log from its end, within a bound of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.log.erasure import erased
from scorer.log.reading import LogReader
from scorer.log.scanning import WITHDRAWN, entry_of
from scorer.log.segments import segment_files

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord

MOST = 50_000
"""Largest number of records of one log that one search decodes."""
_END = 1 << 62


@dataclass(frozen=True, slots=True)
class Stretch:
    """Result of searching one log.

    Attributes:
        found: Matching decisions with their sequences, newest first.
        upto: Sequence that the search has reached. Records before it were not searched.
        is_complete: Whether no older record can match.
        oldest_us: Time of the oldest decision that was searched, in microseconds since the Unix epoch; None:
            there was none.
    """

    found: list[tuple[int, DecisionRecord]]
    upto: int
    is_complete: bool
    oldest_us: int | None = None


def search(
    log: Path,
    matches: Callable[[DecisionRecord], bool],
    *,
    before: int | None = None,
    begin_us: int | None = None,
    end_us: int | None = None,
    limit: int = 50,
    most: int = MOST,
) -> Stretch:
    """Search a log from the newest record to older ones.

    Args:
        log: Directory of the log.
        matches: Returns whether a decision matches.
        before: Search only records with a lower sequence; None: from the end of the log.
        begin_us: Skip decisions before this time, in microseconds since the Unix epoch; None: no limit.
        end_us: Skip decisions at or after this time, in microseconds since the Unix epoch; None: no limit.
        limit: Number of decisions after which the search ends.
        most: Number of decoded records after which the search ends.

    Raises:
        LogError: The directory is not a log, or cannot be read.
    """
    hidden = erased(log)
    found: list[tuple[int, DecisionRecord]] = []
    withdrawn: set[int] = set()
    upto = _END if before is None else before
    oldest: int | None = None
    for decoded, (sequence, payload) in enumerate(_backwards(log, upto, end_us)):
        if len(found) >= limit or decoded >= most:
            return Stretch(found, upto, False, oldest)
        upto = sequence
        entry = entry_of(sequence, payload)
        if entry.kind == WITHDRAWN:
            withdrawn.add(entry.record.sequence)
        elif entry.kind == "decision" and sequence not in withdrawn:
            record: DecisionRecord = entry.record
            oldest = record.decided_at_us
            if begin_us is not None and record.decided_at_us < begin_us:
                return Stretch(found, upto, True, oldest)
            is_early = end_us is None or record.decided_at_us < end_us
            if is_early and not (hidden and hidden.covers(entry.kind, record)) and matches(record):
                found.append((sequence, record))
    return Stretch(found, upto, True, oldest)


def _backwards(log: Path, before: int, end_us: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a log from a sequence back to the oldest one."""
    segments = segment_files(log)
    if not segments:
        LogReader(log)  # raises if the directory is not a log
        return
    firsts = [before, *(segment.first for segment in segments)]
    for following, first in pairwise(firsts):
        until = min(before, following)
        if first >= before or (end_us is not None and _begins_after(log, first, end_us)):
            continue
        held = []
        for sequence, payload in LogReader(log, first).payloads():
            if sequence >= until:
                break
            if sequence >= first:
                held.append((sequence, payload))
        yield from reversed(held)


def _begins_after(log: Path, first: int, end_us: int) -> bool:
    """Return whether the first decision of a segment is at or after a time. Later ones then are too."""
    for looked, (sequence, payload) in enumerate(LogReader(log, first).payloads()):
        entry = entry_of(sequence, payload)
        if entry.kind == "decision":
            return bool(entry.record.decided_at_us >= end_us)
        if looked > 1000:
            break
    return False
