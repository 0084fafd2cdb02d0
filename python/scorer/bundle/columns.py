"""Encoding of named columns as float32 rows, by the rules that the server applies to a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import (
    Arithmetic,
    CategoryTable,
    Feature,
    FeatureRatio,
    FunctionCall,
    TablesFile,
    TransformStep,
)
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.bundle.functions import CustomFunction

Rows = npt.NDArray[np.float32]


def encode(features: Sequence[Feature], data: Any) -> Rows:
    """Encode a table as float32 rows ``[n, features]``.

    Args:
        features: The features, in the order of the rows' columns.
        data: A table with one column per feature (pyarrow, pandas, or a mapping of arrays). Other columns are
            ignored. An array ``[n, features]`` of encoded rows is returned as float32 without checks.

    Raises:
        BundleError: A column is missing, has the wrong type, or has a value that the schema rejects.
    """
    if isinstance(data, np.ndarray):
        if data.ndim != 2 or data.shape[1] != len(features):
            raise BundleError(f"data has shape {data.shape}, [n, {len(features)}] is needed; see the schema")
        return np.ascontiguousarray(data, dtype=np.float32)
    columns = [_column(feature, _values(data, feature.name)) for feature in features]
    if len({len(column) for column in columns}) > 1:
        raise BundleError("data: the columns differ in length; give every column the same number of values")
    return np.ascontiguousarray(np.stack(columns, axis=1)) if columns else np.empty((0, 0), np.float32)


def added_columns(steps: Sequence[TransformStep]) -> list[str]:
    """Return the names of the columns that steps add to a row, in their order.

    Args:
        steps: The steps of a transform node.
    """
    return [step.output for step in steps if step.output is not None]


def columns_read(step: TransformStep) -> list[str]:
    """Return the names of the columns that a step reads.

    Args:
        step: A step of a transform node.
    """
    if isinstance(step, FunctionCall):
        return step.inputs
    return [step.left, step.right] if isinstance(step, Arithmetic | FeatureRatio) else [step.feature]


def transform(
    features: Sequence[Feature],
    steps: Sequence[TransformStep],
    rows: Rows,
    tables: Mapping[str, CategoryTable] | None = None,
    functions: Sequence[CustomFunction] = (),
) -> Rows:
    """Apply a transform node to rows. A model of a bundle with `steps` must be trained on the result.

    Args:
        features: The features, in the order of the rows' columns.
        steps: The transformations.
        rows: Encoded rows ``[n, features]``.
        tables: The tables that the steps name.
        functions: The functions that the steps name.

    Returns:
        The transformed rows ``[n, features + added columns]``; see `added_columns`.

    Raises:
        BundleError: A step does not match the features, the tables or the functions.
    """
    from scorer import bridge
    from scorer.bundle.functions import FUNCTIONS, function_files

    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if not steps:
        return rows
    modules = function_files(functions)
    listed = modules.pop(FUNCTIONS, None)
    out = np.empty((len(rows), len(features) + len(added_columns(steps))), np.float32)
    bridge.transform_rows(
        json.dumps([feature.model_dump(by_alias=True, exclude_none=True) for feature in features]),
        json.dumps([step.model_dump(exclude_none=True) for step in steps]),
        TablesFile(tables=dict(tables)).model_dump_json(exclude_none=True) if tables else None,
        None if listed is None else (listed, modules),
        rows,
        out,
    )
    return out


def _values(data: Any, name: str) -> npt.NDArray[Any]:
    try:
        column = data[name]
    except KeyError:
        raise BundleError(
            f'feature "{name}": the data has no such column; add it or drop the feature'
        ) from None
    if hasattr(column, "to_numpy") and hasattr(column, "type"):  # pyarrow
        return np.asarray(column.to_numpy())
    return np.asarray(column)


def _column(feature: Feature, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if feature.type == "category":
        return _codes(feature, values)
    try:
        # `_number` converts None and pandas' NA to NaN.
        wide = np.array([_number(value) for value in values]) if values.dtype == object else values
        wide = np.asarray(wide, dtype=np.float64)
    except (TypeError, ValueError):
        raise BundleError(
            f'feature "{feature.name}": the column has type {values.dtype}, numbers are needed; convert it'
        ) from None
    with np.errstate(over="ignore"):
        column = wide.astype(np.float32)
    _check(feature, column, wide)
    return column


def _number(value: Any) -> float:
    return float("nan") if value is None or value != value else float(value)  # noqa: PLR0124 (NaN and NA)


def _codes(feature: Feature, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    # A cache from the column's values to codes: a column has far fewer different values than rows.
    codes: dict[Any, float] = {}
    known = {category: float(code) for code, category in enumerate(feature.categories)}
    column = np.empty(len(values), np.float32)
    for row, value in enumerate(values.tolist()):
        code = codes.get(value)
        if code is None:
            code = codes[value] = _code(feature, known, value)
        column[row] = code
    if feature.missing == "refuse" and np.isnan(column).any():
        raise _missing(feature, column)
    return column


def _code(feature: Feature, known: dict[str, float], value: Any) -> float:
    name = category_name(value)
    if name is None:
        return float("nan")
    if name not in known and feature.unknown_category == "refuse":
        raise BundleError(unknown_category(feature, name))
    return known.get(name, float("nan"))


def category_name(value: Any) -> str | None:
    """Return the category that a value of a column stands for; None for a missing value."""
    if value is None or value != value:  # noqa: PLR0124 (NaN)
        return None
    # A whole number stands for the category with its decimal text: 3.0 and 3 for "3".
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


def unknown_category(feature: Feature, name: str) -> str:
    """Return the message about a category that a feature's dictionary does not contain."""
    return (
        f'feature "{feature.name}": category "{name}" is not in its dictionary; '
        'add it or set unknown_category to "missing"'
    )


def _check(feature: Feature, column: npt.NDArray[np.float32], given: npt.NDArray[np.float64]) -> None:
    absent = np.isnan(column)
    if feature.missing == "refuse" and absent.any():
        raise _missing(feature, column)
    low = -np.inf if feature.minimum is None else np.float32(feature.minimum)
    high = np.inf if feature.maximum is None else np.float32(feature.maximum)
    if feature.type == "flag":
        wrong = ~absent & (column != 0) & (column != 1)
        rule = "a flag is 0 or 1"
    else:
        wrong = ~absent & (np.isinf(column) | (column < low) | (column > high))
        rule = f"the schema allows finite values from {low} to {high}"
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise BundleError(
            f'feature "{feature.name}": row {row} has {given[row]}, {rule}; clip it or widen the schema'
        )


def _missing(feature: Feature, column: npt.NDArray[np.float32]) -> BundleError:
    row = int(np.flatnonzero(np.isnan(column))[0])
    return BundleError(
        f'feature "{feature.name}": row {row} has no value, and the schema refuses missing values; '
        'fill it or set missing to "allow"'
    )
