"""One pass over a log that yields the records of some kinds and of one checkpoint, in sequence order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import chain
from os import PathLike
from typing import Any, NamedTuple

from scorer.log.erasure import erased
from scorer.log.reading import Advance, LogFinding, LogReader, LogSegment, decode
from scorer.log.sealing import ReaderKey, SealedCounts, open_features

UNKNOWN = "unknown"
"""Kind of a record of a newer version, for which this version has no message."""
DELIVERY = "delivery"
"""Kind of a record that states whether a decision's reply reached its caller."""
WITHDRAWN = "withdrawn"
"""Kind of a record that withdraws an earlier record."""
REACH = 8_192
"""Number of records within which a withdrawal follows its record. The writer appends both in one batch of at
most 4,096 records and as many withdrawals. With durability `sync`, more records can be between them if an
fdatasync is slow."""
_WITHDRAWN_TAG = b"\x32"
"""First byte of a `LogRecord` that holds `withdrawn`: field 6, length-delimited."""


class Entry(NamedTuple):
    """One record of a log.

    Attributes:
        sequence: Number of the record in the log, without gaps.
        kind: `decision`, `observation`, `outcome`, `delivery`, `withdrawn`, `lane_table`, `recovery`, or
            `unknown` for a record of a newer version.
        record: The message of that kind, such as `DecisionRecord`; None for kind `unknown`.
    """

    sequence: int
    kind: str
    record: Any

    @property
    def checkpoint(self) -> str | None:
        """Name of the record's checkpoint; None if its kind has no checkpoint."""
        about = self._about()
        return None if about is None else str(about.checkpoint)

    @property
    def decision_id(self) -> str | None:
        """Id of the record's decision; None if its kind has no decision."""
        about = self._about()
        return None if about is None else str(about.decision_id)

    def _about(self) -> Any:
        if self.kind == "observation":
            return self.record.decision
        return self.record if self.kind in {"decision", "outcome", DELIVERY, WITHDRAWN} else None


class LogScan:
    """An iterable over the entries of a log; see `scan`. It can be iterated over once.

    Attributes:
        sealed: Counts of sensitive features in the entries so far.
        last: Sequence and encoded bytes of the last record read so far, of whatever kind.
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        kinds: Collection[str],
        checkpoint: str | None,
        start_sequence: int,
        advance: Advance | None,
        reader_key: ReaderKey | None,
    ) -> None:
        self._reader = LogReader(directory, start_sequence)
        self._kinds, self._checkpoint = kinds, checkpoint
        self._advance = advance
        self._erased = erased(directory)
        self._reader_key = reader_key
        self.sealed = SealedCounts()
        self.last: tuple[int, bytes] | None = None

    @cached_property
    def _payloads(self) -> Iterator[tuple[int, bytes]]:
        return self._reader.payloads(self._advance)

    @cached_property
    def first(self) -> tuple[int, bytes] | None:
        """Sequence and encoded bytes of the first record, of whatever kind; None if there is none."""
        return next(self._payloads, None)

    def __iter__(self) -> Iterator[Entry]:
        for sequence, payload in self._kept():
            entry = entry_of(sequence, payload)
            if self._erased and self._erased.covers(entry.kind, entry.record):
                continue
            if self._kinds and entry.kind not in self._kinds:
                continue
            if self._checkpoint is not None and entry.checkpoint not in {None, self._checkpoint}:
                continue
            if entry.kind in {"decision", "observation"}:
                own = entry.record.decision if entry.kind == "observation" else entry.record
                open_features(own, self._reader_key, self.sealed)
            yield entry

    def _kept(self) -> Iterator[tuple[int, bytes]]:
        """Yield the records that no withdrawal among the `REACH` following records names."""
        held: OrderedDict[int, bytes] = OrderedDict()
        began = () if self.first is None else (self.first,)
        for sequence, payload in chain(began, self._payloads):
            self.last = (sequence, payload)
            if payload[:1] == _WITHDRAWN_TAG:
                before = entry_of(sequence, payload).record.sequence
                # A withdrawal cannot be withdrawn.
                if held.get(before, b"")[:1] != _WITHDRAWN_TAG:
                    held.pop(before, None)
            held[sequence] = payload
            if len(held) > REACH:
                yield held.popitem(last=False)
        yield from held.items()

    @property
    def findings(self) -> list[LogFinding]:
        """Faults of the part of the log that was read so far; complete after the last entry."""
        return self._reader.findings

    @property
    def segments(self) -> list[LogSegment]:
        """The segments read so far."""
        return self._reader.segments


def scan(
    directory: str | PathLike[str],
    *,
    kinds: Collection[str] = (),
    checkpoint: str | None = None,
    start_sequence: int = 0,
    advance: Advance | None = None,
    reader_key: ReaderKey | None = None,
) -> LogScan:
    """Read the records of a log, from its first record or from a given sequence.

    Withdrawn records and records of erased entities (`scorer.log.erase`) are skipped.

    A reply does not wait for a write beyond its deadline. If the record reaches the log after the reply has
    reported that nothing was logged, the server appends a record of kind `withdrawn`. One pass is enough to
    apply it, because a withdrawal follows within `REACH` records. A reader that stores what it has read and
    continues later must apply the `withdrawn` entries itself, because the earlier pass may have ended between
    a record and its withdrawal.

    Args:
        directory: The log's directory; a server may write to it at the same time.
        kinds: Kinds of records to return; default: all.
        checkpoint: Return only records of this checkpoint and records without a checkpoint; default: all.
        start_sequence: Sequence of the first record to return. Segments that end before it are not read.
        advance: Called with the bytes read so far and the total bytes.
        reader_key: Key that decrypts sensitive features. Without it they are NaN, like masked features, and
            their positions are in the record's `withheld`.

    Returns:
        An iterable over the entries in sequence order, with `findings` and `segments` after the iteration.

    Raises:
        LogError: The directory is not a log, cannot be read, or has records of another program.
    """
    return LogScan(directory, kinds, checkpoint, start_sequence, advance, reader_key)


def entry_of(sequence: int, payload: bytes) -> Entry:
    """Decode a record.

    Args:
        sequence: Sequence of the record.
        payload: The encoded bytes.

    Raises:
        LogError: The bytes are not a record of a scorer log.
    """
    record = decode(sequence, payload)
    kind = record.WhichOneof("record")
    return Entry(sequence, UNKNOWN, None) if kind is None else Entry(sequence, kind, getattr(record, kind))
