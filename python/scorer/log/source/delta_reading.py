"""Reading rows of shipped tables in the order of their log, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scorer.bounded_duckdb import bounded_duckdb
from scorer.errors import LogError
from scorer.log.source.delta_tables import DataFile, ShippedTable, reading

if TYPE_CHECKING:
    import pyarrow.dataset as pa_dataset

_SCANNED_ROWS: Final = 16_384
FEW_ROWS: Final = 4_096
"""Rows up to which they are sorted in memory."""


def require_packages(url: str) -> None:
    """Check that the packages that read tables are installed.

    Raises:
        LogError: A package is missing.
    """
    try:
        import deltalake  # noqa: F401
        import duckdb  # noqa: F401
    except ImportError as error:
        raise LogError(
            f'table "{url}": reading it needs the package {error.name}; install "scorer[train,ship]"'
        ) from None


def hour_of(time_us: int) -> str:
    """Return the partition of a time in microseconds since the Unix epoch; empty for the epoch itself."""
    return "" if time_us <= 0 else f"{datetime.fromtimestamp(time_us // 1_000_000, UTC):%Y-%m-%dT%H}"


def sorted_rows(
    table: ShippedTable,
    files: Sequence[DataFile],
    columns: Sequence[str],
    wanted: Any,
    *,
    count: int,
    rows: int,
    memory_mb: int,
) -> Iterator[pa.Table]:
    """Yield rows of files in the order of their sequences.

    Args:
        table: The table.
        files: Its files.
        columns: The columns, with "sequence" among them.
        wanted: Expression of pyarrow that is true for the rows to return.
        count: Number of these rows, or a number that they do not exceed.
        rows: Largest number of rows of a batch.
        memory_mb: Memory for sorting, MB. More rows are sorted on disk.

    Raises:
        LogError: The files cannot be read.
    """
    if not files:
        return
    how = {
        "columns": list(columns),
        "filter": wanted,
        "batch_size": min(rows, _SCANNED_ROWS),
        "batch_readahead": 1,
        "fragment_readahead": 1,
    }
    if count <= min(FEW_ROWS, rows):
        with reading(table.url):
            found = table.dataset(files).to_table(**how).sort_by("sequence")
        for start in range(0, len(found), rows):
            yield found.slice(start, rows).combine_chunks()
        return
    with reading(table.url), bounded_duckdb(memory_mb << 20) as database:
        database.register("found", reader_of(table.dataset(files).scanner(**how)))
        reader = database.sql("select * from found order by sequence").to_arrow_reader(rows)
        for batch in reader:
            # A batch of DuckDB has a multiple of 2,048 rows.
            for start in range(0, len(batch), rows):
                yield pa.Table.from_batches([batch.slice(start, rows)])


def reader_of(scanner: pa_dataset.Scanner) -> pa.RecordBatchReader:
    """Return a reader of the rows of a scan.

    `Scanner.to_reader` holds the interpreter's lock while it starts the scan. The threads that open the files
    need the lock, so a file that cannot be opened could stop both for ever. `Scanner.to_batches` releases it.
    """
    return pa.RecordBatchReader.from_batches(scanner.projected_schema, scanner.to_batches())
