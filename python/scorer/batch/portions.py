"""Portions of an input: whole files or some of their row groups, which separate processes can read.

A portion is pickled and sent to the process that reads it. It contains what the reader must know of the file,
with the file's size and time of change, so that a file that has changed meanwhile is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from scorer.errors import BatchError

_CSV_BLOCK = 1 << 20
_PAGE_BUFFER = 1 << 20


class Portion(Protocol):
    """Consecutive rows of one file."""

    @property
    def name(self) -> str:
        """Name of the file, for messages."""

    @property
    def first_row(self) -> int:
        """Position of the first row in the file."""

    @property
    def rows(self) -> int | None:
        """Number of rows; None if it is known only at the end."""

    def cut(self, most: int) -> Iterator[Portion]:
        """Yield the portion in pieces of at most `most` rows, as far as the file can be cut."""

    def batches(self, skip: int, most: int, *, parallel: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` of the portion on.

        Args:
            skip: Rows that are not needed. The reader avoids to decode them where the format allows it.
            most: Greatest number of rows of a batch.
            parallel: Whether Arrow may decode columns on several threads.

        Raises:
            BatchError: The file cannot be read, or has changed.
        """


@dataclass(frozen=True)
class FileStamp:
    """A file and what tells its present content from a later one.

    Attributes:
        path: Absolute path.
        bytes: Size.
        modified_ns: Time of the last change, in nanoseconds.
    """

    path: str
    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, file: Path) -> FileStamp:
        """Return the stamp of a file as it is now."""
        about = file.stat()
        return cls(str(file.resolve()), about.st_size, about.st_mtime_ns)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Check that the file is unchanged before and after it is read.

        Raises:
            BatchError: The file cannot be read, or has changed.
        """
        self._check()
        with reading(self.path):
            yield
        self._check()

    def _check(self) -> None:
        with reading(self.path):
            if FileStamp.of(Path(self.path)) == self:
                return
        raise BatchError(
            f'input "{self.path}": the file has changed since the run was planned; start the run again'
        )


@dataclass(frozen=True, kw_only=True)
class RowGroups:
    """Consecutive row groups of a file, the common part of the portions of Parquet files and Delta tables.

    Attributes:
        columns: Names of the columns that are read.
        groups: Numbers of rows of the row groups.
        first_group: Position of the first row group in the file.
        first_row: Position of the first row in the file.
    """

    columns: tuple[str, ...]
    groups: tuple[int, ...]
    first_group: int = 0
    first_row: int = 0

    @property
    def rows(self) -> int:
        """Number of rows of the portion."""
        return sum(self.groups)

    def cut(self, most: int) -> Iterator[Self]:
        """Yield pieces of at most `most` rows, or of one row group that has more; see `Portion`."""
        start, count, row = 0, 0, self.first_row
        for at, rows in enumerate(self.groups):
            if at > start and count + rows > most:
                yield self._piece(start, at, row)
                start, count, row = at, 0, row + count
            count += rows
        yield self._piece(start, len(self.groups), row)

    def _piece(self, start: int, end: int, row: int) -> Self:
        return replace(
            self, groups=self.groups[start:end], first_group=self.first_group + start, first_row=row
        )

    def _from(self, skip: int) -> tuple[list[int], int]:
        """Return the positions of the row groups from a row on, and the rows to skip in the first of them."""
        first = 0
        while first < len(self.groups) and skip >= self.groups[first]:
            skip -= self.groups[first]
            first += 1
        return list(range(self.first_group + first, self.first_group + len(self.groups))), skip


@dataclass(frozen=True, kw_only=True)
class ParquetPortion(RowGroups):
    """Row groups of a Parquet file, read page by page.

    Attributes:
        stamp: The file.
        dictionaries: Columns that are read as dictionaries.
    """

    stamp: FileStamp
    dictionaries: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return self.stamp.path

    def batches(self, skip: int, most: int, *, parallel: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on; see `Portion`."""
        groups, skip = self._from(skip)
        if not groups:
            return
        with self.stamp.reading(), open_parquet(Path(self.stamp.path), self.dictionaries) as opened:
            parts = opened.iter_batches(
                batch_size=most, row_groups=groups, columns=list(self.columns), use_threads=parallel
            )
            yield from dropping(parts, skip)


@dataclass(frozen=True, kw_only=True)
class DeltaPortion(RowGroups):
    """Row groups of a file of a Delta table.

    Attributes:
        table: Path of the table.
        schema: Schema of the table.
        fragment: The file as `pyarrow.dataset.ParquetFileFragment`, with the values of its partition.
    """

    table: str
    schema: pa.Schema
    fragment: Any

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return f"{self.table}/{self.fragment.path}"

    def batches(self, skip: int, most: int, *, parallel: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on; see `Portion`."""
        groups, skip = self._from(skip)
        if not groups:
            return
        with reading(self.name):
            parts = self.fragment.subset(row_group_ids=groups).to_batches(
                schema=self.schema,
                columns=list(self.columns),
                batch_size=most,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=parallel,
            )
            yield from dropping(parts, skip)


@dataclass(frozen=True)
class CsvPortion:
    """A CSV file with a header. An empty field is a missing value.

    Attributes:
        stamp: The file.
        columns: Names of the columns that are read; empty for all.
        types: Types of the columns whose type is known.
    """

    stamp: FileStamp
    columns: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    first_row = 0
    rows = None

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return self.stamp.path

    def cut(self, most: int) -> Iterator[Self]:
        """Yield the file as a whole, because rows of CSV are found only by reading."""
        del most
        yield self

    def batches(self, skip: int, most: int, *, parallel: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on; see `Portion`."""
        with self.stamp.reading(), self.opened(parallel=parallel) as reader:
            for batch in dropping(reader, skip):
                for start in range(0, batch.num_rows, most):
                    yield batch.slice(start, most)

    @contextmanager
    def opened(self, *, parallel: bool = True) -> Iterator[pacsv.CSVStreamingReader]:
        """Open the file and read its first block.

        Args:
            parallel: Whether Arrow may use several threads.

        Raises:
            BatchError: The file cannot be read.
        """
        with reading(self.stamp.path):
            reader = pacsv.open_csv(
                self.stamp.path,
                read_options=pacsv.ReadOptions(block_size=_CSV_BLOCK, use_threads=parallel),
                # Only an empty field is missing: "NA" is a category in some columns.
                convert_options=pacsv.ConvertOptions(
                    column_types=self.types,
                    include_columns=self.columns,
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        with reader:
            yield reader


@contextmanager
def open_parquet(file: Path, dictionaries: tuple[str, ...]) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file.

    Args:
        file: The file.
        dictionaries: Columns that are read as dictionaries.

    Raises:
        BatchError: The file cannot be read.
    """
    with reading(file):
        # Pages are read as they are needed. Reading ahead would hold a whole row group in memory.
        opened = pq.ParquetFile(
            file, pre_buffer=False, buffer_size=_PAGE_BUFFER, read_dictionary=list(dictionaries)
        )
    with opened:
        yield opened


@contextmanager
def reading(what: Path | str) -> Iterator[None]:
    """Turn errors of Arrow and of the file system into one line that names the input.

    Args:
        what: Name of the input.

    Raises:
        BatchError: The input cannot be read.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise unreadable(what, error) from error


def unreadable(what: Path | str, error: Exception) -> BatchError:
    """Return the error of an input that cannot be read, in one line."""
    return BatchError(f'input "{what}": it cannot be read: {one_line(error)}; correct or replace it')


def one_line(error: Exception) -> str:
    """Return an error's text without line ends, at most 300 characters."""
    return " ".join(str(error).split()).rstrip(".;")[:300]


def dropping(batches: Iterator[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches without the first `skip`."""
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield batch.slice(skip) if skip else batch
        skip = 0


def group_rows(metadata: pq.FileMetaData) -> tuple[int, ...]:
    """Return the number of rows of each row group."""
    return tuple(metadata.row_group(at).num_rows for at in range(metadata.num_row_groups))
