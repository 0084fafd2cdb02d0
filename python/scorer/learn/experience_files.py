"""Experience as one Parquet file: a column per field, its names and catalogue in the file's metadata.

Masks, pmfs and contexts are lists of a fixed length, so that DuckDB, pandas
and Polars read them too. What is read is checked, so that later steps may
trust shapes and codes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.experience import Experience, State, texts

if TYPE_CHECKING:
    import pyarrow as pa

METADATA = b"scorer.experience"
NOTES = b"scorer.notes"
VERSION = 1

_TEXT = ("decision_id", "entity")
_SCALARS: dict[str, Any] = {
    "time_ms": np.int64,
    "settled_ms": np.int64,
    "action": np.int64,
    "propensity": np.float64,
    "reward": np.float64,
    "state": np.int8,
    "bundle": np.int64,
    "lane": np.int64,
}
_LATER: dict[str, Any] = {"source": np.int8}
"""Columns that files of earlier versions do not have. They are then 0 in every row."""
_MATRICES: dict[str, Any] = {"context": np.float32, "eligible": np.bool_, "pmf": np.float32}
# Row groups of this size let readers that stream, and several at a time, share a file.
_GROUP_BYTES = 32 << 20
_ROW_BYTES = 160
"""Of the columns with one value, roughly."""


@dataclass(frozen=True)
class Header:
    """What the metadata of a file say.

    Attributes:
        context_columns: number of the context's columns.
        actions: the catalogue's ids.
        bundles: digests.
        lanes: names.
        withheld: names of context columns that are missing in every row because they are sensitive.
    """

    context_columns: int
    actions: tuple[str, ...]
    bundles: tuple[str, ...]
    lanes: tuple[str, ...]
    withheld: tuple[str, ...]


def write(experience: Experience, path: Path, notes: Mapping[str, Any] | None = None) -> None:
    """Writes a file, replacing what was there only once all of it is written.

    Args:
        experience: what to write.
        path: the file.
        notes: how it was made, as JSON for `read_notes`; the same notes give the same bytes.

    Raises:
        DataError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, pa.Array] = {
        name: pa.array(getattr(experience, name).tolist(), pa.string()) for name in _TEXT
    }
    scalars = {**_SCALARS, **_LATER}
    columns |= {name: pa.array(getattr(experience, name).astype(kind)) for name, kind in scalars.items()}
    columns |= {name: _lists(getattr(experience, name).astype(kind)) for name, kind in _MATRICES.items()}
    about = {
        "version": VERSION,
        "bundles": experience.bundles,
        "lanes": experience.lanes,
        "actions": experience.actions,
        "context_columns": experience.context.shape[1],
        **({"withheld": experience.withheld} if experience.withheld else {}),
    }
    table = pa.table(columns).replace_schema_metadata(
        {METADATA: json.dumps(about), NOTES: json.dumps(dict(notes or {}), sort_keys=True)}
    )
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, part, compression="zstd", row_group_size=group_rows(experience))
        part.replace(path)
    except OSError as error:
        raise DataError(f"experience {path}: cannot be written ({error.strerror or error})") from error
    finally:
        part.unlink(missing_ok=True)


def group_rows(experience: Experience) -> int:
    """Return the number of rows of a row group."""
    width: int = 4 * experience.context.shape[1] + 5 * len(experience.actions) + _ROW_BYTES
    return max(1, _GROUP_BYTES // width)


def files_of(path: Path) -> list[Path]:
    """Return the files of an experience in order: the file, or a directory's Parquet files by name.

    Raises:
        DataError: there is none.
    """
    if path.is_dir():
        files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith((".", "_")))
        if not files:
            raise DataError(f"experience {path}: there are no Parquet files; `scorer learn join` makes one")
        return files
    if not path.is_file():
        raise DataError(f"experience {path}: no such file; `scorer learn join` makes one")
    return [path]


def read_notes(path: Path) -> dict[str, Any]:
    """How a file, or the first file of a directory, was made; nothing where nobody noted it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = files_of(path)[0]
    try:
        notes = json.loads((pq.read_schema(path).metadata or {}).get(NOTES, b"{}"))
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise DataError(f"experience {path}: its notes cannot be read ({error})") from error
    return notes if isinstance(notes, dict) else {}


def read(path: Path) -> Experience:
    """Reads a file that `write` made.

    Raises:
        DataError: there is no such file, it is another kind of file, or its
            columns do not fit together.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"experience {path}: no such file; `scorer learn join` makes one")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"experience {path}: not a readable Parquet file ({error})") from error
    header = read_header(table.schema, path)
    actions, bundles, lanes = header.actions, header.bundles, header.lanes
    columns: dict[str, Any] = {name: texts(table[name]) for name in _TEXT}
    later = {name: kind for name, kind in _LATER.items() if name in table.column_names}
    for name, kind in {**_SCALARS, **later}.items():
        if table[name].null_count:
            raise DataError(f"experience {path}: column {name} has {table[name].null_count} empty rows")
        columns[name] = table[name].to_numpy().astype(kind)
    for name, kind in _MATRICES.items():
        width = header.context_columns if name == "context" else len(actions)
        columns[name] = matrix(table[name].combine_chunks(), name, width, kind, path)
    check_codes(columns, {"action": len(actions), "bundle": len(bundles), "lane": len(lanes)}, path)
    return Experience(**columns, bundles=bundles, lanes=lanes, actions=actions, withheld=header.withheld)


def read_header(schema: pa.Schema, path: Path) -> Header:
    """Read a file's metadata, and check that it has every column.

    Raises:
        DataError: the file is of another kind or version, or a column is missing.
    """
    try:
        about = json.loads((schema.metadata or {})[METADATA])
        version = about["version"]
        header = Header(
            int(about["context_columns"]),
            tuple(about["actions"]),
            tuple(about["bundles"]),
            tuple(about["lanes"]),
            tuple(about.get("withheld", ())),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"experience {path}: its metadata does not say what it holds; make it with `scorer learn join`"
        ) from error
    if version != VERSION:
        raise DataError(f"experience {path}: version {version} is not {VERSION}; join the log again")
    needed = [*_TEXT, *_SCALARS, *_MATRICES]
    if missing := [name for name in needed if name not in schema.names]:
        raise DataError(f"experience {path}: column {', '.join(missing)} is missing; join the log again")
    return header


def _lists(values: Any) -> pa.Array:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def matrix(lists: pa.Array, name: str, width: int, kind: Any, path: Path) -> Any:
    """Return the lists of a column as `[rows, width]`.

    Raises:
        DataError: a list has another length, or a value is null.
    """
    flat = lists.flatten()
    if len(flat) != len(lists) * width or lists.null_count or flat.null_count:
        raise DataError(f"experience {path}: column {name} does not hold {width} values in every row")
    return flat.to_numpy(zero_copy_only=False).astype(kind).reshape(len(lists), width)


def check_codes(columns: Mapping[str, Any], sizes: Mapping[str, int], path: Path) -> None:
    """Check that codes are positions of the metadata's names, and states are known ones.

    Raises:
        DataError: one is not.
    """
    for name, size in sizes.items():
        outside = int(((columns[name] < 0) | (columns[name] >= size)).sum())
        if outside:
            raise DataError(f"experience {path}: {name} of {outside} rows is not in the metadata")
    unknown = int((~np.isin(columns["state"], [int(state) for state in State])).sum())
    if unknown:
        raise DataError(
            f"experience {path}: {unknown} rows have a state that is none of {[int(s) for s in State]}"
        )
