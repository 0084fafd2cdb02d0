"""The log of one server in shipped tables, with whole records; see `scorer.log.source.records.RecordLog`."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scorer.log.columns import ColumnBatch, no_decisions, no_outcomes
from scorer.log.reading import Advance, LogFinding
from scorer.log.scanning import REACH, WITHDRAWN, Entry
from scorer.log.search import MOST, Stretch
from scorer.log.shipped.position import fingerprint
from scorer.log.shipped.schema import DECISIONS, EVENTS, OUTCOMES
from scorer.log.source.delta_plan import LOG_BITS, Extent, chunks, rows_within
from scorer.log.source.delta_reading import hour_of, sorted_rows
from scorer.log.source.delta_tables import DataFile
from scorer.log.source.table_columns import (
    DECISION_COLUMNS,
    OUTCOME_COLUMNS,
    decision_columns,
    outcome_columns,
)
from scorer.log.source.table_entries import ENTRY_COLUMNS, entries
from scorer.log.source.table_state import TABLES, PlacedExtent, ServerState, TableFollower, TableState

if TYPE_CHECKING:
    from scorer.log.source.records import Matches
    from scorer.v1.log_pb2 import DecisionRecord

_ROWS: Final = 2_048
"""Rows of one table that a pass holds."""
_COLUMN_ROWS: Final = 16_384
_FIRST_BLOCK: Final = 256
"""Decisions that a search reads first; each further block has four times as many."""
_LATE: Final = 8 * REACH
"""Records among which a search expects the withdrawal of a decision."""
_SKEW_US: Final = 3_600_000_000
"""Time by which the clock of a server that reports an outcome may be behind that of the decision's server."""
_END: Final = 1 << 62


class TablePass:
    """One pass over the records of a log, which can be continued after a pause.

    Args:
        rows: The records.
        start: Sequence of the first one.
    """

    findings: tuple[LogFinding, ...] = ()
    """The shipper finds the faults of a log and reports them."""

    def __init__(self, rows: Iterator[Entry], start: int) -> None:
        self._rows = rows
        self._ahead: Entry | None = None
        self.following = start
        """Sequence after the last record that was returned."""

    def __iter__(self) -> TablePass:
        return self

    def __next__(self) -> Entry:
        entry, self._ahead = self._ahead or next(self._rows), None
        self.following = entry.sequence + 1
        return entry

    def has_more(self) -> bool:
        """Return whether there is another record."""
        if self._ahead is None:
            self._ahead = next(self._rows, None)
        return self._ahead is not None


class TableLog:
    """The rows of one server.

    Sequences of `search` and `columns` continue over the logs of a server whose log was replaced: those of
    each begin at a multiple of 2^44.

    Args:
        name: Name of the server.
        server: Id with which its shipper ships.
        follower: The tables.
    """

    def __init__(self, name: str, server: str, follower: TableFollower) -> None:
        self.name, self.server = name, server
        self._follower = follower
        self._kept: tuple[str, TablePass] | None = None
        self._newest: tuple[tuple[int, str, int], list[DecisionRecord]] | None = None
        self._lock = Lock()

    @property
    def url(self) -> str:
        """Directory or URL below which the tables are."""
        return self._follower.url

    @property
    def location(self) -> str:
        """The tables and the server, as text for another process; see `scorer.log.source.locations`."""
        return f"delta:{self.url}#{self.server}"

    @property
    def identities(self) -> Sequence[str]:
        """UUIDs of the server's logs, oldest first."""
        return self._rows.own.plan.logs

    def records(self, identity: str, start: int) -> TablePass:
        """Begin a pass; if the last one was left at this record, continue it."""
        rows = self._rows
        with self._lock:
            kept, self._kept = self._kept, None
            is_next = kept is not None and kept[0] == identity and kept[1].following == start
            # After the end of a pass there may be new rows.
            if kept is None or not is_next or not kept[1].has_more():
                kept = identity, TablePass(rows.entries(identity, start), start)
            self._kept = kept
            return kept[1]

    def columns(
        self, checkpoint: str, advance: Advance | None = None, *, since_us: int = 0, mixed: bool = False
    ) -> Iterator[ColumnBatch]:
        """Yield the decisions and outcomes of a checkpoint as columns, with the keys of `decision_key`."""
        yield from self._rows.columns(checkpoint, advance, since_us)

    def newest(self, checkpoint: str, limit: int) -> Sequence[DecisionRecord]:
        """Return the newest decisions of a checkpoint, newest first. They are kept until there are more."""
        rows = self._rows
        key = rows.state.number, checkpoint, limit
        if self._newest is None or self._newest[0] != key:
            found = rows.search(checkpoint, lambda _: True, None, None, None, limit).found
            self._newest = key, [record for _, record in found]
        return self._newest[1]

    def search(
        self,
        checkpoint: str,
        matches: Matches,
        *,
        before: int | None,
        begin_us: int | None,
        end_us: int | None,
        limit: int,
    ) -> Stretch:
        """Search the log from the newest record to older ones."""
        return self._rows.search(checkpoint, matches, before, begin_us, end_us, limit)

    def entries_at(self, log: str, sequences: Mapping[str, Collection[int]]) -> list[Entry]:
        """Return the records with given sequences, without those that one of them withdraws.

        Args:
            log: UUID of the log.
            sequences: Sequences by table.

        Raises:
            LogError: The tables cannot be read.
        """
        rows, found = self._rows, list[Entry]()
        for name, own in sequences.items():
            for sequence in own:
                for batch in rows.read(name, log, sequence, sequence, ENTRY_COLUMNS[name], None, 1):
                    found += entries(name, batch)
        withdrawn = {one.record.sequence for one in found if one.kind == WITHDRAWN}
        left = (one for one in found if one.kind != WITHDRAWN and one.sequence not in withdrawn)
        return sorted(left, key=lambda one: one.sequence)

    @property
    def _rows(self) -> TableRows:
        state = self._follower.state
        own = state.servers.get(self.server) or ServerState(dict.fromkeys(TABLES, ()), None)
        return TableRows(state, own, self.server, self._follower)


@dataclass(frozen=True)
class TableRows:
    """The rows of one server at one moment.

    Attributes:
        state: The tables.
        own: The rows of the server.
        server: Id of the server.
        follower: The follower of the tables, which opens them anew after a failure.
    """

    state: TableState
    own: ServerState
    server: str
    follower: TableFollower

    def entries(self, log: str, start: int) -> Iterator[Entry]:
        """Yield the records of a log from a sequence on, in its order, without withdrawn ones."""
        end = self.own.position
        if log not in self.own.plan.logs:
            return
        if end is not None and end.log == fingerprint(bytes.fromhex(log)) and start >= end.sequence:
            return
        withdrawn = self._withdrawn(log, start, _END)
        streams = [self._entries(name, log, start, withdrawn) for name in TABLES]
        yield from heapq.merge(*streams, key=lambda entry: entry.sequence)

    def columns(self, checkpoint: str, advance: Advance | None, since_us: int) -> Iterator[ColumnBatch]:
        """Yield the decisions and outcomes of a checkpoint in the order of the logs."""
        plan, hour = self.own.plan, hour_of(since_us - _SKEW_US)
        names = (DECISIONS, OUTCOMES)
        extents = {
            (log, name): [
                one.extent
                for one in self._placed(name, log, 0, _END)
                if one.file.checkpoint == checkpoint and one.file.hour >= hour
            ]
            for log in plan.logs
            for name in names
        }
        total, done = sum(one.rows for own in extents.values() for one in own), 0
        for place, log in enumerate(plan.logs):
            base = place << LOG_BITS
            both = [one for name in names for one in extents[log, name]]
            if not both:
                continue
            gone = sorted(self._withdrawn(log, 0, _END, (hour, "")))
            withdrawn = np.array(gone, dtype=np.uint64) + np.uint64(base)
            yield ColumnBatch(no_decisions(), no_outcomes(), withdrawn, [], [], [])
            for chunk in chunks(both):
                for name in names:
                    columns = DECISION_COLUMNS if name == DECISIONS else OUTCOME_COLUMNS
                    count = rows_within(extents[log, name], chunk.first, chunk.last)
                    wanted = pc.field("checkpoint") == checkpoint
                    read = self.read(
                        name,
                        log,
                        chunk.first,
                        chunk.last,
                        columns,
                        wanted,
                        count,
                        checkpoint=checkpoint,
                        hours=(hour, ""),
                        batch=_COLUMN_ROWS,
                    )
                    for rows in read:
                        if name == DECISIONS:
                            decisions, bundles, labels = decision_columns(rows, base)
                            outcomes, kinds = no_outcomes(), list[str]()
                        else:
                            decisions, bundles, labels = no_decisions(), list[str](), list[str]()
                            outcomes, kinds = outcome_columns(rows, base)
                        done += len(rows)
                        if advance is not None:
                            advance(min(done, total), total)
                        yield ColumnBatch(decisions, outcomes, np.zeros(0, np.uint64), bundles, labels, kinds)

    def search(
        self,
        checkpoint: str,
        matches: Matches,
        before: int | None,
        begin_us: int | None,
        end_us: int | None,
        limit: int,
    ) -> Stretch:
        """Search the logs from the newest decision of a checkpoint to older ones."""
        found: list[tuple[int, DecisionRecord]] = []
        upto = _END if before is None else before
        oldest: int | None = None
        hours = hour_of(begin_us or 0), "" if end_us is None else hour_of(end_us)
        for decoded, (sequence, record) in enumerate(self._backwards(checkpoint, upto, hours, limit)):
            if len(found) >= limit or decoded >= MOST:
                return Stretch(found, upto, False, oldest)
            upto, oldest = sequence, record.decided_at_us
            if begin_us is not None and record.decided_at_us < begin_us:
                return Stretch(found, upto, True, oldest)
            if (end_us is None or record.decided_at_us < end_us) and matches(record):
                found.append((sequence, record))
        return Stretch(found, 0, True, oldest)

    def read(
        self,
        name: str,
        log: str,
        first: int,
        last: int,
        columns: Sequence[str],
        wanted: Any,
        count: int,
        *,
        checkpoint: str | None = None,
        hours: tuple[str, str] = ("", ""),
        batch: int = _ROWS,
    ) -> Iterator[pa.Table]:
        """Yield rows of a table in the order of a log.

        Args:
            name: Name of the table.
            log: UUID of the log.
            first: Lowest sequence.
            last: Highest sequence.
            columns: The columns to read.
            wanted: Further condition that rows must meet; None: there is none.
            count: Number that the rows do not exceed.
            checkpoint: Checkpoint whose files are read; None: those of all.
            hours: First and last hour whose files are read; empty: no limit.
            batch: Largest number of rows of a batch.

        Raises:
            LogError: The tables cannot be read.
        """
        files = self._files(name, log, first, last, checkpoint, hours)
        condition = (pc.field("server") == self.server) & (pc.field("log") == log)
        condition &= (pc.field("sequence") >= first) & (pc.field("sequence") <= last)
        if wanted is not None:
            condition &= wanted
        for void in self.own.plan.voids.get(log, ()):
            condition &= ~((pc.field("segment") == void.segment) & (pc.field("sequence") >= void.sequence))
        try:
            yield from sorted_rows(
                self.state.tables[name],
                files,
                columns,
                condition,
                count=count,
                rows=batch,
                memory_mb=self.follower.settings.memory_mb,
            )
        except Exception:
            self.follower.failed()
            raise

    def _entries(self, name: str, log: str, start: int, withdrawn: Collection[int]) -> Iterator[Entry]:
        own = [one.extent for one in self._placed(name, log, start, _END)]
        for chunk in chunks(own):
            count = rows_within(own, chunk.first, chunk.last)
            for rows in self.read(name, log, chunk.first, chunk.last, ENTRY_COLUMNS[name], None, count):
                for entry in entries(name, rows):
                    if entry.sequence not in withdrawn or entry.kind == WITHDRAWN:
                        yield entry

    def _withdrawn(self, log: str, first: int, end: int, hours: tuple[str, str] = ("", "")) -> set[int]:
        """Return the sequences that the records from `first` up to `end` withdraw."""
        found: set[int] = set()
        placed = self._placed(EVENTS, log, first, end)
        own = [one.extent for one in placed if _is_within(one.file, hours)]
        for chunk in chunks(own):
            count = rows_within(own, chunk.first, chunk.last)
            wanted = pc.field("kind") == WITHDRAWN
            columns = ("sequence", "withdrawn_sequence")
            for rows in self.read(EVENTS, log, chunk.first, chunk.last, columns, wanted, count, hours=hours):
                found.update(rows["withdrawn_sequence"].to_pylist())
        return found

    def _backwards(
        self, checkpoint: str, before: int, hours: tuple[str, str], limit: int
    ) -> Iterator[tuple[int, DecisionRecord]]:
        """Yield the decisions of a checkpoint that are not withdrawn, newest first."""
        size = max(limit, _FIRST_BLOCK)
        logs = self.own.plan.logs
        for place, log in reversed(list(enumerate(logs))):
            base = place << LOG_BITS
            end = min(max(before - base, 0), 1 << LOG_BITS)
            own = [
                one.extent
                for one in self._placed(DECISIONS, log, 0, end)
                if one.file.checkpoint == checkpoint and _is_within(one.file, hours)
            ]
            while own:
                first = self._block(checkpoint, log, own, end, size, hours)
                gone = self._withdrawn(log, first, end + _LATE)
                held: list[Entry] = []
                count = rows_within(own, first, end - 1)
                for rows in self.read(
                    DECISIONS,
                    log,
                    first,
                    end - 1,
                    ENTRY_COLUMNS[DECISIONS],
                    None,
                    count,
                    checkpoint=checkpoint,
                    hours=hours,
                ):
                    held += (one for one in entries(DECISIONS, rows) if one.sequence not in gone)
                for entry in reversed(held):
                    yield base + entry.sequence, entry.record
                end, size = first, min(4 * size, MOST)
                own = [one for one in own if one.first < end]

    def _block(
        self, checkpoint: str, log: str, own: Sequence[Extent], end: int, size: int, hours: tuple[str, str]
    ) -> int:
        """Return the sequence from which on there are about `size` rows before `end`."""
        first, rows = end, 0
        for one in sorted(own, key=lambda extent: extent.last, reverse=True):
            if rows >= size and one.last < first:
                break
            first = min(first, one.first)
            rows += min(one.rows, end - one.first)
        if rows <= 2 * size:
            return first
        # The files have more rows than are needed, so their sequences are read first.
        newest: list[int] = []
        for found in self.read(
            DECISIONS,
            log,
            first,
            end - 1,
            ("sequence",),
            None,
            rows,
            checkpoint=checkpoint,
            hours=hours,
            batch=_COLUMN_ROWS,
        ):
            newest = (newest + found["sequence"].to_pylist())[-size:]
        return newest[0] if newest else first

    def _files(
        self,
        name: str,
        log: str,
        first: int,
        last: int,
        checkpoint: str | None,
        hours: tuple[str, str],
    ) -> list[DataFile]:
        found = {
            one.file.path: one.file
            for one in self._placed(name, log, first, last + 1)
            if checkpoint in {None, one.file.checkpoint} and _is_within(one.file, hours)
        }
        return list(found.values())

    def _placed(self, name: str, log: str, first: int, end: int) -> list[PlacedExtent]:
        """Return the rows of a log that count, from a sequence up to another one."""
        limits = {one.segment: one.sequence for one in self.own.plan.voids.get(log, ())}
        found = []
        for file, one in self.own.extents[name]:
            if one.log != log or one.last < first or one.first >= end:
                continue
            low, high = max(one.first, first), min(one.last, end - 1, limits.get(one.segment, _END) - 1)
            if low <= high:
                rows = min(one.rows, high - low + 1)
                found.append(PlacedExtent(file, one._replace(first=low, last=high, rows=rows)))
        return found


def _is_within(file: DataFile, hours: tuple[str, str]) -> bool:
    return file.hour >= hours[0] and (not hours[1] or file.hour <= hours[1])
