"""A source that reads the Delta tables of `scorer ship`, with the rows of all servers that ship to them.

Each server is a log of the source. A pass reads the files that were added since the last one, of the
partitions that are needed. DuckDB puts the rows in the order of the log, with bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from scorer.bounded_duckdb import bounded_duckdb
from scorer.errors import LogError
from scorer.log.reading import Advance, LogFinding
from scorer.log.shipped.schema import DECISIONS, EVENTS, OUTCOMES
from scorer.log.source.delta_plan import (
    LOG_BITS,
    Chunk,
    Extent,
    TableMark,
    TablePlan,
    chunks,
    plan,
    rows_within,
)
from scorer.log.source.delta_reading import (
    hour_of,
    reader_of,
    require_packages,
    sorted_rows,
)
from scorer.log.source.delta_rows import COLUMNS, source_rows
from scorer.log.source.delta_tables import READ, DataFile, ShippedTable, reading
from scorer.log.source.interface import ReadPosition, SourceBatch, SourceQuery

if TYPE_CHECKING:
    from scorer.log.source.settings import SourceSettings

_ORDER: Final = (EVENTS, DECISIONS, OUTCOMES)
"""Withdrawals are in the table of events, so they are known before the rows that they withdraw."""
_PLACE: Final = ("log", "segment", "hour", "sequence")


class DeltaSource:
    """The servers that ship to the tables below one address.

    Args:
        url: Directory or URL below which the tables are: `[delta] url` of the shippers.
        settings: How the tables are read.

    Raises:
        LogError: A package is missing.
    """

    def __init__(self, url: str, settings: SourceSettings) -> None:
        require_packages(url)
        self.url, self.settings = url.rstrip("/"), settings

    @cached_property
    def tables(self) -> Mapping[str, ShippedTable]:
        """The tables as they are now. All logs of the source read the same versions.

        Raises:
            LogError: A table cannot be read.
        """
        return {name: ShippedTable(f"{self.url}/{name}", name, self.settings) for name in READ}

    @cached_property
    def logs(self) -> Sequence[DeltaLog]:
        """One log for each server, in alphabetical order.

        Raises:
            LogError: The tables cannot be read, or no server has shipped to them.
        """
        servers = sorted(self.tables[DECISIONS].servers())
        if not servers:
            raise LogError(f'table "{self.url}" has no record of any server yet; start `scorer ship` first')
        return [DeltaLog(self, server) for server in servers]


@dataclass(frozen=True)
class DeltaLog:
    """The rows of one server.

    Attributes:
        source: The tables.
        name: Id of the server.
    """

    source: DeltaSource
    name: str

    @property
    def erasures(self) -> str:
        """Empty: a pass finds out by the commits of the tables that rows were removed."""
        return ""

    def read(
        self, query: SourceQuery, after: ReadPosition | None = None, advance: Advance | None = None
    ) -> DeltaPass:
        """Begin a pass; see `scorer.log.source.interface.ServerLog`."""
        return DeltaPass(self, query, after, advance)


class DeltaPass:
    """One pass over the rows of one server.

    A pass holds up to `SourceQuery.rows` rows, besides the row groups that are being read, and DuckDB up to
    the memory of the settings.

    Args:
        log: The server.
        query: The rows that are needed.
        after: The end of an earlier pass.
        advance: Called with the bytes read so far and the total bytes, both estimated.

    Raises:
        LogError: The tables cannot be read.
    """

    findings: tuple[LogFinding, ...] = ()
    """The shipper finds the faults of a log and reports them."""
    segments: Mapping[str, bool] = {}
    first_sequence = 0
    """Rows that were removed from a table are recognised by its commits and not by their sequences."""

    def __init__(
        self, log: DeltaLog, query: SourceQuery, after: ReadPosition | None, advance: Advance | None
    ) -> None:
        self._source, self._server = log.source, log.name
        self._tables = log.source.tables
        self._query, self._advance = query, advance
        self.since_us = query.since_us
        mark = None if after is None else TableMark.parse(after.mark)
        self.erased = mark is not None and not all(
            table.keeps_rows_since(mark.versions.get(name, -1)) for name, table in self._tables.items()
        )
        begun = None
        if after is not None and mark is not None and not self.erased:
            begun = self._begin(mark, after.next)
        self.continued = begun is not None
        self._files, self._plan = begun or self._begin(None, 0) or ({}, TablePlan((), {}, {}, 0, 0))
        self._versions = {name: self._read_version(name, mark if self.continued else None) for name in READ}

    @property
    def position(self) -> ReadPosition:
        """The end of the pass."""
        return self._plan.position(self._versions)

    def __iter__(self) -> Iterator[SourceBatch]:
        """Yield the rows, in batches of up to `SourceQuery.rows`."""
        todo = [
            (name, place, chunk)
            for place, log in enumerate(self._plan.logs)
            for name in _ORDER
            for chunk in chunks([one for one in self._plan.extents[name] if one.log == log])
        ]
        total, rows, done = self._bytes(), sum(chunk.rows for _, _, chunk in todo), 0
        withdrawn: set[int] = set()
        for name, place, chunk in todo:
            for batch in self._sorted(name, self._plan.logs[place], chunk):
                for out in self._converted(name, batch, place << LOG_BITS):
                    if out.kind == "withdrawals":
                        withdrawn.update(out.rows["withdrawn"].to_pylist())
                        yield out
                    elif len(left := _without(out, withdrawn).rows):
                        yield out._replace(rows=left)
            done += chunk.rows
            if self._advance is not None:
                self._advance(total * done // rows, total)

    def _begin(
        self, mark: TableMark | None, following: int
    ) -> tuple[dict[str, list[DataFile]], TablePlan] | None:
        """Return the files and the rows to read; None if the rows do not continue those before the mark."""
        files = {name: self._candidates(name, mark) for name in READ}
        found = {name: self._extents(name, files[name]) for name in READ}
        made = plan(found, self._tables[DECISIONS].position(self._server), mark, following)
        return None if made is None else (files, made)

    def _read_version(self, name: str, mark: TableMark | None) -> int:
        """Return the version of a table of which all rows of the server have been read after this pass.

        The tables are committed one after the other. A table that has rows after the position of the server
        has them in files that the next pass must consider again; -1: all of them.
        """
        own, end = (self._tables[one].position(self._server) for one in (name, DECISIONS))
        is_ahead = own is not None and (end is None or own.log != end.log or own.place > end.place)
        if not is_ahead:
            return self._tables[name].version
        return -1 if mark is None else mark.versions[name]

    def _candidates(self, name: str, mark: TableMark | None) -> list[DataFile]:
        """Return the files of a table that may have rows to read."""
        table, checkpoint = self._tables[name], self._query.checkpoint
        files = table.files if mark is None else table.files_since(mark.versions[name])
        hour = hour_of(self.since_us)
        return [
            one
            for one in files
            if one.hour >= hour
            and one.may_have(self._server)
            and (checkpoint is None or one.checkpoint in {checkpoint, None})
        ]

    def _extents(self, name: str, files: Sequence[DataFile]) -> list[Extent]:
        """Return where the rows of the server are, from the columns that say so."""
        table = self._tables[name]
        if not files:
            return []
        with reading(table.url), bounded_duckdb(self._source.settings.memory_mb << 20) as database:
            scanner = table.dataset(files).scanner(
                columns=list(_PLACE),
                filter=pc.field("server") == self._server,
                batch_size=1 << 16,
                batch_readahead=4,
                fragment_readahead=2,
            )
            database.register("places", reader_of(scanner))
            rows = database.execute(
                "select log, segment, hour, min(sequence), max(sequence), count(*) from places group by all"
            ).fetchall()
        return [Extent(*row) for row in rows]

    def _sorted(self, name: str, log: str, chunk: Chunk) -> Iterator[pa.Table]:
        """Yield the rows of a chunk in the order of the log."""
        table = self._tables[name]
        files = [one for one in self._files[name] if one.hour in chunk.hours]
        wanted: Any = (pc.field("server") == self._server) & (pc.field("log") == log)
        wanted &= (pc.field("sequence") >= chunk.first) & (pc.field("sequence") <= chunk.last)
        for void in self._plan.voids.get(log, ()):
            wanted &= ~((pc.field("segment") == void.segment) & (pc.field("sequence") >= void.sequence))
        memory_mb = self._source.settings.memory_mb
        own = [one for one in self._plan.extents[name] if one.log == log]
        yield from sorted_rows(
            table,
            files,
            COLUMNS[name],
            wanted,
            count=rows_within(own, chunk.first, chunk.last),
            rows=self._query.rows,
            memory_mb=memory_mb,
        )

    def _converted(self, name: str, rows: pa.Table, base: int) -> Iterator[SourceBatch]:
        """Yield rows of a table as batches of the source, by checkpoint."""
        known = rows["checkpoint"]
        for checkpoint in pc.unique(known).to_pylist():
            if checkpoint is None:
                own = rows.filter(pc.is_null(known))
            else:
                own = (
                    rows
                    if pc.all(pc.equal(known, checkpoint)).as_py() and not known.null_count
                    else (rows.filter(pc.equal(known, checkpoint)))
                )
            for kind, table in source_rows(name, own, base, self._query.reader_key):
                yield SourceBatch(checkpoint or "", kind, table)

    def _bytes(self) -> int:
        return sum(one.size for files in self._files.values() for one in files)


def _without(batch: SourceBatch, withdrawn: set[int]) -> SourceBatch:
    if not withdrawn or batch.kind not in {"decisions", "outcomes", "deliveries"}:
        return batch
    gone = pc.is_in(batch.rows["sequence"], value_set=pa.array(sorted(withdrawn), pa.int64()))
    return batch._replace(rows=batch.rows.filter(pc.invert(gone)))
