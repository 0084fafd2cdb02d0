"""Rows of some decisions in stored columns: those of given hashes, or of one of several partitions.

The join decides about each decision id by the records of that id alone, apart from the catalogue of the
newest bundle. It can therefore be done for some ids, and all ids can be joined partition by partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.durable import write_atomically
from scorer.learn.join.cache import LogColumns
from scorer.learn.join.columns import SCHEMAS, name_actions
from scorer.learn.join.hashing import Hashes, id_hashes, is_among
from scorer.stats.arrays import Ints

KINDS: Final = ("decisions", "outcomes", "deliveries")
"""Kinds of rows that belong to a decision."""

_ENTRY_BYTES: Final = 24
_HOUR_US: Final = 3_600_000_000


class _Entries(NamedTuple):
    """The index of one part: arrays of the same length, in the order of the hashes.

    Attributes:
        hash: Hashes of the ids.
        sequence: Sequences of the records.
        row: Positions in the part.
        hour: Hours of decisions since the Unix epoch; 0 for other rows.
    """

    hash: Hashes
    sequence: Ints
    row: npt.NDArray[np.uint32]
    hour: npt.NDArray[np.uint32]


class IdIndex:
    """Where the rows of each decision are in the stored columns of one log.

    One file per part has its hashes in ascending order, with sequences and positions. Parts never change, so
    neither do the files. They are mapped into memory.

    Args:
        directory: Directory of the files.
        columns: The stored columns.
    """

    def __init__(self, directory: Path, columns: LogColumns) -> None:
        self._directory, self._columns = directory, columns
        self._gone: list[Path] = []

    def update(self) -> None:
        """Index the parts that are new. The index of parts that are gone remains until `forget`."""
        self._directory.mkdir(parents=True, exist_ok=True)
        names = [name for kind in KINDS for name in self._columns.parts(kind)]
        known = {self._path(name) for name in names}
        self._gone = [path for path in self._directory.glob("*.ids") if path not in known]
        for name in names:
            if not self._path(name).is_file():
                write_atomically(self._path(name), self._made(name))

    def forget(self) -> None:
        """Remove the files of parts that are gone, after what was derived from them is stored."""
        for path in self._gone:
            path.unlink(missing_ok=True)

    def between(self, first: int, last: int) -> Hashes:
        """Return the hashes of the rows from one sequence to another, also of parts that are gone."""
        found = [np.empty(0, np.uint64)]
        for path in self._paths():
            low, high = path.name.removesuffix(".parquet.ids").split("-")[-2:]
            if int(low) <= last and int(high) >= first:
                one = _entries(path)
                found.append(one.hash[(one.sequence >= first) & (one.sequence <= last)])
        return np.unique(np.concatenate(found))

    def of(self, sequences: Sequence[int]) -> Hashes:
        """Return the hashes of the rows with these sequences."""
        if not sequences:
            return np.empty(0, np.uint64)
        found, wanted = [np.empty(0, np.uint64)], np.array(sequences, np.int64)
        for path in self._paths():
            one = _entries(path)
            found.append(one.hash[np.isin(one.sequence, wanted)])
        return np.unique(np.concatenate(found))

    def gone_hours(self, hashes: Hashes) -> Ints:
        """Return the hours of decisions with some hashes in parts that are gone."""
        found = [np.empty(0, np.int64)]
        for path in self._gone:
            one = _entries(path)
            found.append(one.hour[is_among(one.hash, hashes)].astype(np.int64))
        return np.unique(np.concatenate(found))

    def hours(self, hashes: Hashes) -> Ints:
        """Return the hour of the decision with each hash, ``[n]``; 0 where this log has none.

        Args:
            hashes: In ascending order, each once.
        """
        found = np.zeros(len(hashes), np.int64)
        for name in self._columns.parts("decisions"):
            one = _entries(self._path(name))
            at, place = _matches(one.hash, hashes)
            found[place] = one.hour[at]
        return found

    def find(self, hashes: Hashes, groups: Ints | None = None) -> list[PickedLog]:
        """Return the rows with some hashes, by group.

        Args:
            hashes: In ascending order, each once.
            groups: The group of each hash, ``[n]``, from 0 on; None: all are one group.
        """
        count = 1 if groups is None else int(groups.max(initial=0)) + 1
        rows: list[dict[str, dict[str, Ints]]] = [{kind: {} for kind in KINDS} for _ in range(count)]
        for kind in KINDS:
            for name in self._columns.parts(kind):
                one = _entries(self._path(name))
                at, place = _matches(one.hash, hashes)
                if not len(at):
                    continue
                found = one.row[at].astype(np.int64)
                of = np.zeros(len(at), np.int64) if groups is None else groups[place]
                for group in np.unique(of).tolist():
                    rows[group][kind][name] = np.sort(found[of == group])
        return [PickedLog(self._columns, own) for own in rows]

    def _paths(self) -> list[Path]:
        present = [self._path(name) for kind in KINDS for name in self._columns.parts(kind)]
        return [*present, *self._gone]

    def _made(self, name: str) -> bytes:
        time = ("decided_at_us",) if name.startswith("decisions") else ()
        table = self._columns.raw(name, ("sequence", "decision_id", *time))
        hashes, hour = id_hashes(table["decision_id"]), np.zeros(len(table), np.int64)
        if time:
            hour = table["decided_at_us"].to_numpy() // _HOUR_US
        order = np.argsort(hashes, kind="stable")
        columns = (
            hashes[order],
            table["sequence"].to_numpy()[order],
            order.astype(np.uint32),
            hour[order].astype(np.uint32),
        )
        return b"".join(one.tobytes() for one in columns)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.ids"


class PickedLog:
    """Some rows of the stored columns of one log.

    Args:
        columns: The stored columns.
        rows: Positions by kind and file.
    """

    def __init__(self, columns: LogColumns, rows: Mapping[str, Mapping[str, Ints]]) -> None:
        self._columns, self._rows = columns, rows

    def choose_actions(self) -> bool:
        """Return whether any decision names an action."""
        return bool(name_actions(self.table("decisions", ["action", "action_count"])).any())

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a kind."""
        names = list(columns or SCHEMAS[kind].names)
        return _concatenated(kind, names, self._tables(kind, names))

    def decisions(self) -> Iterator[pa.Table]:
        """Yield all columns of the decisions: the rows of `table`, in the same order."""
        return self._tables("decisions", SCHEMAS["decisions"].names)

    def times_us(self) -> Ints:
        """Return the times of all decisions, ``[n]``, also of those that the log does not have any more."""
        found = [
            self._columns.raw(name, ("decided_at_us",), rows)["decided_at_us"].to_numpy()
            for name, rows in self._rows["decisions"].items()
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def _tables(self, kind: str, names: Sequence[str]) -> Iterator[pa.Table]:
        read = list(dict.fromkeys(["sequence", *names]))
        for name, rows in self._rows.get(kind, {}).items():
            yield self._columns.part(kind, name, read, rows).select(names)


class Partition:
    """The rows of one partition of one log, in files that `partitions` has written.

    Args:
        directory: Directory of the files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def choose_actions(self) -> bool:
        """Return whether any decision names an action."""
        return bool(name_actions(self.table("decisions", ["action", "action_count"])).any())

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a kind."""
        names = list(columns or SCHEMAS[kind].names)
        return _concatenated(kind, names, (one.select(names) for one in self._read(kind)))

    def decisions(self) -> Iterator[pa.Table]:
        """Yield all columns of the decisions: the rows of `table`, in the same order."""
        return self._read("decisions")

    def _read(self, kind: str) -> Iterator[pa.Table]:
        path = self._directory / kind
        if path.is_file():
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
                yield reader.read_all().unify_dictionaries()


def partitions(logs: Sequence[LogColumns], count: int, folder: Path) -> Iterator[list[Partition]]:
    """Yield the rows of all logs in partitions by the hash of the decision's id, by log in each.

    The rows are written to files first, so that one part of the columns is in memory, and then one partition.

    Args:
        logs: The stored columns.
        count: Number of partitions.
        folder: An empty directory for the files.
    """
    for place, columns in enumerate(logs):
        for kind in KINDS:
            with ExitStack() as stack:
                writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
                for name in columns.parts(kind):
                    table = columns.part(kind, name, SCHEMAS[kind].names)
                    to = id_hashes(table["decision_id"]) % np.uint64(count)
                    for number in np.unique(to).tolist():
                        if number not in writers:
                            path = folder / f"{number}-{place}" / kind
                            path.parent.mkdir(exist_ok=True)
                            sink = stack.enter_context(pa.OSFile(str(path), "wb"))
                            writers[number] = stack.enter_context(pa.ipc.new_stream(sink, SCHEMAS[kind]))
                        writers[number].write_table(table.take(pa.array(np.flatnonzero(to == number))))
    for number in range(count):
        yield [Partition(folder / f"{number}-{place}") for place in range(len(logs))]
        for place in range(len(logs)):
            for kind in KINDS:
                (folder / f"{number}-{place}" / kind).unlink(missing_ok=True)


def _concatenated(kind: str, names: Sequence[str], tables: Iterator[pa.Table]) -> pa.Table:
    empty = pa.schema([SCHEMAS[kind].field(name) for name in names]).empty_table()
    return pa.concat_tables([empty, *tables]).unify_dictionaries()


def _entries(path: Path) -> _Entries:
    count = path.stat().st_size // _ENTRY_BYTES
    data = np.memmap(path, np.uint8, mode="r") if count else np.empty(0, np.uint8)
    ends = np.cumsum([0, 8, 8, 4, 4]) * count
    hashes, sequence, row, hour = (data[begin:end] for begin, end in pairwise(ends.tolist()))
    return _Entries(
        hashes.view(np.uint64), sequence.view(np.int64), row.view(np.uint32), hour.view(np.uint32)
    )


def _matches(own: Hashes, wanted: Hashes) -> tuple[Ints, Ints]:
    """Return the positions in `own` of hashes that are wanted, and their positions in `wanted`.

    Args:
        own: In ascending order; a hash may be there several times.
        wanted: In ascending order, each once.
    """
    if not len(own) or not len(wanted):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # The shorter one is searched in the longer one.
    if len(own) <= len(wanted):
        place = np.minimum(np.searchsorted(wanted, own), len(wanted) - 1)
        at = np.flatnonzero(wanted[place] == own)
        return at, place[at]
    begin, end = (np.searchsorted(own, wanted, side=side) for side in ("left", "right"))
    counts = end - begin
    return np.repeat(begin, counts) + _counted(counts), np.repeat(np.arange(len(wanted)), counts)


def _counted(counts: Ints) -> Ints:
    """Return 0 to n - 1 for each n."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
