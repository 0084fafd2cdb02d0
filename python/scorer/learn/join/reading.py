"""One pass of the join over the log of one server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scorer.errors import LogError
from scorer.learn.errors import DataError
from scorer.learn.join.cache import LogColumns
from scorer.learn.join.columns import UNKNOWN_RECORD, kept_tables, name_actions, notes_of
from scorer.learn.join.findings import EXAMPLES, Findings
from scorer.log.reading import LogFinding
from scorer.log.source.directories import PRUNED
from scorer.log.source.interface import LogPass, ServerLog, SourceBatch, SourceQuery

if TYPE_CHECKING:
    import pyarrow as pa

    from scorer.log.reading import Advance

DAMAGE: Final = {
    "gap": "gap in the log",
    "unsynced_loss": "gap in the log",
    PRUNED: "removed before it was read",
    "corrupt_middle": "damaged segment",
    "damaged_bytes": "damaged segment",
    "corrupt_header": "damaged segment",
    "quarantined": "quarantined segment",
    "foreign_segment": "foreign segment",
    "duplicate": "sequence twice",
    "torn_tail": "unfinished tail",
}
"""Names of the join's findings by the kinds of faults of a log."""


class _UnreadableLogError(Exception):
    """The log cannot be read. Failures to store what was read are other errors, which end the join."""


class LogReading:
    """Reads the log of one server into columns.

    Args:
        log: The log.
        query: The rows that are needed. Without a checkpoint, those of all checkpoints are read.
        outcome: Kind of the outcome that is the reward.
        directory: Where the columns are stored; None: they are not kept after the join.
        about: What stored columns are of.
        stack: Removes temporary files at the end of the join.

    Attributes:
        log: The log.
        error: Why the log cannot be read; empty if it was read.
    """

    def __init__(
        self,
        log: ServerLog,
        query: SourceQuery,
        outcome: str,
        directory: Path | None,
        about: Mapping[str, Any],
        stack: ExitStack,
    ) -> None:
        self.log, self.error = log, ""
        self._query, self._outcome, self._stack = query, outcome, stack
        self._directory, self._about = directory, about
        self._points: dict[str, CheckpointRows] = {}
        self._damage: list[LogFinding] = []
        self._unknown, self._unknown_first = 0, list[int]()
        if query.checkpoint is not None:
            self._point(query.checkpoint)

    def read(self, advance: Advance | None) -> None:
        """Read all records that were added since the last pass."""
        # Only the columns of a named checkpoint can be stored, and therefore continued.
        stored = None if self._query.checkpoint is None else self._points[self._query.checkpoint].columns
        try:
            read = self._begin(stored, advance)
            if stored is not None:
                stored.begin(read)
            for batch in _batches(read):
                self._add(batch)
        except _UnreadableLogError as error:
            self.error = str(error)
            for point in self._points.values():
                point.columns.abandon()
            return
        self._damage = list(read.findings)
        for point in self._points.values():
            self._damage = point.columns.finish(read)

    @property
    def identity(self) -> str:
        """Identity of the log; its name if no row was read."""
        return next((point.columns.log for point in self._points.values()), self.log.name)

    @property
    def used(self) -> str:
        """What is used of a log that cannot be read, as a clause."""
        upto = max((point.columns.next_sequence for point in self._points.values()), default=0)
        return f"records before {upto}, which were read earlier, are used" if upto else "none of it is used"

    @property
    def lost_rows(self) -> int:
        """Number of decisions and outcomes that only earlier passes have read."""
        return sum(point.columns.lost_rows for point in self._points.values())

    @property
    def choosing(self) -> set[str]:
        """Names of the checkpoints that choose actions."""
        return {name for name, point in self._points.items() if point.chooses}

    def columns(self, checkpoint: str) -> LogColumns:
        """Return the columns of a checkpoint."""
        return self._point(checkpoint).columns

    def note_damage(self, findings: Findings, prefix: str) -> None:
        """Note the faults of the log.

        Args:
            findings: Receives the faults.
            prefix: Text before each example.
        """
        for one in self._damage:
            name = DAMAGE.get(one.kind)
            if name is not None:
                lost = one.lost[1] - one.lost[0] + 1 if one.lost else 1
                findings.add(name, prefix + one.detail, lost)
        findings.add_rows(
            UNKNOWN_RECORD,
            self._unknown,
            [f"{prefix}sequence {one}" for one in self._unknown_first],
        )

    def _begin(self, stored: LogColumns | None, advance: Advance | None) -> LogPass:
        try:
            erasures = self.log.erasures
            after = None if stored is None else stored.position(self._query.since_us, erasures)
            return self.log.read(self._query, after, advance)
        except (LogError, OSError) as error:
            raise _UnreadableLogError(str(error)) from error

    def _add(self, batch: SourceBatch) -> None:
        name = self._query.checkpoint or batch.checkpoint
        if not name:
            self._unknown += len(batch.rows)
            self._unknown_first += batch.rows["sequence"][: EXAMPLES - len(self._unknown_first)].to_pylist()
        elif batch.kind == "withdrawals":
            self._point(name).columns.withdraw(batch.rows["withdrawn"].to_pylist())
        else:
            for kind, table in kept_tables(batch, self._outcome).items():
                self._point(name).add(kind, table)

    def _point(self, checkpoint: str) -> CheckpointRows:
        if checkpoint not in self._points:
            columns = LogColumns(self._directory, self._about)
            named = self._query.checkpoint is not None
            self._points[checkpoint] = CheckpointRows(self._stack.enter_context(columns), every=named)
        return self._points[checkpoint]


class CheckpointRows:
    """The rows of one checkpoint. Of one that only gives scores, no decision is kept.

    Args:
        columns: Receives the rows.
        every: Whether every decision is kept. That is so for a checkpoint that is named, because retention
            may later remove the decisions that named an action.

    Attributes:
        columns: The rows.
        chooses: Whether decisions are kept: from the first one that names an action on.
    """

    def __init__(self, columns: LogColumns, *, every: bool) -> None:
        self.columns, self.chooses = columns, every
        self._scores = 0
        self._examples: list[str] = []

    def add(self, kind: str, table: pa.Table) -> None:
        """Take the next rows of a kind."""
        if kind == "decisions" and not self.chooses:
            named = name_actions(table)
            first = int(np.argmax(named)) if named.any() else len(table)
            self._scores += first
            self._examples += table["decision_id"][
                : max(min(EXAMPLES - len(self._examples), first), 0)
            ].to_pylist()
            if first == len(table):
                return
            self.chooses = True
            sequence = table["sequence"][first].as_py()
            examples = self._examples + [""] * (self._scores - len(self._examples))
            self.columns.add("notes", notes_of([sequence] * self._scores, "no action", examples))
            table = table.slice(first)
        self.columns.add(kind, table)


def _batches(read: LogPass) -> Iterator[SourceBatch]:
    """Yield the batches of a pass.

    Raises:
        _UnreadableLogError: The log cannot be read further.
    """
    try:
        yield from read
    except (LogError, OSError) as error:
        raise _UnreadableLogError(str(error)) from error


def chosen_checkpoint(readings: Sequence[LogReading]) -> str:
    """Return the only checkpoint that chooses actions.

    Args:
        readings: The logs, read without naming a checkpoint.

    Raises:
        DataError: There is none, or there are several.
    """
    names = sorted(set().union(*(one.choosing for one in readings)))
    if len(names) == 1:
        return names[0]
    if names:
        raise DataError(
            f"the log holds decisions of several action checkpoints ({', '.join(names)}); "
            "name one: --checkpoint"
        )
    raise DataError("the log holds no decision of an action; give the log of an action checkpoint")
