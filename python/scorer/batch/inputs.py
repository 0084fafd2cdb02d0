"""Inputs of a batch run: files, a Delta table or a SQL query as a sequence of record batches.

An input is read in one fixed order. `identity` holds what must be unchanged for a run to be continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from scorer.batch.encoding import ColumnEncoder
from scorer.batch.portions import (
    CsvPortion,
    DeltaPortion,
    FileStamp,
    ParquetPortion,
    Portion,
    dropping,
    group_rows,
    one_line,
    open_parquet,
    reading,
    unreadable,
)
from scorer.batch.scoring import BatchColumns
from scorer.bounded_duckdb import bounded_duckdb
from scorer.errors import BatchError

_PARQUET = frozenset({".parquet", ".pq"})


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

    def portions(self) -> Sequence[Portion]:
        """Return the input as portions that separate processes can read, in order.

        Raises:
            BatchError: Only one process can read the input.
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

    @classmethod
    def of_files(
        cls, inputs: str | PathLike[str] | Sequence[str | PathLike[str]], delta_version: int | None = None
    ) -> SourceOptions:
        """Return the options that read one path or several.

        Args:
            inputs: Files or a directory.
            delta_version: Version of the Delta table; None for the newest.
        """
        given = [inputs] if isinstance(inputs, str | PathLike) else inputs
        return cls(paths=tuple(Path(one) for one in given), delta_version=delta_version)


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


class _PortionedInput:
    """The common part of inputs that are a sequence of portions, one for each file."""

    has_stable_rows = True
    _portions: Sequence[Portion] = ()

    @property
    def rows(self) -> int | None:
        """Number of rows; None if it is known only at the end."""
        counts = [portion.rows for portion in self._portions]
        return None if None in counts else sum(count or 0 for count in counts)

    def portions(self) -> Sequence[Portion]:
        """Return the files, in order; see `BatchInput`."""
        return self._portions

    def batches(self, skip: int, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `skip` on; see `BatchInput`."""
        if self.rows is None:
            every = chain.from_iterable(portion.batches(0, most) for portion in self._portions)
            yield from dropping(every, skip)
            return
        for portion in self._portions:
            count = portion.rows or 0
            if skip < count:
                yield from portion.batches(skip, most)
            skip = max(0, skip - count)


class ParquetInput(_PortionedInput):
    """Parquet files, one after the other. Rows before the first one that is needed are not read."""

    def __init__(self, files: Sequence[Path], scorer: ColumnReader) -> None:
        # Categories are encoded once per distinct text, so their columns are read as dictionaries.
        dictionaries = tuple(
            feature.name
            for feature in scorer.encoder.features
            if feature.type == "category" and feature.name not in scorer.columns.keep
        )
        portions, schemas = [], []
        for file in files:
            with reading(file):
                stamp = FileStamp.of(file)
            with open_parquet(file, dictionaries) as opened:
                scorer.check(opened.schema_arrow, f'"{file}"')
                schemas.append(opened.schema_arrow)
                groups = group_rows(opened.metadata)
            portions.append(
                ParquetPortion(
                    stamp=stamp, columns=tuple(scorer.inputs), dictionaries=dictionaries, groups=groups
                )
            )
        self.schema = schemas[0]
        self._portions = portions
        self.identity = {"files": [asdict(portion.stamp) for portion in portions]}
        for file, schema in zip(files, schemas, strict=True):
            for name in scorer.columns.keep:
                kind, first = schema.field(name).type, self.schema.field(name).type
                if kind != first:
                    raise BatchError(
                        f'column "{name}": it has type {kind} in "{file}" and {first} in "{files[0]}"; '
                        "give the files one type, for example with --sql and CAST"
                    )


class CsvInput(_PortionedInput):
    """CSV files with a header, one after the other. An empty field is a missing value."""

    def __init__(self, files: Sequence[Path], scorer: ColumnReader) -> None:
        kinds = {"number": pa.float64(), "flag": pa.bool_(), "category": pa.string()}
        types = {feature.name: kinds[feature.type] for feature in scorer.encoder.features}
        if scorer.columns.id is not None:
            types.setdefault(scorer.columns.id, pa.string())
        stamps = []
        for file in files:
            with reading(file):
                stamps.append(FileStamp.of(file))
            with CsvPortion(stamps[-1], (), types).opened() as reader:
                scorer.check(reader.schema, f'"{file}"')
                schema = reader.schema
            if file is files[0]:
                self.schema = schema
                # The types of kept columns are those of the first block of the first file.
                types.update({name: schema.field(name).type for name in scorer.columns.keep})
        self._portions = [CsvPortion(stamp, tuple(scorer.inputs), types) for stamp in stamps]
        self.identity = {"files": [asdict(stamp) for stamp in stamps]}


class DeltaInput(_PortionedInput):
    """A Delta table in one of its versions."""

    def __init__(self, path: Path, scorer: ColumnReader, version: int | None) -> None:
        try:
            import deltalake
        except ModuleNotFoundError:
            raise BatchError(
                f'input "{path}": reading a Delta table needs the package "deltalake"; '
                "install it (pip install deltalake)"
            ) from None
        where = path.resolve()
        try:
            table = deltalake.DeltaTable(where, version=version)
            # Arrow's own file system: a process that reads a portion needs no deltalake.
            dataset = table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(str(where), LocalFileSystem()))
        except Exception as error:  # deltalake's errors have no common base
            raise unreadable(path, error) from error
        self.schema = dataset.schema
        scorer.check(self.schema, f'"{path}"')
        self._portions = []
        for fragment in dataset.get_fragments():
            with reading(f"{where}/{fragment.path}"):
                groups = group_rows(fragment.metadata)
            self._portions.append(
                DeltaPortion(
                    columns=tuple(scorer.inputs),
                    groups=groups,
                    table=str(where),
                    schema=self.schema,
                    fragment=fragment,
                )
            )
        self.identity = {"delta": str(where), "version": table.version()}


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
        with self._opened() as relation, reading("--sql"):
            reader = relation.to_arrow_reader(most)
            yield from dropping((batch.select(self._columns) for batch in reader), skip)

    def portions(self) -> Sequence[Portion]:
        """Refuse to be cut; see `BatchInput`."""
        raise BatchError("--sql: a query is computed by one process; give files to an engine, or no --engine")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield the query as a relation of DuckDB, which is computed as its rows are read."""
        import duckdb

        try:
            with bounded_duckdb(self._memory, threads=1) as opened:
                statements = opened.extract_statements(self._query)
                if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                    raise BatchError("--sql: exactly one SELECT is needed; remove other statements")
                yield opened.sql(self._query)
        except duckdb.Error as error:
            raise BatchError(f"--sql: {one_line(error)}; correct the query") from error


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
