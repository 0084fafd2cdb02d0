"""The Delta sink: one append per table and batch, with the position in the same commit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from scorer.errors import ShipError
from scorer.log.shipped.position import ShipPosition
from scorer.log.shipped.schema import DECISIONS
from scorer.ship.batch import Batch
from scorer.ship.rows import tables_of
from scorer.ship.settings import DeltaSection
from scorer.ship.tables import ConcurrentCommitError, Tables
from scorer.ship.upkeep import Upkeep


class DeltaSink:
    """Delivers batches to the tables `decisions`, `outcomes`, `observations` and `events`.

    Delta commits to one table at a time. Each commit sets the server's position in its table, and the table
    of decisions is committed last, also without rows: what is below its position is in every table. After a
    kill between two commits, the tables that were committed are ahead, and their rows are not appended again.

    Args:
        settings: The settings of the sink.
        server: Id of the server.
    """

    name = "delta"

    def __init__(self, settings: DeltaSection, server: str) -> None:
        self._tables = Tables(settings, server)
        self._server = server
        self._upkeep = Upkeep(settings)
        self._positions: dict[str, ShipPosition | None] = {}
        self.commits = 0

    def open(self) -> ShipPosition | None:
        """Create or check the tables, and return the position of the table of decisions."""
        self._positions = self._tables.prepare()
        return self._positions[DECISIONS]

    def deliver(self, batch: Batch) -> None:
        """Append the rows of a batch to each table, then set the position of the sink."""
        for name, rows in tables_of(batch).items():
            if name == DECISIONS or rows.num_rows:
                self._append(name, rows, batch)

    def upkeep(self) -> str:
        """Start a child process for the maintenance of the tables if it is due."""
        return self._upkeep.supervise()

    def finish(self) -> str:
        """Maintain the tables if it is due, and wait for the child process."""
        return self._upkeep.finish()

    def close(self) -> None:
        """End the child process of the maintenance."""
        self._upkeep.close()

    def _append(self, name: str, rows: pa.Table, batch: Batch) -> None:
        known = self._positions[name]
        if known is not None and _is_ahead(known, batch):
            # A commit of this table was not followed by that of the decisions.
            if batch.end.place <= known.place:
                return
            rows = _after(rows, known)
            if name != DECISIONS and not rows.num_rows:
                return
        table = self._tables.load(name)
        found = self._tables.position(table)
        if found != known:
            raise ShipError(
                f'table "{table.table_uri}": the position of server "{self._server}" was {_text(known)} and '
                "is "
                f"{_text(found)}: another process ships with this id; give each server an id of its own"
            )
        before = table.version()
        try:
            self._tables.append(table, rows, batch.end)
        except ConcurrentCommitError:
            # The storage may have made the commit, answered that it is busy, and refused the second try.
            if self._tables.position(self._tables.load(name)) != batch.end:
                raise
        self._positions[name] = batch.end
        self.commits += 1
        self._upkeep.committed(name, before, table.version())


def _is_ahead(known: ShipPosition, batch: Batch) -> bool:
    """Return whether a table's position is after the begin of a batch."""
    if known.log != batch.end.log:
        return False
    begin = batch.begin if batch.begin is not None and batch.begin.log == known.log else None
    return begin is None or known.place > begin.place


def _after(rows: pa.Table, position: ShipPosition) -> pa.Table:
    """Return the rows that a table with a position does not have."""
    number = pc.cast(pc.utf8_slice_codeunits(rows["segment"], 0, 10), pa.int64())
    is_later: Any = pc.or_(
        pc.greater(number, position.number),
        pc.and_(pc.equal(number, position.number), pc.greater_equal(rows["sequence"], position.sequence)),
    )
    return rows.filter(is_later)


def _text(position: ShipPosition | None) -> str:
    return "unset" if position is None else f"sequence {position.sequence}"
