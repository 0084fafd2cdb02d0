"""Rows of a file of outcomes: CSV, Parquet, or JSON objects line by line. A few of them are in memory."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from scorer.learn.errors import DataError

FIELDS: Final = ("decision_id", "kind", "value", "revision", "occurred_at", "decision_token")
"""Columns that an import reads. All but the first may be absent."""
FORMATS: Final = (".csv", ".parquet", ".jsonl", ".ndjson")
_LINE: Final = 65_536
"""Longest line of JSON in bytes."""
_BATCH: Final = 4_096

FileRow = tuple[int, Mapping[str, Any] | str]
"""Number of a row from 1, and its fields by name, or why it cannot be read."""


def file_rows(path: Path, columns: Mapping[str, str]) -> Iterator[FileRow]:
    """Yield the rows of a file in order.

    Args:
        path: The file; its suffix is its format, one of `FORMATS`.
        columns: Name of the file's column by field, where it differs from the field's name.

    Raises:
        DataError: The file cannot be read, has another format, or lacks a column.
    """
    names = {columns.get(field, field): field for field in FIELDS}
    readers = {".csv": _csv_rows, ".parquet": _parquet_rows}
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise DataError(f'"{path}" is none of the formats {", ".join(FORMATS)}; give one of them')
    try:
        yield from readers.get(suffix, _json_rows)(path, names)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f'"{path}" cannot be read: {error}; write it as UTF-8 in its format') from None


def file_digest(path: Path) -> str:
    """Return `sha256:<hex>` of a file.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise DataError(f'"{path}" cannot be read: {error.strerror or error}') from None


def _csv_rows(path: Path, names: Mapping[str, str]) -> Iterator[FileRow]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        _check_columns(path, header, names)
        fields = [names.get(name, "") for name in header]
        for number, cells in enumerate(reader, start=1):
            if len(cells) != len(header):
                yield number, f"{len(cells)} cells under {len(header)} headings"
            else:
                yield number, {name: cell for name, cell in zip(fields, cells, strict=True) if name}


def _parquet_rows(path: Path, names: Mapping[str, str]) -> Iterator[FileRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names, names)
            chosen = [name for name in file.schema_arrow.names if name in names]
            number = 0
            for batch in file.iter_batches(_BATCH, columns=chosen):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {names[name]: value for name, value in row.items()}
    except pa.ArrowException as error:
        raise DataError(f'"{path}" is not a Parquet file that can be read: {error}') from None


def _json_rows(path: Path, names: Mapping[str, str]) -> Iterator[FileRow]:
    number = 0
    with path.open("rb") as file:
        while line := file.readline(_LINE):
            number += 1
            if len(line) == _LINE and not line.endswith(b"\n"):
                while (more := file.readline(_LINE)) and not more.endswith(b"\n"):
                    pass
                yield number, f"the line has more than {_LINE} bytes"
                continue
            if not line.strip():
                number -= 1
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"is not JSON: {error}"
                continue
            if not isinstance(row, dict):
                yield number, "is not a JSON object"
            else:
                yield number, {names[name]: value for name, value in row.items() if name in names}


def _check_columns(path: Path, header: list[str], names: Mapping[str, str]) -> None:
    wanted = next(name for name, field in names.items() if field == "decision_id")
    if wanted not in header:
        raise DataError(
            f'"{path}" has no column "{wanted}"; it has {", ".join(header) or "none"}: name the column with '
            "--column decision_id=NAME"
        )
    twice = sorted({name for name in header if name in names and header.count(name) > 1})
    if twice:
        raise DataError(f'"{path}" has the column "{twice[0]}" twice; remove one of the two')
