"""One pass over a log: the records of some kinds, of some checkpoint, in sequence order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from os import PathLike
from typing import Any, NamedTuple

from scorer.log.erasure import erased
from scorer.log.reading import Advance, LogFinding, LogReader, LogSegment, decode
from scorer.log.sealing import ReaderKey, SealedCounts, open_features

UNKNOWN = "unknown"
"""Kind of a record that this version has no message for."""
DELIVERY = "delivery"
"""Kind of a record that says whether a decision's reply reached its caller."""
WITHDRAWN = "withdrawn"
"""Kind of a record that takes back an earlier one."""
REACH = 8_192
"""Records within which a withdrawal follows its record: the writer appends both in one turn, at most 4,096
records and as many withdrawals. With durability `sync`, a slow fdatasync can put more between them."""
_WITHDRAWN_TAG = b"\x32"
"""First byte of a `LogRecord` that holds `withdrawn`: field 6, length-delimited."""


class Entry(NamedTuple):
    """One record of a log.

    Attributes:
        sequence: Its number in the log, without gaps.
        kind: `decision`, `observation`, `outcome`, `delivery`, `withdrawn`, `lane_table`, `recovery`, or
            `unknown` for one of a newer version.
        record: The `DecisionRecord`, `ObservationRecord`, ... of that kind; None if unknown.
    """

    sequence: int
    kind: str
    record: Any

    @property
    def checkpoint(self) -> str | None:
        """Name of the checkpoint; None for a record that is of no checkpoint."""
        about = self._about()
        return None if about is None else str(about.checkpoint)

    @property
    def decision_id(self) -> str | None:
        """Id of the decision that the record is about; None for a record that is about no decision."""
        about = self._about()
        return None if about is None else str(about.decision_id)

    def _about(self) -> Any:
        if self.kind == "observation":
            return self.record.decision
        return self.record if self.kind in {"decision", "outcome", DELIVERY, WITHDRAWN} else None


class LogScan:
    """Iterates over the entries of a log; see `scan`.

    Attributes:
        sealed: What was found of sensitive features in the entries so far.
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
        self._start, self._advance = start_sequence, advance
        self._erased = erased(directory)
        self._reader_key = reader_key
        self.sealed = SealedCounts()

    def __iter__(self) -> Iterator[Entry]:
        for sequence, payload in self._kept():
            if sequence < self._start:
                # The reader starts at the beginning of a segment.
                continue
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
        """Yield each record once the next `REACH` ones, or all that there are, do not withdraw it."""
        held: OrderedDict[int, bytes] = OrderedDict()
        for sequence, payload in self._reader.payloads(self._advance):
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
        """What is wrong with the log's bytes as far as they were read; complete after the last entry."""
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
    """Return the records of a log, from its first one or from a sequence on.

    Withdrawn records are left out, and those of erased entities (`scorer.log.erase`).

    A reply does not wait for a write beyond its deadline. If the record reaches the log nevertheless, the
    server appends a record of kind `withdrawn`: the reply has reported that nothing was logged. One pass is
    enough, since a withdrawal follows within `REACH` records. A reader that keeps what it has read and reads
    on later applies the `withdrawn` entries itself: the log may have ended between the two.

    Args:
        directory: The log; a server may be writing it meanwhile.
        kinds: Kinds of records to return; all unless given.
        checkpoint: Return the records of this checkpoint and those that are of none; all unless given.
        start_sequence: First record of interest. Segments that end before it are not read.
        advance: Called with the bytes read so far and the bytes in all.
        reader_key: Decrypts sensitive features. Without it they are NaN, as masked ones are, and their
            positions are in the record's `withheld`.

    Returns:
        Entries in sequence order, to be iterated over once; then `findings` and `segments`.

    Raises:
        LogError: The directory is no log, cannot be read, or holds another program's records.
    """
    return LogScan(directory, kinds, checkpoint, start_sequence, advance, reader_key)


def entry_of(sequence: int, payload: bytes) -> Entry:
    """Decode a record and return it by its kind.

    Raises:
        LogError: The bytes are no record of a scorer log.
    """
    record = decode(sequence, payload)
    kind = record.WhichOneof("record")
    return Entry(sequence, UNKNOWN, None) if kind is None else Entry(sequence, kind, getattr(record, kind))
