"""Features to send: read from a file, or generated from a checkpoint's schema."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from scorer.client import CheckpointInfo, FeatureInfo
from scorer.client.requests import FeatureValue
from scorer.loadtest.errors import LoadTestError

# Values by name, or in the order of the schema.
Row: TypeAlias = Mapping[str, FeatureValue] | Sequence[float]

# Most rows of a load test. More rows would use memory without making the test more realistic.
MAX_ROWS = 10_000
_MISSING_SHARE = 0.05


def generate_rows(info: CheckpointInfo, count: int, seed: int) -> list[dict[str, FeatureValue]]:
    """Generate rows that the schema accepts. The same seed gives the same rows.

    Args:
        info: The checkpoint.
        count: Number of rows.
        seed: Seed of the random numbers.
    """
    # The values are test data, so the generator need not be cryptographically secure.
    rng = random.Random(f"{seed} {info.checkpoint}")  # noqa: S311
    return [{feature.name: _value(feature, rng) for feature in info.features} for _ in range(count)]


def _value(feature: FeatureInfo, rng: random.Random) -> FeatureValue:
    if feature.missing == "allow" and rng.random() < _MISSING_SHARE:
        return None
    if feature.type == "flag":
        return rng.random() < 0.5
    if feature.type == "category":
        return rng.choice(feature.categories) if feature.categories else None
    low, high = feature.minimum, feature.maximum
    if low is not None and high is not None:
        return rng.uniform(low, high)
    # Amounts, counts and ages have skewed distributions.
    spread = rng.lognormvariate(2.0, 1.5)
    if low is not None:
        return low + spread
    return high - spread if high is not None else spread


def read_rows(path: Path, info: CheckpointInfo) -> list[Row]:
    """Read the first 10,000 rows of a Parquet, NPY or JSONL file.

    Raises:
        LoadTestError: The file cannot be read, has no rows, or does not match the checkpoint's schema.
    """
    readers = {".parquet": _parquet, ".npy": _npy, ".jsonl": _jsonl, ".ndjson": _jsonl}
    reader = readers.get(path.suffix)
    if reader is None:
        raise LoadTestError(f"{path}: rows come from a .parquet, .npy or .jsonl file")
    if not path.is_file():
        raise LoadTestError(f"{path}: no such file")
    rows = reader(path, info)
    if not rows:
        raise LoadTestError(f"{path}: has no rows")
    return rows


def _parquet(path: Path, info: CheckpointInfo) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        columns = set(file.schema_arrow.names)
        wanted = [feature.name for feature in info.features if feature.name in columns]
        absent = [feature.name for feature in info.features if feature.name not in columns]
        required = [name for name in absent if _required(info, name)]
        if required or not wanted:
            names = ", ".join(f'"{name}"' for name in required or absent)
            raise LoadTestError(f"{path}: has no column {names}, which {info.checkpoint} needs")
        batch = next(file.iter_batches(batch_size=MAX_ROWS, columns=wanted), None)
    except pa.ArrowException as error:
        raise LoadTestError(f"{path}: {str(error).splitlines()[0]}") from None
    if batch is None:
        return []
    kinds = {feature.name: feature.type for feature in info.features}
    return [{name: _plain(kinds[name], value) for name, value in row.items()} for row in batch.to_pylist()]


def _required(info: CheckpointInfo, name: str) -> bool:
    return next(feature.missing == "refuse" for feature in info.features if feature.name == name)


def _plain(kind: str, value: Any) -> FeatureValue:
    """Convert a stored value to the schema's type. NaN in a file is a missing value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if kind == "category":
        return str(value)
    if kind == "flag":
        return bool(value)
    return float(value)


def _npy(path: Path, info: CheckpointInfo) -> list[Row]:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise LoadTestError(f"{path}: {str(error).splitlines()[0]}") from None
    width = len(info.features)
    if getattr(array, "ndim", 0) != 2 or array.shape[1] != width:
        raise LoadTestError(f"{path}: has shape {array.shape}; {info.checkpoint} needs [rows, {width}]")
    rows: list[Row] = array[:MAX_ROWS].astype("float64").tolist()
    return rows


def _jsonl(path: Path, info: CheckpointInfo) -> list[Row]:
    rows: list[Row] = []
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append(_json_row(f"{path}:{number}", line, info))
            if len(rows) == MAX_ROWS:
                break
    return rows


def _json_row(place: str, line: str, info: CheckpointInfo) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise LoadTestError(f"{place}: {error}") from None
    if isinstance(row, dict):
        return row
    if not isinstance(row, list):
        raise LoadTestError(f"{place}: is neither an object of names nor an array of values")
    width = len(info.features)
    if len(row) != width:
        raise LoadTestError(f"{place}: has {len(row)} values; {info.checkpoint} needs {width}")
    return [math.nan if value is None else value for value in row]


def dense(row: Row, info: CheckpointInfo) -> list[float]:
    """Return a row in the order of the schema, with categories as codes and missing values as NaN.

    Raises:
        LoadTestError: The row has a feature or a category that the schema does not have.
    """
    if not isinstance(row, Mapping):
        return list(row)
    known = {feature.name for feature in info.features}
    unknown = next((name for name in row if name not in known), None)
    if unknown is not None:
        raise LoadTestError(f'{info.checkpoint}: has no feature "{unknown}"')
    return [_code(feature, row.get(feature.name)) for feature in info.features]


def _code(feature: FeatureInfo, value: FeatureValue) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str):
        if value in feature.categories:
            return float(feature.categories.index(value))
        if feature.unknown_category == "missing":
            return math.nan
        raise LoadTestError(f'feature "{feature.name}": "{value}" is not one of its categories')
    return float(value)
