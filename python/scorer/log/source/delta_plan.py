"""Which rows of shipped tables a pass over the log of one server reads, and in which order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scorer.log.shipped.position import ShipPosition, fingerprint
from scorer.log.source.interface import ReadPosition

LOG_BITS: Final = 44
"""Bits of a sequence within one log. A server whose log was replaced has several logs, one after the other:
sequences of each begin at a multiple of 2^LOG_BITS."""

CHUNK_ROWS: Final = 262_144
"""Rows up to which the hours of a partition are read together."""

_NUMBER: Final = 10
"""Digits of the segment's number, with which its name begins."""


class Extent(NamedTuple):
    """The rows of one segment in one hour.

    Attributes:
        log: UUID of the log.
        segment: Name of the segment.
        hour: The hour, as in the table.
        first: Lowest sequence.
        last: Highest sequence.
        rows: Number of rows.
    """

    log: str
    segment: str
    hour: str
    first: int
    last: int
    rows: int


class Chunk(NamedTuple):
    """Rows that are read and sorted together.

    Attributes:
        hours: The hours that have such rows.
        first: Lowest sequence.
        last: Highest sequence.
        rows: Estimated number of rows.
    """

    hours: frozenset[str]
    first: int
    last: int
    rows: int


class Void(NamedTuple):
    """Rows of a segment from a sequence on that are not read."""

    segment: str
    sequence: int


@dataclass(frozen=True)
class TableMark:
    """What the mark of a position holds.

    Attributes:
        logs: UUIDs of the server's logs, in their order.
        number: Number of the segment that holds the last record before the position.
        versions: Versions of the tables.
    """

    logs: tuple[str, ...]
    number: int
    versions: Mapping[str, int]

    @classmethod
    def parse(cls, text: str) -> TableMark | None:
        """Return the content of a mark; None if it is that of another kind of source."""
        try:
            found = json.loads(text)
            versions = {str(name): int(value) for name, value in found["versions"].items()}
            return cls(tuple(found["logs"]), int(found["number"]), versions)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def text(self) -> str:
        """Return the mark as text."""
        return json.dumps({"logs": self.logs, "number": self.number, "versions": dict(self.versions)})


@dataclass(frozen=True)
class TablePlan:
    """What a pass reads.

    Attributes:
        logs: UUIDs of the logs of the server, in their order.
        extents: The rows to read by table, without those that are not read.
        voids: Rows that are not read, by log.
        number: Number of the last segment of the last log.
        following: Sequence in the last log after the last record.
    """

    logs: tuple[str, ...]
    extents: Mapping[str, Sequence[Extent]]
    voids: Mapping[str, Sequence[Void]]
    number: int
    following: int

    def position(self, versions: Mapping[str, int]) -> ReadPosition:
        """Return the end of the pass.

        Args:
            versions: Versions of the tables that were read.
        """
        mark = TableMark(self.logs, self.number, versions).text()
        if not self.logs:
            return ReadPosition("", 0, mark)
        return ReadPosition(self.logs[-1], (len(self.logs) - 1 << LOG_BITS) + self.following, mark)


def plan(
    found: Mapping[str, Sequence[Extent]], end: ShipPosition | None, mark: TableMark | None, following: int
) -> TablePlan | None:
    """Decide which rows a pass reads.

    Args:
        found: All rows of the server by table, in the files that are considered.
        end: Position of the server: rows after it may still lack rows of other tables.
        mark: Mark of the position after which the pass begins; None: it begins with the first row.
        following: Sequence of that position.

    Returns:
        The plan; None if the rows do not continue those before the mark.
    """
    known = () if mark is None else mark.logs
    start = following - (len(known) - 1 << LOG_BITS) if known else 0
    every = [one for own in found.values() for one in own]
    logs = _in_order(every, end, known)
    if logs is None:
        return None
    extents: dict[str, list[Extent]] = {name: [] for name in found}
    voids: dict[str, list[Void]] = {}
    for log in logs:
        own = [one for one in every if one.log == log]
        is_last_known = bool(known) and log == known[-1]
        if mark is not None and is_last_known:
            later = [one.first for one in own if _number(one.segment) > mark.number]
            if later and min(later) < start:
                # The log has used sequences again that the earlier pass has read.
                return None
        if log in known[:-1]:
            continue
        begin = start if is_last_known else 0
        limits = _limits(own, end if _is_current(log, end) else None)
        lasts: dict[str, int] = {}
        for one in own:
            lasts[one.segment] = max(lasts.get(one.segment, 0), one.last)
        voids[log] = [Void(segment, limit) for segment, limit in limits.items() if lasts[segment] >= limit]
        for name, rows in found.items():
            extents[name] += _cut([one for one in rows if one.log == log], begin, limits)
    number, after = _end_of(logs, extents, end, mark, start)
    return TablePlan(logs, extents, voids, number, after)


def chunks(extents: Sequence[Extent]) -> Iterator[Chunk]:
    """Yield the rows of one table and log in ranges of sequences, in order.

    An hour has nearly consecutive sequences, so that a range is in few hours.
    """
    hours: dict[str, tuple[int, int, int]] = {}
    for one in extents:
        first, last, rows = hours.get(one.hour, (one.first, one.last, 0))
        hours[one.hour] = min(first, one.first), max(last, one.last), rows + one.rows
    if not hours:
        return
    by_first = sorted(hours.values())
    begin, rows = by_first[0][0], 0
    ends: list[tuple[int, int]] = []
    for at, (_, _, own) in enumerate(by_first):
        rows += own
        following = by_first[at + 1][0] if at + 1 < len(by_first) else None
        if following is None:
            ends.append((max(last for _, last, _ in by_first), rows))
        elif rows >= CHUNK_ROWS and following > begin:
            ends.append((following - 1, rows))
            begin, rows = following, 0
    begin = by_first[0][0]
    for last, rows in ends:
        there = frozenset(hour for hour, (low, high, _) in hours.items() if low <= last and high >= begin)
        yield Chunk(there, begin, last, rows)
        begin = last + 1


def rows_within(extents: Iterable[Extent], first: int, last: int) -> int:
    """Return a number that the rows with sequences in a range, both ends included, do not exceed."""
    overlaps = ((one.rows, min(one.last, last) - max(one.first, first) + 1) for one in extents)
    return sum(min(rows, overlap) for rows, overlap in overlaps if overlap > 0)


def _in_order(
    every: Sequence[Extent], end: ShipPosition | None, known: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the logs of a server, oldest first; None if the known ones do not come first."""
    if end is None:
        return known
    hours: dict[str, str] = {}
    for one in every:
        hours[one.log] = min(hours.get(one.log, one.hour), one.hour)
    others = sorted((hour, log) for log, hour in hours.items() if log not in known)
    logs = (*known, *(log for _, log in others))
    current = next((log for log in logs if _is_current(log, end)), None)
    if current is None or current == logs[-1]:
        return logs
    if current in known:
        return None
    return (*(log for log in logs if log != current), current)


def _is_current(log: str, end: ShipPosition | None) -> bool:
    return end is not None and fingerprint(bytes.fromhex(log)) == end.log


def _limits(own: Sequence[Extent], end: ShipPosition | None) -> dict[str, int]:
    """Return the sequence before which the rows of each segment are read.

    Where a later segment begins at an earlier sequence, the log was repaired: its rows replace those before.
    """
    firsts: dict[str, int] = {}
    for one in own:
        firsts[one.segment] = min(firsts.get(one.segment, one.first), one.first)
    limits, following = {}, 1 << LOG_BITS
    for segment in sorted(firsts, reverse=True):
        if end is not None and _number(segment) > end.number:
            limits[segment] = 0
            continue
        limits[segment] = following
        if end is not None and _number(segment) == end.number:
            limits[segment] = min(following, end.sequence)
        following = min(following, firsts[segment])
    return limits


def _cut(own: Sequence[Extent], begin: int, limits: Mapping[str, int]) -> Iterator[Extent]:
    for one in own:
        first, last = max(one.first, begin), min(one.last, limits[one.segment] - 1)
        if first <= last:
            yield one._replace(first=first, last=last, rows=min(one.rows, last - first + 1))


def _end_of(
    logs: Sequence[str],
    extents: Mapping[str, Sequence[Extent]],
    end: ShipPosition | None,
    mark: TableMark | None,
    start: int,
) -> tuple[int, int]:
    """Return the segment's number and the sequence at which the next pass begins."""
    if not logs:
        return 0, 0
    if end is not None and _is_current(logs[-1], end):
        return end.number, end.sequence
    # The server has a new log of which no row is there yet.
    read = [
        (_number(one.segment), one.last + 1) for own in extents.values() for one in own if one.log == logs[-1]
    ]
    if mark is not None and mark.logs == tuple(logs):
        read.append((mark.number, start))
    return max(read, default=(0, 0))


def _number(segment: str) -> int:
    return int(segment[:_NUMBER])
