"""The files and positions of shipped tables at one moment, and how they follow the tables.

The tables are opened once; later looks read the commits since. Every new file is read once into the index.
A state is used only when all of its files are indexed, so the rows that it has are complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from scorer.errors import LogError
from scorer.log.shipped.schema import DECISIONS, EVENTS, OBSERVATIONS, OUTCOMES
from scorer.log.source.delta_plan import Extent, TablePlan, plan
from scorer.log.source.delta_tables import DataFile, ShippedTable, reading
from scorer.log.source.table_index import FileExtent, TableIndex

if TYPE_CHECKING:
    from scorer.log.shipped.position import ShipPosition
    from scorer.log.source.settings import SourceSettings

TABLES: Final = (DECISIONS, EVENTS, OUTCOMES, OBSERVATIONS)
"""Decisions are opened first: what is below a position in that table is in every table."""
_INDEXED: Final = ("server", "log", "segment", "sequence", "decision_id")
_ROWS: Final = 20_000
_END: Final = 1 << 62
_RETRY_SECONDS: Final = 5.0
"""Shortest interval of attempts to open tables that could not be read."""


class PlacedExtent(NamedTuple):
    """The rows of one segment in one file.

    Attributes:
        file: The file.
        extent: The rows.
    """

    file: DataFile
    extent: Extent


@dataclass(frozen=True)
class ServerState:
    """The rows of one server.

    Attributes:
        extents: The rows by table.
        position: End of the rows that every table has.
    """

    extents: Mapping[str, Sequence[PlacedExtent]]
    position: ShipPosition | None

    @cached_property
    def plan(self) -> TablePlan:
        """The logs of the server in their order, and the rows of each that count."""
        found = {name: [one.extent for one in own] for name, own in self.extents.items()}
        return plan(found, self.position, None, 0) or TablePlan((), {}, {}, 0, 0)


@dataclass(frozen=True)
class TableState:
    """Tables at one moment, with all of their files indexed.

    Attributes:
        number: Number of the state, which rises.
        tables: The tables by name.
        servers: Their servers by id.
    """

    number: int = 0
    tables: Mapping[str, ShippedTable] = field(default_factory=dict)
    servers: Mapping[str, ServerState] = field(default_factory=dict)


class TableFollower:
    """Follows the tables below one address.

    Args:
        url: Directory or URL below which the tables are: `[delta] url` of the shippers.
        settings: How the tables are read.
        index: The index of their files.
        refresh_seconds: Shortest interval of looks for new commits.
        clock: Returns seconds.
    """

    def __init__(
        self,
        url: str,
        settings: SourceSettings,
        index: TableIndex,
        *,
        refresh_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url, self.settings = url, settings
        self._index, self._every, self._clock = index, refresh_seconds, clock
        self._lock = Lock()
        self._tables: dict[str, ShippedTable] = {}
        self._known: dict[str, dict[str, tuple[FileExtent, ...]]] = {}
        self._pending: list[tuple[str, DataFile]] = []
        self._due = float("-inf")
        self._state: TableState | None = None
        self.problem = ""
        """Why the tables cannot be read, or are not read completely yet, in one line; empty: they can be."""

    @property
    def state(self) -> TableState:
        """The last complete state. It has no server until all files have been indexed once."""
        return self._state or TableState()

    @property
    def is_indexing(self) -> bool:
        """Whether the last look has found files that are not indexed yet."""
        return bool(self._pending)

    @property
    def is_due(self) -> bool:
        """Whether `refresh` has something to do."""
        return self.is_indexing or self._clock() >= self._due

    def refresh(self, seconds: float, *, now: bool = False) -> bool:
        """Look for new rows, and index their files.

        Args:
            seconds: Time limit of indexing, which is checked after every file. Another call continues.
            now: Look even if the last look was less than `refresh_seconds` ago.

        Returns:
            Whether the state is that of the last look. Otherwise `problem` has the reason, or another thread
            is refreshing.
        """
        if not self._lock.acquire(blocking=now, timeout=seconds if now else -1):
            return False
        try:
            return self._refresh(self._clock() + seconds, now=now)
        except LogError as error:
            self.problem = str(error)
            self._forget()
            return False
        finally:
            self._lock.release()

    def failed(self) -> None:
        """Open the tables anew at the next look, because their files could not be read."""
        if self._lock.acquire(blocking=False):
            self._forget()
            self._lock.release()

    def _forget(self) -> None:
        self._tables, self._known, self._pending = {}, {}, []
        self._due = self._clock() + min(self._every, _RETRY_SECONDS)

    def _refresh(self, deadline: float, *, now: bool) -> bool:
        if not self._pending:
            if not now and self._clock() < self._due:
                return not self.problem
            if not self._look():
                return True
        while self._pending:
            name, file = self._pending[-1]
            self._known[name][file.path] = self._read(self._tables[name], file)
            self._pending.pop()
            if self._pending and self._clock() > deadline:
                done = sum(map(len, self._known.values()))
                self.problem = (
                    f'table "{self.url}": {done:,} of {done + len(self._pending):,} files are indexed; new '
                    "records are shown when all are"
                )
                return False
        self._publish()
        return True

    def _look(self) -> bool:
        """Open the newest versions and list the files that are not indexed; False if nothing has changed."""
        before = dict(self._tables)
        for name in TABLES:
            known = before.get(name)
            self._tables[name] = (
                ShippedTable(f"{self.url}/{name}", name, self.settings) if known is None else known.newer()
            )
            # They are read before the table continues to a newer version.
            _ = self._tables[name].files
            if name not in self._known:
                self._known[name] = self._index.extents(self.url, name)
        self._due = self._clock() + self._every
        if self._state is not None and self._tables == before:
            self.problem = ""
            return False
        # The newest hours are indexed first.
        new = [(one.hour, name, one) for name in TABLES for one in self._new_files(name)]
        self._pending = [(name, one) for _, name, one in sorted(new, key=lambda place: place[:2])]
        return True

    def _new_files(self, name: str) -> Iterator[DataFile]:
        return (one for one in self._tables[name].files if one.path not in self._known[name])

    def _read(self, table: ShippedTable, file: DataFile) -> tuple[FileExtent, ...]:
        """Read where the rows of a file belong, and add them to the index."""
        found: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        with reading(table.url):
            scanner = table.dataset([file]).scanner(
                columns=list(_INDEXED), batch_size=_ROWS, batch_readahead=1, fragment_readahead=1
            )
            batches = scanner.to_batches()
            for batch in batches:
                rows = pa.Table.from_batches([batch])
                parts = rows.group_by(["server", "log", "segment"]).aggregate(
                    [("sequence", "min"), ("sequence", "max"), ("sequence", "count")]
                )
                for row in parts.to_pylist():
                    place = row["server"], row["log"], row["segment"]
                    first, last, count = found.get(place, (row["sequence_min"], 0, 0))
                    found[place] = (
                        min(first, row["sequence_min"]),
                        max(last, row["sequence_max"]),
                        count + row["sequence_count"],
                    )
                named = rows.filter(pc.is_valid(rows["decision_id"]))
                columns = (named[one].to_pylist() for one in ("server", "log", "sequence", "decision_id"))
                if len(named):
                    self._index.add_rows(self.url, table.name, list(zip(*columns, strict=True)))
        extents = tuple(FileExtent(*place, *of) for place, of in found.items())
        self._index.add_file(self.url, table.name, file.path, extents)
        return extents

    def _publish(self) -> None:
        """Make the state of the last look, and remove files that the tables no longer have."""
        self._remove(
            {
                name: self._known[name].keys() - {one.path for one in self._tables[name].files}
                for name in TABLES
            }
        )
        extents: dict[str, dict[str, list[PlacedExtent]]] = {}
        for name in TABLES:
            for file in self._tables[name].files:
                for one in self._known[name][file.path]:
                    own = extents.setdefault(one.server, {table: [] for table in TABLES})
                    extent = Extent(one.log, one.segment, file.hour, one.first, one.last, one.rows)
                    own[name].append(PlacedExtent(file, extent))
        servers = {
            server: ServerState(own, self._tables[DECISIONS].position(server))
            for server, own in sorted(extents.items())
        }
        self._state = TableState(self.state.number + 1, dict(self._tables), servers)
        self.problem = ""

    def _remove(self, gone: Mapping[str, set[str]]) -> None:
        """Remove files from the index, and the rows of each log that precede its oldest one."""
        if not any(gone.values()):
            return
        before = self._oldest()
        for name, paths in gone.items():
            for path in paths:
                del self._known[name][path]
        after = self._oldest()
        rose = {log: after.get(log, _END) for log, first in before.items() if after.get(log, _END) > first}
        for name, paths in gone.items():
            if paths:
                self._index.forget(self.url, name, paths, rose)

    def _oldest(self) -> dict[tuple[str, str], int]:
        """Return the lowest sequence of each log by server and UUID."""
        found: dict[tuple[str, str], int] = {}
        for own in self._known.values():
            for extents in own.values():
                for one in extents:
                    log = one.server, one.log
                    found[log] = min(found.get(log, one.first), one.first)
        return found
