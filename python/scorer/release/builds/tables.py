"""Reading tables that users send, CSV or Parquet, within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scorer.errors import BundleError

MAX_ROWS = 500_000
"""Largest number of rows that are read from a table. Further rows are ignored."""
MAX_COLUMNS = 5_000
_BATCH = 65_536
_BLOCK = 1 << 20


def read_table(path: Path) -> Any:
    """Return the first rows of a table, with dictionaries decoded.

    Raises:
        BundleError: The file is not such a table, has no rows, or too many columns.
    """
    import pyarrow

    what = "Parquet" if path.suffix == ".parquet" else "CSV with a header line"
    try:
        table = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except pyarrow.ArrowMemoryError:
        raise MemoryError from None
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise BundleError(
            f'table "{path.name}" cannot be read as {what}: {first[:200]}; save it again'
        ) from None
    if not table.num_rows:
        raise BundleError(f'table "{path.name}" has no rows; send rows that the model was trained on')
    return _plain(table)


def _parquet(path: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        _check_columns(path, len(file.schema_arrow.names))
        batches, count = [], 0
        # Read in batches, because the size that a file states may be wrong.
        for batch in file.iter_batches(batch_size=_BATCH, use_threads=False):
            batches.append(batch.slice(0, MAX_ROWS - count))
            count += len(batches[-1])
            if count >= MAX_ROWS:
                break
        return pyarrow.Table.from_batches(batches, schema=file.schema_arrow)


def _csv(path: Path) -> Any:
    import pyarrow
    from pyarrow import csv

    options = csv.ReadOptions(use_threads=False, block_size=_BLOCK)
    with csv.open_csv(path, read_options=options) as reader:
        _check_columns(path, len(reader.schema.names))
        batches, count = [], 0
        for batch in reader:
            batches.append(batch.slice(0, MAX_ROWS - count))
            count += len(batches[-1])
            if count >= MAX_ROWS:
                break
        return pyarrow.Table.from_batches(batches, schema=reader.schema)


def _check_columns(path: Path, count: int) -> None:
    if count > MAX_COLUMNS:
        raise BundleError(
            f'table "{path.name}" has {count:,} columns, more than {MAX_COLUMNS:,}; '
            "send the columns of the model only"
        )


def _plain(table: Any) -> Any:
    import pyarrow
    import pyarrow.types as kinds

    for at, field in enumerate(table.schema):
        if kinds.is_dictionary(field.type):
            decoded = table.column(at).cast(field.type.value_type)
            table = table.set_column(at, pyarrow.field(field.name, field.type.value_type), decoded)
    return table
