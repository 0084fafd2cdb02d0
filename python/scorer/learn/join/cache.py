"""The columns of a join, stored per log, so that the next join reads only the records that were added since.

A store is a directory of Parquet files, each a run of rows in the order of the log, and `cursor.json`, which
names them and the end of the last pass. Files are written first and the cursor is replaced last, so that a
killed run leaves the earlier state. Without a directory, full parts are in a temporary one.

While a log is read, fewer than `PART_ROWS` rows of each kind are in memory, apart from one batch of the
source.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scorer.durable import write_atomically
from scorer.learn.join.columns import SCHEMAS, name_actions
from scorer.log.reading import LogFinding
from scorer.log.source.interface import LogPass, ReadPosition
from scorer.stats.arrays import Bools, Ints

CURSOR: Final = "cursor.json"
PART_ROWS: Final = 65_536
"""Rows of a part: what is in memory at a time of the columns that stay on disk."""
LOST_DAYS: Final = 90
"""Days for which rows are kept that the log no longer has because it was replaced or set back."""

_FORMAT = 7
_SMALL_PARTS = 16
"""Small parts that are merged into one."""
_DAY_US = 86_400_000_000
_IDENTITY = {
    "decisions": ("decision_id", "decided_at_us"),
    "outcomes": ("decision_id", "received_at_us"),
    "deliveries": ("decision_id", "decided_at_us"),
    "notes": ("name", "example"),
}
"""Columns that, with the sequence, are equal only in the same record."""

Part = tuple[str, int]
"""Name of a file and its number of rows."""


def _no_parts() -> dict[str, list[Part]]:
    return {kind: [] for kind in SCHEMAS}


def _new_epoch() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Stored:
    """What a store holds, for readers that continue from one of its earlier states.

    Attributes:
        epoch: A value that changes when the rows do not continue those before, but are read again.
        next_sequence: Sequence of the first record that is not stored.
        first_sequence: Lowest sequence that the log still has.
        withdrawn: Sequences of rows that later records withdrew.
        lost: Names of the files with rows that the log no longer has.
    """

    epoch: str
    next_sequence: int
    first_sequence: int
    withdrawn: tuple[int, ...]
    lost: tuple[str, ...]


@dataclass
class Cursor:
    """The state of a store.

    Attributes:
        about: What the columns are of. A store of anything else is not used.
        position: End of the last pass; None: nothing was read.
        erasures: The log's erasures when the rows were read.
        first_sequence: Lowest sequence that the log had at the end of the last pass.
        since_us: Time from which on all rows are stored.
        parts: Files by kind, in the order of the log.
        lost: Files by kind with rows that earlier passes read and that the log no longer has.
        lost_until_us: Time until which the rows of `lost` are kept; 0: no row has had a time yet.
        damage: Faults of finished segments, which are not read again.
        withdrawn: Sequences of rows that later records withdrew.
        files: Number of files that were ever written, for the names of new ones.
        epoch: See `Stored`.
    """

    about: Mapping[str, Any]
    position: ReadPosition | None = None
    erasures: str = ""
    first_sequence: int = 0
    since_us: int = 0
    parts: dict[str, list[Part]] = field(default_factory=_no_parts)
    lost: dict[str, list[Part]] = field(default_factory=_no_parts)
    lost_until_us: int = 0
    damage: list[dict[str, Any]] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)
    files: int = 0
    epoch: str = field(default_factory=_new_epoch)


class LogColumns:
    """The columns of one checkpoint in the log of one server.

    Use it as a context manager, which removes the temporary directory.

    Args:
        directory: Directory of the store; None: nothing is kept after the join.
        about: What the columns are of, as JSON.
    """

    def __init__(self, directory: Path | None, about: Mapping[str, Any]) -> None:
        self._directory = directory
        self._temporary: TemporaryDirectory[str] | None = None
        self._about = {"format": _FORMAT, **about}
        self._before: Cursor | None = None
        self._cursor = self._load()
        self._new: dict[str, list[pa.Table]] = {kind: [] for kind in SCHEMAS}
        self._waiting: dict[str, int] = dict.fromkeys(SCHEMAS, 0)

    def __enter__(self) -> LogColumns:
        return self

    def __exit__(self, *_: object) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def log(self) -> str:
        """Identity of the log; empty if it was never read."""
        return "" if self._cursor.position is None else self._cursor.position.log

    @property
    def next_sequence(self) -> int:
        """Sequence of the first record that is not stored; 0 if the log was never read."""
        return 0 if self._cursor.position is None else self._cursor.position.next

    @property
    def stored(self) -> Stored:
        """The state of the store, for readers that continue from it."""
        cursor = self._cursor
        lost = tuple(sorted(name for parts in cursor.lost.values() for name, _ in parts))
        epoch = "unread" if cursor.position is None else cursor.epoch
        return Stored(epoch, self.next_sequence, cursor.first_sequence, tuple(cursor.withdrawn), lost)

    def parts(self, kind: str) -> list[str]:
        """Return the names of the files with the rows of a kind."""
        return [name for name, _ in (*self._cursor.lost[kind], *self._cursor.parts[kind])]

    def count(self, kind: str) -> int:
        """Return the number of rows in the files of a kind."""
        return sum(rows for _, rows in (*self._cursor.lost[kind], *self._cursor.parts[kind]))

    def raw(self, name: str, columns: Sequence[str], rows: Ints | None = None) -> pa.Table:
        """Return rows of one file, also those that the log does not have any more; see `part`."""
        table = self._read((name, 0), columns)
        return table if rows is None else table.take(pa.array(rows))

    def part(self, kind: str, name: str, columns: Sequence[str], rows: Ints | None = None) -> pa.Table:
        """Return rows of one file that the log still has, without those that were withdrawn.

        Args:
            kind: Kind of the rows.
            name: Name of the file.
            columns: The columns, with `sequence`.
            rows: Positions in the file; None: all.
        """
        table = self.raw(name, columns, rows)
        is_lost = any(name == one for one, _ in self._cursor.lost[kind])
        return table if is_lost else _still_there(table, self._cursor)

    @property
    def lost_rows(self) -> int:
        """Number of decisions and outcomes that only earlier passes have read."""
        return sum(rows for kind in ("decisions", "outcomes") for _, rows in self._cursor.lost[kind])

    def position(self, since_us: int, erasures: str) -> ReadPosition | None:
        """Return where the next pass continues; None: at the first record.

        Args:
            since_us: Time from which on rows are needed.
            erasures: The log's erasures now. Rows that were read under other ones are not used.
        """
        if self._cursor.since_us > since_us or self._cursor.erasures != erasures:
            self._cursor = self._empty()
            self._cursor.erasures = erasures
        return self._cursor.position

    def begin(self, read: LogPass) -> None:
        """Begin to store a pass. If it does not continue the last one, the rows so far are set aside.

        They are removed if rows may have been erased.
        """
        if read.erased:
            self._cursor = self._empty()
        elif not read.continued:
            self._before = self._cursor
            self._cursor = Cursor(self._about, erasures=self._before.erasures, files=self._before.files)

    def add(self, kind: str, table: pa.Table) -> None:
        """Store the next rows of a kind. Full parts go to disk at once."""
        if not len(table):
            return
        self._new[kind].append(table)
        self._waiting[kind] += len(table)
        if self._waiting[kind] >= PART_ROWS:
            self._write(kind)

    def withdraw(self, sequences: Sequence[int]) -> None:
        """Remove rows by their sequences. An earlier pass may have read them."""
        self._cursor.withdrawn += sequences

    def finish(self, read: LogPass) -> list[LogFinding]:
        """End a pass, and make its rows durable if the store has a directory.

        Returns:
            All faults of the log, found by this pass or by earlier ones.
        """
        cursor, segments = self._cursor, read.segments
        cursor.first_sequence = read.first_sequence
        earlier = [
            LogFinding(**{**one, "lost": one["lost"] and tuple(one["lost"])})
            for one in cursor.damage
            if one["segment"] in segments
        ]
        damage = list(dict.fromkeys([*earlier, *read.findings]))
        cursor.damage = [asdict(one) for one in damage if segments.get(one.segment)]
        cursor.position = read.position
        cursor.since_us = max(cursor.since_us, read.since_us)
        self._keep_lost(self._before or cursor)
        self._before = None
        self._save()
        return damage

    def abandon(self) -> None:
        """Forget the rows of a pass that failed. What earlier passes stored remains."""
        self._new, self._waiting = {kind: [] for kind in SCHEMAS}, dict.fromkeys(SCHEMAS, 0)
        self._cursor, self._before = self._load(), None

    def choose_actions(self) -> bool:
        """Return whether any decision names an action."""
        return bool(name_actions(self.table("decisions", ["sequence", "action", "action_count"])).any())

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of a kind that are stored."""
        names = list(columns or SCHEMAS[kind].names)
        empty = pa.schema([SCHEMAS[kind].field(name) for name in names]).empty_table()
        return pa.concat_tables([empty, *self._tables(kind, names)]).unify_dictionaries()

    def decisions(self) -> Iterator[pa.Table]:
        """Yield all columns of the decisions, part by part: the rows of `table`, in the same order."""
        return self._tables("decisions", SCHEMAS["decisions"].names)

    def _tables(self, kind: str, names: Sequence[str]) -> Iterator[pa.Table]:
        yield from (self._read(part, names) for part in self._cursor.lost[kind])
        yield from self._held(kind, names)

    def _held(self, kind: str, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows that the log still has."""
        cursor = self._cursor
        yield from (_still_there(self._read(part, names), cursor) for part in cursor.parts[kind])
        yield from (_still_there(table.select(names), cursor) for table in self._new[kind])

    def _keep_lost(self, before: Cursor) -> None:
        """Keep the rows of earlier passes that the log does not have now.

        Args:
            before: The state with the rows of earlier passes: the present one if this pass has continued it.
        """
        now = self._cursor
        again = before is not now
        if not any(before.lost.values()) and not (again and any(before.parts.values())):
            return
        if again and self.log == (before.position and before.position.log):
            # The log was set back. Its retention applies to its earlier rows as well.
            before.first_sequence = max(before.first_sequence, now.first_sequence)
        lost, newest, newest_now = _no_parts(), 0, 0
        for kind, schema in SCHEMAS.items():
            names = ["sequence", *_IDENTITY[kind]]
            empty = pa.schema([schema.field(name) for name in names]).empty_table()
            held = pa.concat_tables([empty, *self._held(kind, names)])
            tables = [(part, self._read(part, schema.names)) for part in before.lost[kind]]
            if again:
                parts = [(part, self._read(part, schema.names)) for part in before.parts[kind]]
                tables += [(part, _still_there(table, before)) for part, table in parts]
            newest_now = max(newest_now, _latest_us(kind, held))
            for part, table in tables:
                newest = max(newest, _latest_us(kind, table))
                rest = table.filter(pa.array(~_contained(table, held, _IDENTITY[kind])))
                if len(rest):
                    same = len(rest) == part[1]
                    lost[kind].append(part if same else (self._write_part(kind, rest), len(rest)))
        if again or not before.lost_until_us:
            # Notes have no time. They are kept as long as the rows that were read with them, or if there are
            # none, counted from the first rows with a time that the log has after the loss.
            newest = newest or newest_now
        until = newest + LOST_DAYS * _DAY_US if newest else 0
        now.lost, now.lost_until_us = lost, max(before.lost_until_us, until)

    def _empty(self) -> Cursor:
        """Return the state of an empty store. New files do not replace those of another state."""
        numbers = [0]
        if self._directory is not None:
            names = (path.name.split("-") for path in self._directory.glob("*.parquet"))
            numbers += [int(name[1]) for name in names if len(name) == 4 and name[1].isdecimal()]
        return Cursor(self._about, files=max(numbers))

    def _load(self) -> Cursor:
        if self._directory is None:
            return self._empty()
        try:
            text = json.loads((self._directory / CURSOR).read_bytes())
            cursor = Cursor(**text)
            cursor.position = None if text["position"] is None else ReadPosition(**text["position"])
            for parts in (cursor.parts, cursor.lost):
                parts.update({kind: [(name, rows) for name, rows in parts[kind]] for kind in SCHEMAS})
            whole = all(self._path(name).is_file() for name in _names(cursor))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
            return self._empty()
        return cursor if whole and cursor.about == self._about else self._empty()

    def _save(self) -> None:
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        cursor = self._cursor
        cursor.withdrawn = [at for at in cursor.withdrawn if at >= self._cursor.first_sequence]
        for kind, parts in cursor.parts.items():
            if self._waiting[kind]:
                self._write(kind)
            self._drop_gone(parts)
            self._merge_small(kind, parts)
        if any(cursor.lost.values()) and 0 < cursor.lost_until_us < self._newest_us():
            cursor.lost = _no_parts()
        write_atomically(self._directory / CURSOR, json.dumps(asdict(cursor)).encode() + b"\n")
        named = set(_names(cursor))
        for path in self._directory.glob("*.parquet"):
            if path.name not in named:
                path.unlink()

    def _newest_us(self) -> int:
        parts = self._cursor.parts["decisions"]
        if not parts:
            return 0
        return int(pc.max(self._read(parts[-1], ["decided_at_us"])["decided_at_us"]).as_py() or 0)

    def _write(self, kind: str) -> None:
        table = pa.concat_tables(self._new[kind]).unify_dictionaries()
        self._cursor.parts[kind].append((self._write_part(kind, table), len(table)))
        self._new[kind], self._waiting[kind] = [], 0

    def _write_part(self, kind: str, table: pa.Table) -> str:
        first, last = table["sequence"][0].as_py(), table["sequence"][-1].as_py()
        self._cursor.files += 1
        name = f"{kind}-{self._cursor.files:08d}-{first:020d}-{last:020d}.parquet"
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{name}.part")
        pq.write_table(table, part, compression="zstd")
        part.replace(path)
        return name

    def _read(self, part: Part, names: Sequence[str]) -> pa.Table:
        return pq.read_table(self._path(part[0]), columns=list(names), memory_map=True)

    def _drop_gone(self, parts: list[Part]) -> None:
        """Remove parts of which the log has no record any more."""
        last = [int(name.removesuffix(".parquet").rpartition("-")[2]) for name, _ in parts]
        parts[:] = [one for one, at in zip(parts, last, strict=True) if at >= self._cursor.first_sequence]

    def _merge_small(self, kind: str, parts: list[Part]) -> None:
        """Merge the last parts if a job that runs every few minutes has left many small ones."""
        count = total = 0
        while count < len(parts) and total + parts[-1 - count][1] <= PART_ROWS:
            total += parts[-1 - count][1]
            count += 1
        if count >= _SMALL_PARTS:
            tables = [self._read(part, SCHEMAS[kind].names) for part in parts[-count:]]
            merged = pa.concat_tables(tables).unify_dictionaries()
            parts[-count:] = [(self._write_part(kind, merged), len(merged))]

    def _path(self, name: str) -> Path:
        if self._directory is not None:
            return self._directory / name
        if self._temporary is None:
            self._temporary = TemporaryDirectory(prefix="scorer-join-")
        return Path(self._temporary.name) / name


def remove_earlier_layout(directory: Path) -> None:
    """Remove the files of versions that stored the columns of the first log in the directory itself."""
    if (directory / CURSOR).is_file():
        for path in (*directory.glob("*.parquet"), directory / CURSOR):
            path.unlink()
        for path in directory.glob("replica-*"):
            shutil.rmtree(path)


def _names(cursor: Cursor) -> Iterator[str]:
    for parts in (cursor.parts, cursor.lost):
        for files in parts.values():
            yield from (name for name, _ in files)


def _latest_us(kind: str, table: pa.Table) -> int:
    """Return the time of the newest row in microseconds since the Unix epoch; 0 if no row has one."""
    return 0 if kind == "notes" else int(pc.max(table[_IDENTITY[kind][1]]).as_py() or 0)


def _still_there(table: pa.Table, cursor: Cursor) -> pa.Table:
    """Return rows without those that were withdrawn or whose segment the log's retention has removed."""
    withdrawn = pa.array(cursor.withdrawn, pa.int64())
    if len(withdrawn):
        table = table.filter(pc.invert(pc.is_in(table["sequence"], value_set=withdrawn)))
    if not len(table) or table["sequence"][0].as_py() >= cursor.first_sequence:
        return table
    return table.filter(pc.greater_equal(table["sequence"], cursor.first_sequence))


def _contained(rows: pa.Table, others: pa.Table, identity: Sequence[str]) -> Bools:
    """Return which rows, ``[n]``, are also in another table, by sequence and identity."""
    found = np.zeros(len(rows), dtype=bool)
    if not len(others):
        return found
    at = pc.index_in(rows["sequence"], value_set=others["sequence"].combine_chunks())
    place = at.fill_null(-1).to_numpy()
    there = np.flatnonzero(place >= 0)
    same = np.ones(len(there), dtype=bool)
    for name in identity:
        own = rows[name].take(pa.array(there)).to_pylist()
        other = others[name].take(pa.array(place[there])).to_pylist()
        same &= np.array([one == two for one, two in zip(own, other, strict=True)], dtype=bool)
    found[there] = same
    return found
