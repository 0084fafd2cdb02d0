"""Parts: Parquet files of observations, named after the records of the log that they contain.

The path of a part is `<server>/<log>/<checkpoint>/<lane>/<first>-<last>.parquet`. If a part is written again,
it is replaced by an equal one. A part within the range of another part is a remainder of an interrupted merge
and is ignored. Repeating an operation after a crash therefore has no effect.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

OUTCOMES: Final = "_outcomes"
ANSWERS: Final = "_answers"
"""Name of the folder of answers. It cannot be the name of a lane, which begins with a letter or digit."""

_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")
_SEGMENT: Final = "segment:"
_MANY = 24
_SMALL = 1 << 22
_ROW_GROUP = 65_536

_words = pa.dictionary(pa.int32(), pa.string())

OBSERVATIONS: Final = pa.schema(
    [
        ("sequence", pa.uint64()),
        ("decision_id", pa.string()),
        ("key", pa.uint64()),
        ("at", pa.int64()),
        ("bundle", _words),
        ("live_lane", _words),
        ("live_bundle", _words),
        ("score", pa.float64()),
        ("live_score", pa.float64()),
        ("label", _words),
        ("live_label", _words),
        ("error", _words),
        ("live_fallback", _words),
        ("exec_us", pa.float32()),
        ("load_us", pa.float32()),
        ("live_exec_us", pa.float32()),
        ("live_load_us", pa.float32()),
        ("lag_us", pa.float32()),
        ("absent", pa.int32()),
        ("differs", pa.int8()),
        ("different", pa.string()),
        ("propensity", pa.float64()),
        ("live_propensity", pa.float64()),
        ("ratio", pa.float64()),
        ("distance", pa.float64()),
        ("least", pa.float64()),
        ("top", _words),
        ("live_top", _words),
        ("features", pa.binary()),
        ("eligible", pa.binary()),
    ]
)
ANSWERED: Final = pa.schema(
    [
        ("sequence", pa.uint64()),
        ("key", pa.uint64()),
        ("at", pa.int64()),
        ("lane", _words),
        ("bundle", _words),
        ("score", pa.float64()),
        ("label", _words),
        ("fallback", _words),
        ("exec_us", pa.float32()),
        ("load_us", pa.float32()),
    ]
)
OUTCOME: Final = pa.schema(
    [
        ("sequence", pa.uint64()),
        ("key", pa.uint64()),
        ("kind", _words),
        ("value", pa.float64()),
        ("revision", pa.uint32()),
        ("proof", pa.int8()),
        ("received_at", pa.int64()),
    ]
)
"""Schema of outcomes. Parts of earlier versions have no columns `proof` and `received_at`."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file, with the range of its records."""

    path: Path
    first: int
    last: int


def parts(folder: Path) -> list[Part]:
    """Return the parts of a folder that are not ignored, in order."""
    found = []
    if folder.is_dir():
        names = ((path, _NAME.fullmatch(path.name)) for path in folder.iterdir())
        found = [Part(path, int(name[1]), int(name[2])) for path, name in names if name]
    found.sort(key=lambda part: (part.first, -part.last))
    counted: list[Part] = []
    for part in found:
        if not counted or part.first > counted[-1].last:
            counted.append(part)
    return counted


def write(folder: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> None:
    """Write a part.

    Args:
        folder: Folder of the lane.
        rows: The rows in the order of their column `sequence`.
        schema: Schema of the part.
    """
    table = pa.Table.from_pylist(list(rows), schema=schema)
    _put(folder, table, rows[0]["sequence"], rows[-1]["sequence"])


def withdraw(folder: Path, sequence: int) -> None:
    """Remove the row of a record that was withdrawn after its part was written."""
    for part in parts(folder):
        if part.first <= sequence <= part.last:
            table = read(part)
            left = table.filter(pa.array(table["sequence"].to_numpy() != sequence))
            _put(folder, left, part.first, part.last)


def drop_from(folder: Path, sequence: int) -> None:
    """Remove the rows of a record and of all later ones, in this folder and below it.

    An unfinished pass has written them, or the cursor is older than the parts, as after a restore.
    """
    for path in folder.rglob("*.parquet"):
        name = _NAME.fullmatch(path.name)
        if name is None or int(name[2]) < sequence:
            continue
        part = Part(path, int(name[1]), int(name[2]))
        if part.first < sequence:
            table = read(part)
            kept = table.filter(pa.array(table["sequence"].to_numpy() < sequence))
            _put(path.parent, kept, part.first, sequence - 1)
        path.unlink(missing_ok=True)


def compact(folder: Path) -> None:
    """Merge small parts into one, and remove the parts that are ignored."""
    counted = parts(folder)
    keep = {part.path for part in counted}
    small = [part for part in counted if part.path.stat().st_size < _SMALL]
    if len(small) >= _MANY:
        for run in _runs(counted, {part.path for part in small}):
            if len(run) < 2:
                continue
            table = pa.concat_tables([read(part) for part in run], promote_options="permissive")
            merged = _put(folder, table.unify_dictionaries(), run[0].first, run[-1].last)
            keep -= {part.path for part in run if part.path != merged}
            keep.add(merged)
    for path in folder.glob("*.parquet"):
        if _NAME.fullmatch(path.name) and path not in keep:
            path.unlink(missing_ok=True)


def segment_column(feature: str) -> str:
    """Return the column with the segments of rows by a feature."""
    return f"{_SEGMENT}{feature}"


def with_segments(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return a schema with columns of segments."""
    return pa.schema([*schema, *((column, _words) for column in columns)])


def read(part: Part, columns: Sequence[str] | None = None, filters: Any = None) -> Any:
    """Return a part as an Arrow table, without the columns of segments that it does not have."""
    if columns is not None and any(name.startswith(_SEGMENT) for name in columns):
        known = set(pq.read_schema(part.path).names)
        columns = [name for name in columns if name in known or not name.startswith(_SEGMENT)]
    return pq.read_table(part.path, columns=columns, filters=filters, partitioning=None)


def folders(root: Path, checkpoint: str, lane: str) -> Iterator[tuple[str, Path]]:
    """Yield pairs of server and folder of a lane, including folders of earlier logs of a server."""
    if root.is_dir():
        for server in sorted(root.iterdir()):
            for log in sorted(server.iterdir()) if server.is_dir() else ():
                folder = log / checkpoint / lane
                if folder.is_dir():
                    yield server.name, folder


def remove(root: Path, checkpoint: str, lane: str) -> None:
    """Remove all parts of a lane."""
    for _, folder in folders(root, checkpoint, lane):
        shutil.rmtree(folder, ignore_errors=True)


def _put(folder: Path, table: Any, first: int, last: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{first:020}-{last:020}.parquet"
    partial = path.with_suffix(".partial")
    pq.write_table(table, partial, compression="zstd", row_group_size=_ROW_GROUP)
    partial.replace(path)
    return path


def _runs(counted: Sequence[Part], small: set[Path]) -> Iterator[list[Part]]:
    """Yield groups of adjacent small parts. A merged range must not contain another part."""
    run: list[Part] = []
    for part in counted:
        if part.path in small:
            run.append(part)
        else:
            yield run
            run = []
    yield run
