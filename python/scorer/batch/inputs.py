"""Inputs of a batch run: files, a Delta table or a SQL query as a sequence of record batches.

An input is read in one fixed order. `identity` holds what must be unchanged for a run to be continued.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from scorer.batch.encoding import ColumnEncoder
from scorer.batch.scoring import BatchColumns
from scorer.errors import BatchError

_PARQUET = frozenset({".parquet", ".pq"})
_CSV_BLOCK = 1 << 20
_PAGE_BUFFER = 1 << 20


class ColumnReader(Protocol):
    """What is read from an input; `BatchScorer` is one."""

    @property
    def columns(self) -> BatchColumns:
        """The columns that have a role beside the features."""

    @property
    def encoder(self) -> ColumnEncoder:
        """The encoder of the features."""

    @property
    def inputs(self) -> list[str]:
        """Names of the columns that are read."""

    def check(self, schema: pa.Schema, where: str) -> None:
        """Check that a table has every column that is read, of a usable type.

        Args:
            schema: The table's schema.
            where: Name of the table in messages.

        Raises:
            BatchError: A column is missing, occurs twice or has a type that cannot be used.
        """


class BatchInput(Protocol):
    """Rows in a fixed order, read as record batches."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that the input has."""

    @property
    def rows(self) -> int | None:
        """Number of rows; None if it is known only at the end."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON values that differ if the input is another one."""

    @property
    def has_stable_rows(self) -> bool:
        """Whether an equal identity means equal rows in the same order."""

    def batches(self, skip: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on, at most `most` at a time.

        Raises:
            BatchError: The input cannot be read.
        """


@dataclass(frozen=True)
class SourceOptions:
    """What is read.

    Attributes:
        paths: Parquet or CSV files, or one directory of such files or with a Delta table.
        sql: A query for DuckDB, instead of paths.
        delta_version: Version of the Delta table; None for the newest.
        memory: Memory in bytes for DuckDB.
    """

    paths: tuple[Path, ...] = ()
    sql: str | None = None
    delta_version: int | None = None
    memory: int = 1 << 28


def open_input(source: SourceOptions, scorer: ColumnReader) -> BatchInput:
    """Open an input and check that it has the columns that the scorer reads.

    Args:
        source: What is read.
        scorer: The scorer of its rows, or another reader of columns.

    Raises:
        BatchError: The input cannot be read, or a column is missing or of a wrong type.
    """
    if (source.sql is None) == (not source.paths):
        raise BatchError("input: give either paths or a query with --sql")
    if source.sql is not None:
        return SqlInput(source.sql, scorer, source.memory)
    first = source.paths[0]
    if first.is_dir() and (first / "_delta_log").is_dir():
        if len(source.paths) > 1:
            raise BatchError(f'input "{first}": a Delta table is read alone; remove the other paths')
        return DeltaInput(first, scorer, source.delta_version)
    if source.delta_version is not None:
        raise BatchError(f'input "{first}": this is no Delta table; remove --delta-version')
    files = [file for path in source.paths for file in _files(path)]
    endings = {"parquet" if file.suffix in _PARQUET else "csv" for file in files}
    if len(endings) > 1:
        raise BatchError(f'input "{first}": Parquet and CSV files are mixed; score them in separate runs')
    return ParquetInput(files, scorer) if endings == {"parquet"} else CsvInput(files, scorer)


class ParquetInput:
    """Parquet files, one after the other. Rows before the first one that is needed are not read."""

    has_stable_rows = True

    def __init__(self, files: Sequence[Path], scorer: ColumnReader) -> None:
        self._files = files
        self._columns = scorer.inputs
        # Categories are encoded once per distinct text, so their columns are read as dictionaries.
        self._dictionaries = [
            feature.name
            for feature in scorer.encoder.features
            if feature.type == "category" and feature.name not in scorer.columns.keep
        ]
        self._counts: list[int] = []
        schemas = []
        for file in files:
            with self._open(file) as opened:
                scorer.check(opened.schema_arrow, f'"{file}"')
                schemas.append(opened.schema_arrow)
                self._counts.append(opened.metadata.num_rows)
        self.schema = schemas[0]
        self.rows = sum(self._counts)
        self.identity = {"files": [_stamp(file) for file in files]}
        for file, schema in zip(files, schemas, strict=True):
            for name in scorer.columns.keep:
                kind, first = schema.field(name).type, self.schema.field(name).type
                if kind != first:
                    raise BatchError(
                        f'column "{name}": it has type {kind} in "{file}" and {first} in "{files[0]}"; '
                        "give the files one type, for example with --sql and CAST"
                    )

    def batches(self, skip: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on; see `BatchInput`."""
        for file, count in zip(self._files, self._counts, strict=True):
            if skip >= count:
                skip -= count
                continue
            with self._open(file) as opened, _reading(file):
                groups, skip = _groups_from(opened.metadata, skip)
                parts = opened.iter_batches(batch_size=most, row_groups=groups, columns=self._columns)
                yield from dropping(parts, skip)
            skip = 0

    @contextmanager
    def _open(self, file: Path) -> Iterator[pq.ParquetFile]:
        with _reading(file):
            # Pages are read as they are needed. Reading ahead would hold a whole row group in memory.
            opened = pq.ParquetFile(
                file, pre_buffer=False, buffer_size=_PAGE_BUFFER, read_dictionary=self._dictionaries
            )
        with opened:
            yield opened


class CsvInput:
    """CSV files with a header, one after the other. An empty field is a missing value."""

    has_stable_rows = True
    rows = None

    def __init__(self, files: Sequence[Path], scorer: ColumnReader) -> None:
        self._files = files
        self._columns = scorer.inputs
        kinds = {"number": pa.float64(), "flag": pa.bool_(), "category": pa.string()}
        self._types = {feature.name: kinds[feature.type] for feature in scorer.encoder.features}
        if scorer.columns.id is not None:
            self._types.setdefault(scorer.columns.id, pa.string())
        for file in files:
            with self._open(file, None) as reader:
                scorer.check(reader.schema, f'"{file}"')
                schema = reader.schema
            if file is files[0]:
                self.schema = schema
                # The types of kept columns are those of the first block of the first file.
                self._types.update({name: schema.field(name).type for name in scorer.columns.keep})
        self.identity = {"files": [_stamp(file) for file in files]}

    def batches(self, skip: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on; see `BatchInput`."""
        for file in self._files:
            with self._open(file, self._columns) as reader, _reading(file):
                for batch in reader:
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield from _sliced(batch.slice(skip), most)
                    skip = 0

    @contextmanager
    def _open(self, file: Path, columns: Sequence[str] | None) -> Iterator[pacsv.CSVStreamingReader]:
        with _reading(file):
            reader = pacsv.open_csv(
                file,
                read_options=pacsv.ReadOptions(block_size=_CSV_BLOCK),
                # Only an empty field is missing: "NA" is a category in some columns.
                convert_options=pacsv.ConvertOptions(
                    column_types=self._types,
                    include_columns=columns,
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        with reader:
            yield reader


class DeltaInput:
    """A Delta table in one of its versions."""

    has_stable_rows = True

    def __init__(self, path: Path, scorer: ColumnReader, version: int | None) -> None:
        try:
            import deltalake
        except ModuleNotFoundError:
            raise BatchError(
                f'input "{path}": reading a Delta table needs the package "deltalake"; '
                "install it (pip install deltalake)"
            ) from None
        try:
            table = deltalake.DeltaTable(path, version=version)
            self._dataset = table.to_pyarrow_dataset()
        except Exception as error:  # deltalake's errors have no common base
            raise _unreadable(path, error) from error
        self._path = path
        self._columns = scorer.inputs
        self.schema = self._dataset.schema
        scorer.check(self.schema, f'"{path}"')
        self.rows = self._dataset.count_rows()
        self.identity = {"delta": str(path.resolve()), "version": table.version()}

    def batches(self, skip: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on; see `BatchInput`."""
        with _reading(self._path):
            parts = self._dataset.to_batches(
                columns=self._columns, batch_size=most, batch_readahead=1, fragment_readahead=1
            )
            yield from dropping(parts, skip)


class SqlInput:
    """The result of a query, which DuckDB computes on one thread so that the order of rows is repeatable."""

    has_stable_rows = False
    rows = None

    def __init__(self, query: str, scorer: ColumnReader, memory: int) -> None:
        self._query = query
        self._columns = scorer.inputs
        self._memory = memory
        with self._opened() as relation:
            self.schema = relation.limit(0).to_arrow_table().schema
        scorer.check(self.schema, "the query")
        self.identity = {"sql": query}

    def batches(self, skip: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on; see `BatchInput`."""
        with self._opened() as relation, _reading("--sql"):
            reader = relation.to_arrow_reader(most)
            yield from dropping((batch.select(self._columns) for batch in reader), skip)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield the query as a relation of DuckDB, which is computed as its rows are read."""
        import duckdb

        limits: dict[str, Any] = {"threads": 1, "memory_limit": f"{self._memory >> 20}MiB"}
        try:
            with (
                tempfile.TemporaryDirectory(prefix="scorer-sql-") as spill,
                duckdb.connect(config={**limits, "temp_directory": spill}) as opened,
            ):
                statements = opened.extract_statements(self._query)
                if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                    raise BatchError("--sql: exactly one SELECT is needed; remove other statements")
                yield opened.sql(self._query)
        except duckdb.Error as error:
            raise BatchError(f"--sql: {_one_line(error)}; correct the query") from error


def dropping(batches: Iterator[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches without the first `skip`."""
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield batch.slice(skip) if skip else batch
        skip = 0


def _sliced(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, most):
        yield batch.slice(start, most)


def _groups_from(metadata: pq.FileMetaData, skip: int) -> tuple[list[int], int]:
    """Return the row groups from a row on, and the rows to skip in the first of them."""
    first = 0
    while skip >= metadata.row_group(first).num_rows:
        skip -= metadata.row_group(first).num_rows
        first += 1
    return list(range(first, metadata.num_row_groups)), skip


def _files(path: Path) -> list[Path]:
    """Return the files of a path, in order. Names that start with "_" or "." are skipped, as engines do."""
    if path.is_file():
        if path.suffix in _PARQUET or path.suffix == ".csv":
            return [path]
        raise BatchError(f'input "{path}": the ending must be .parquet, .pq or .csv; rename the file')
    if not path.is_dir():
        raise BatchError(f'input "{path}": there is no such file or directory; correct the path')
    found = [
        file
        for file in sorted(path.rglob("*"))
        if (file.suffix in _PARQUET or file.suffix == ".csv")
        and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)
    ]
    if not found:
        raise BatchError(f'input "{path}": the directory has no Parquet or CSV files; correct the path')
    return found


def _stamp(file: Path) -> dict[str, Any]:
    about = file.stat()
    return {"path": str(file.resolve()), "bytes": about.st_size, "modified_ns": about.st_mtime_ns}


@contextmanager
def _reading(what: Path | str) -> Iterator[None]:
    """Turn errors of Arrow and of the file system into one line that names the input."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(what, error) from error


def _unreadable(what: Path | str, error: Exception) -> BatchError:
    return BatchError(f'input "{what}": it cannot be read: {_one_line(error)}; correct or replace it')


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".;")[:300]
