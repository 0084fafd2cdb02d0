"""Tables of events and decisions as relations of DuckDB, in a database with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.bounded_duckdb import bounded_duckdb
from scorer.errors import ScorerError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Table = Sequence[str] | Any
"""Names or patterns of Parquet, CSV or JSONL files, or a `pyarrow.Table`."""

_READERS = {
    ".parquet": "read_parquet",
    ".csv": "read_csv",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
}
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"})


class FeatureTableError(ScorerError):
    """Events or decisions that cannot be used, or a table that cannot be written."""


@contextmanager
def database(memory_mb: int, directory: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that spills to a temporary directory.

    Args:
        memory_mb: Largest memory, MB.
        directory: Parent of the temporary directory; None for that of the system.
    """
    import duckdb

    with bounded_duckdb(memory_mb << 20, directory=directory, tables_on_disk=True) as connection:
        try:
            yield connection
        except duckdb.OutOfMemoryException as error:
            raise FeatureTableError(f"{memory_mb} MB of memory do not suffice: {_line(error)}") from error
        except duckdb.Error as error:
            raise FeatureTableError(f"the tables cannot be processed: {_line(error)}") from error


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def floor_divide(value: str, divisor: int) -> str:
    """Return the expression of an integer division that rounds down, also below 0."""
    return f"(({value} - ((({value}) % {divisor} + {divisor}) % {divisor})) // {divisor})"


class TableSource:
    """A table of events or decisions in a database, with the types of its columns."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, what: str, table: Table) -> None:
        """Open a table.

        Args:
            connection: The database.
            what: Name of the table in messages, such as `events "payment"`.
            table: Files, or a table in memory.

        Raises:
            FeatureTableError: A file cannot be read.
        """
        import duckdb

        self.what = what
        self.relation = _relation(connection, what, table)
        try:
            described = connection.sql(f"select * from {self.relation} limit 0")
        except duckdb.Error as error:
            raise FeatureTableError(f"{what}: the files cannot be read: {_line(error)}") from error
        self.types = dict(zip(described.columns, map(str, described.types), strict=True))

    def time(self, *names: str) -> str | None:
        """Return the expression of a time in microseconds since 1970; None if no column has one of the names.

        Raises:
            FeatureTableError: The column is neither a time nor a whole number of microseconds.
        """
        name = next((name for name in names if name in self.types), None)
        if name is None:
            return None
        kind = self.types[name]
        if kind in _INTEGERS:
            return f"cast({quoted(name)} as bigint)"
        if kind == "DATE":
            return f"epoch_us(cast({quoted(name)} as timestamp))"
        if kind.startswith("TIMESTAMP"):
            return f"epoch_us({quoted(name)})"
        raise FeatureTableError(
            f'{self.what}: column "{name}" has type {kind}; give a timestamp, or microseconds since 1970'
        )

    def needed_time(self, *names: str) -> str:
        """Return the expression of a time. Raises FeatureTableError if there is no such column."""
        found = self.time(*names)
        if found is None:
            shown = ", ".join(self.types)
            raise FeatureTableError(f'{self.what}: column "{names[0]}" is missing; the columns are {shown}')
        return found


def _relation(connection: duckdb.DuckDBPyConnection, what: str, table: Table) -> str:
    if not _is_files(table):
        name = f"given {what}"
        connection.register(name, table)
        return quoted(name)
    endings = {Path(name).suffix for name in table}
    reader = _READERS.get(endings.pop()) if len(endings) == 1 else None
    if reader is None:
        raise FeatureTableError(f"{what}: give files of one kind: .parquet, .csv, .jsonl or .ndjson")
    options = ", union_by_name = true" if reader != "read_json" else ", format = 'newline_delimited'"
    return f"{reader}([{', '.join(literal(name) for name in table)}]{options})"


def _is_files(table: Table) -> bool:
    return isinstance(table, list | tuple) and all(isinstance(name, str) for name in table)


def arrow(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    """Return the result of a query."""
    return connection.sql(query).to_arrow_table()
