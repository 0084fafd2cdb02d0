"""Consecutive records of a log on their way to a sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scorer.log.shipped.position import ShipPosition


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences that the log does not hold."""

    first: int
    """First missing sequence."""
    last: int
    """Last missing sequence."""
    reason: str
    """Why they are missing, as far as it is known."""

    @property
    def records(self) -> int:
        """Number of records that are missing."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"records {self.first} to {self.last} are not in the log and cannot be shipped: {self.reason}"


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Consecutive records of a batch that one segment holds."""

    start: int
    """Index of the run's first record in the batch."""
    number: int
    """Number of the segment."""
    name: str
    """Name of the segment."""


@dataclass(frozen=True)
class Batch:
    """Records in the order of the log.

    Attributes:
        server: Id of the server that wrote the log.
        log: UUID of the log, 32 hexadecimal digits.
        sequences: Sequences of the records, ascending.
        payloads: The encoded records, one per sequence.
        runs: The segments that hold the records, in order.
        begin: The position before the batch; None if nothing was shipped before.
        end: The position after the batch.
        gaps: Sequences that are missing before or between the records.
        erased: Number of records that were left out because their entity is erased.
        is_full: Whether the batch ended because of its size, so that the log may hold further records now.
    """

    server: str
    log: str
    sequences: Sequence[int]
    payloads: Sequence[bytes]
    runs: Sequence[SegmentRun]
    begin: ShipPosition | None
    end: ShipPosition
    gaps: Sequence[Gap]
    erased: int
    is_full: bool

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def size(self) -> int:
        """Size of the records in bytes."""
        return sum(map(len, self.payloads))

    def slices(self) -> Iterator[tuple[SegmentRun, slice]]:
        """Yield each run with the indices of its records. A run can be empty."""
        ends = [*(run.start for run in self.runs), len(self)][1:]
        for run, end in zip(self.runs, ends, strict=True):
            yield run, slice(run.start, end)
