"""Columns of a log kept beside it, so that the next join reads only the records that were added since.

A cache is a directory of Parquet files, each a run of records in the order of the log, and `cursor.json`,
which names them and the next sequence. Files are written first and the cursor replaced last, so a killed run
leaves the earlier state. Columns that a join needs row by row stay on disk until they are needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scorer.durable import write_atomically
from scorer.learn.join.columns import DECISIONS, DELIVERIES, LIGHT, NOTES, OUTCOMES
from scorer.log.reading import LogFinding
from scorer.log.scanning import LogScan

CURSOR = "cursor.json"
_FORMAT = 4
_PART_ROWS = 65_536
"""Decisions of a part: what is in memory at once of the columns that stay on disk."""
_SMALL_PARTS = 16
"""Small parts that are merged into one."""
_SCHEMAS = {"decisions": DECISIONS, "outcomes": OUTCOMES, "deliveries": DELIVERIES, "notes": NOTES}


@dataclass
class Cursor:
    """Where the columns end.

    Attributes:
        about: what the columns are of; a cache of anything else is not used.
        next_sequence: the first record that is not in them.
        segment: file of the log that holds the last one; "": none was read.
        parts: names of the files by kind, in order, with the rows of each.
        damage: what was wrong with the bytes of sealed segments, which are not read again.
        withdrawn: sequences of records that later ones took back.
    """

    about: Mapping[str, Any]
    next_sequence: int = 0
    segment: str = ""
    parts: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: {kind: [] for kind in _SCHEMAS})
    damage: list[dict[str, Any]] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)


class JoinColumns(Protocol):
    """What a join reads: the columns of one checkpoint, of one log or of several."""

    @property
    def outcome(self) -> str:
        """Kind of the outcome that is the reward."""

    @property
    def merged(self) -> bool:
        """Whether they are of several logs, one after the other: rows are then in the order of each log."""

    def choose_actions(self) -> bool:
        """Whether any decision names an action."""

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a kind."""

    def light(self) -> pa.Table:
        """The columns of all decisions that decide whether they are used."""

    def decisions(self) -> Iterator[pa.Table]:
        """All columns of the decisions, part by part: the rows of `light`, in the same order."""


class MergedColumns:
    """The columns of one checkpoint from the logs of several servers."""

    merged = True

    def __init__(self, logs: Sequence[JoinColumns]) -> None:
        self._logs = logs
        self.outcome = logs[0].outcome

    def choose_actions(self) -> bool:
        """Return whether any decision of any log names an action."""
        return any(log.choose_actions() for log in self._logs)

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a kind, log after log; outcomes are in the order in which they were received."""
        table = pa.concat_tables([log.table(kind, columns) for log in self._logs]).unify_dictionaries()
        if kind != "outcomes":
            return table
        return table.take(pa.array(np.argsort(table["received_at_us"].to_numpy(), kind="stable")))

    def light(self) -> pa.Table:
        """The columns of all decisions that decide whether they are used, log after log."""
        return self.table("decisions", LIGHT)

    def decisions(self) -> Iterator[pa.Table]:
        """All columns of the decisions, part by part, log after log."""
        return chain.from_iterable(log.decisions() for log in self._logs)


class LogColumns:
    """The columns of one checkpoint: in memory, or in a cache with `directory`.

    Args:
        directory: of the cache; None: nothing is kept.
        about: what the columns are of, as JSON; with the kind of the `outcome`.

    Attributes:
        outcome: kind of the outcome that is the reward.
    """

    merged = False

    def __init__(self, directory: Path | None, about: Mapping[str, Any]) -> None:
        self._directory = directory
        self.outcome: str = about["outcome"]
        self._about = {"format": _FORMAT, **about}
        self._cursor = self._load()
        self._new: dict[str, list[pa.Table]] = {kind: [] for kind in _SCHEMAS}
        self._waiting: dict[str, int] = dict.fromkeys(_SCHEMAS, 0)
        self._first_sequence = 0

    def next_sequence(self, log: Path) -> int:
        """The first record that is not in the columns; 0 where the log lost what they end with."""
        if self._cursor.segment and not (log / self._cursor.segment).is_file():
            self._cursor = Cursor(self._about)
        return self._cursor.next_sequence

    def add(self, kind: str, table: pa.Table) -> None:
        """Takes the next rows of a kind; with a cache, full parts go to disk at once."""
        self._new[kind].append(table)
        self._waiting[kind] += len(table)
        if self._directory is not None and self._waiting[kind] >= _PART_ROWS:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._write(kind)

    def withdraw(self, sequence: int) -> None:
        """Leaves out a record that may have been read by an earlier run."""
        self._cursor.withdrawn.append(sequence)

    def finish(self, entries: LogScan) -> list[LogFinding]:
        """Keeps what was read.

        Args:
            entries: from `next_sequence` on, at their end.

        Returns:
            Everything wrong with the bytes of the log, found now or by the runs before.
        """
        segments = entries.segments
        self._first_sequence = min((one.sequences[0] for one in segments if one.sequences), default=0)
        names, sealed = {one.name for one in segments}, {one.name for one in segments if one.sealed}
        earlier = [
            LogFinding(**{**one, "lost": one["lost"] and tuple(one["lost"])})
            for one in self._cursor.damage
            if one["segment"] in names
        ]
        damage = list(dict.fromkeys([*earlier, *entries.findings]))
        self._cursor.damage = [asdict(one) for one in damage if one.segment in sealed]
        for one in segments:
            if one.sequences and one.sequences[1] >= self._cursor.next_sequence:
                self._cursor.next_sequence, self._cursor.segment = one.sequences[1] + 1, one.name
        self._save()
        return damage

    def choose_actions(self) -> bool:
        """Whether any decision names an action."""
        rows = self.table("decisions", ["sequence", "action", "probabilities"])
        named = pc.or_(pc.greater(rows["probabilities"], 0), pc.not_equal(rows["action"], ""))
        return bool(pc.any(named).as_py())

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a kind that the log still holds, in the order of the log."""
        tables = list(self._tables(kind, columns))
        schema = _SCHEMAS[kind]
        empty = pa.schema([schema.field(name) for name in columns or schema.names]).empty_table()
        return pa.concat_tables([empty, *tables]).unify_dictionaries()

    def light(self) -> pa.Table:
        """The columns of all decisions that decide whether they are used."""
        return self.table("decisions", LIGHT)

    def decisions(self) -> Iterator[pa.Table]:
        """All columns of the decisions, part by part: the rows of `light`, in the same order."""
        return self._tables("decisions", None)

    def _tables(self, kind: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        names = list(columns or _SCHEMAS[kind].names)
        for name, _ in self._cursor.parts[kind]:
            yield self._still_there(pq.read_table(self._path(name), columns=names, memory_map=True))
        for table in self._new[kind]:
            yield self._still_there(table.select(names))

    def _still_there(self, table: pa.Table) -> pa.Table:
        """Without records that were withdrawn or whose segment the log's retention has removed."""
        withdrawn = pa.array(self._cursor.withdrawn, pa.int64())
        if len(withdrawn):
            table = table.filter(pc.invert(pc.is_in(table["sequence"], value_set=withdrawn)))
        if not len(table) or table["sequence"][0].as_py() >= self._first_sequence:
            return table
        return table.filter(pc.greater_equal(table["sequence"], self._first_sequence))

    def _load(self) -> Cursor:
        if self._directory is None:
            return Cursor(self._about)
        try:
            text = json.loads((self._directory / CURSOR).read_bytes())
            cursor = Cursor(**text)
            cursor.parts = {kind: [(name, rows) for name, rows in cursor.parts[kind]] for kind in _SCHEMAS}
            whole = all(self._path(name).is_file() for parts in cursor.parts.values() for name, _ in parts)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return Cursor(self._about)
        return cursor if whole and cursor.about == self._about else Cursor(self._about)

    def _save(self) -> None:
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._cursor.withdrawn = [at for at in self._cursor.withdrawn if at >= self._first_sequence]
        for kind, parts in self._cursor.parts.items():
            if self._waiting[kind]:
                self._write(kind)
            self._drop_gone(parts)
            self._merge_small(kind, parts)
        write_atomically(self._directory / CURSOR, json.dumps(asdict(self._cursor)).encode() + b"\n")
        named = {name for parts in self._cursor.parts.values() for name, _ in parts}
        for path in self._directory.glob("*.parquet"):
            if path.name not in named:
                path.unlink()

    def _write(self, kind: str) -> None:
        table = pa.concat_tables(self._new[kind]).unify_dictionaries()
        self._cursor.parts[kind].append((self._write_part(kind, table), len(table)))
        self._new[kind], self._waiting[kind] = [], 0

    def _write_part(self, kind: str, table: pa.Table) -> str:
        first, last = table["sequence"][0].as_py(), table["sequence"][-1].as_py()
        name = f"{kind}-{first:020d}-{last:020d}.parquet"
        part = self._path(f".{name}.part")
        pq.write_table(table, part, compression="zstd")
        part.replace(self._path(name))
        return name

    def _drop_gone(self, parts: list[tuple[str, int]]) -> None:
        """Forgets parts of which the log holds no record any more."""
        last = [int(name.removesuffix(".parquet").rpartition("-")[2]) for name, _ in parts]
        parts[:] = [one for one, at in zip(parts, last, strict=True) if at >= self._first_sequence]

    def _merge_small(self, kind: str, parts: list[tuple[str, int]]) -> None:
        """Merges the last parts where a job that runs every few minutes left many small ones."""
        count = total = 0
        while count < len(parts) and total + parts[-1 - count][1] <= _PART_ROWS:
            total += parts[-1 - count][1]
            count += 1
        if count >= _SMALL_PARTS:
            tables = [pq.read_table(self._path(name)) for name, _ in parts[-count:]]
            merged = pa.concat_tables(tables).unify_dictionaries()
            parts[-count:] = [(self._write_part(kind, merged), len(merged))]

    def _path(self, name: str) -> Path:
        return Path(self._directory or "") / name
