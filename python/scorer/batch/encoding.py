"""Encoding of Arrow columns as float32 columns, by the rules of `scorer.bundle.encode`.

Every step works on whole columns. Python handles single values only where they are refused, and the distinct
values of categories that are floating-point numbers. The engine checks ranges, flags and missing values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scorer.bundle.columns import category_name, unknown_category
from scorer.bundle.models import Feature
from scorer.errors import BatchError

Columns32 = npt.NDArray[np.float32]
Problems = dict[int, str]
"""Reasons by the position of the refused row."""

_NEEDED = {
    "number": "a number is an integer, a floating-point number or a decimal",
    "flag": "a flag is a boolean, or a number that is 0 or 1",
    "category": "a category is text or a whole number",
}
_SQL = {"number": "DOUBLE", "flag": "BOOLEAN", "category": "VARCHAR"}


class ColumnEncoder:
    """Encodes the features of record batches.

    Args:
        features: The features, in the order of the engine's columns.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        self._categories = {
            feature.name: pa.array(feature.categories, pa.string())
            for feature in features
            if feature.type == "category"
        }

    @property
    def names(self) -> list[str]:
        """Names of the columns that are read."""
        return [feature.name for feature in self.features]

    def check(self, schema: pa.Schema, where: str) -> None:
        """Check that a table has the columns, each of a type that the feature can have.

        Args:
            schema: The table's schema.
            where: Name of the table in messages.

        Raises:
            BatchError: A column is missing, occurs twice or has another type.
        """
        for feature in self.features:
            kind = schema.field(find_column(schema, feature.name, where, "feature")).type
            if not _fits(feature, kind):
                raise BatchError(
                    f'feature "{feature.name}": the column of {where} has type {kind}, and '
                    f"{_NEEDED[feature.type]}; convert it, for example with --sql and "
                    f'CAST("{feature.name}" AS {_SQL[feature.type]})'
                )

    def encode(self, batch: pa.RecordBatch) -> tuple[Columns32, Problems]:
        """Encode the features of a batch whose schema has been checked.

        Args:
            batch: ``n`` rows.

        Returns:
            float32 ``[features, n]`` in C order, and the rows with a category that a dictionary refuses.
        """
        columns = np.empty((len(self.features), batch.num_rows), np.float32)
        problems: Problems = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for feature, out in zip(self.features, columns, strict=True):
                column = batch.column(feature.name)
                if pa.types.is_null(column.type):
                    out.fill(np.nan)
                elif feature.type == "category":
                    self._encode_category(feature, column, out, problems)
                else:
                    out[:] = _numbers(column)
        return columns, problems

    def _encode_category(
        self, feature: Feature, column: pa.Array, out: Columns32, problems: Problems
    ) -> None:
        known = self._categories[feature.name]
        if pa.types.is_floating(column.type):
            column = column.dictionary_encode()
        dictionary = column.dictionary if pa.types.is_dictionary(column.type) else None
        codes = pc.index_in(_names(column if dictionary is None else dictionary), value_set=known)
        if dictionary is not None:
            codes = codes.take(column.indices)
        if not codes.null_count:
            out[:] = codes.to_numpy()
            return
        out[:] = codes.cast(pa.float32()).fill_null(np.nan).to_numpy()
        if feature.unknown_category == "missing":
            return
        absent = _absent(column)
        for row in np.flatnonzero(np.isnan(out) & ~absent).tolist():
            problems.setdefault(row, unknown_category(feature, category_name(column[row].as_py()) or ""))


def find_column(schema: pa.Schema, name: str, where: str, use: str) -> int:
    """Return the position of a column.

    Args:
        schema: The table's schema.
        name: The column's name.
        where: Name of the table in messages.
        use: What the column is needed for, such as "feature".

    Raises:
        BatchError: There is no such column, or there are two.
    """
    found: list[int] = schema.get_all_field_indices(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise BatchError(f'{use} "{name}": {where} has {len(found)} columns of this name; rename all but one')
    near = next((known for known in schema.names if known.lower() == name.lower()), None)
    hint = f' (it has "{near}")' if near else ""
    raise BatchError(
        f'{use} "{name}": {where} has no such column{hint}; add it, or rename one with --sql and SELECT .. AS'
    )


def _fits(feature: Feature, kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    numeric = bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
    boolean = bool(pa.types.is_boolean(kind))
    if feature.type == "category":
        return numeric or is_text(kind)
    if feature.type == "flag":
        return numeric or boolean
    return numeric or boolean or bool(pa.types.is_decimal(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's types of text."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in tests)


def text_buffers(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of all texts, and the offsets ``[n + 1]`` at which they start and end.

    Args:
        texts: An array ``[n]`` of large text or large binary values.
    """
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, text = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(text, np.uint8) if text is not None and text.size else np.empty(0, np.uint8)
    return data[ends[0] : ends[-1]], ends - ends[0]


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column; a missing one is NaN."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_float16(kind):
        column = column.cast(pa.float32())
    # A number is rounded from float64, as the server does, so wide integers become float64 first.
    if pa.types.is_decimal(kind) or (not pa.types.is_floating(kind) and (column.null_count or _wide(kind))):
        column = column.cast(pa.float64(), safe=False)
    if column.null_count:
        column = column.fill_null(pa.scalar(np.nan, column.type))
    values: npt.NDArray[Any] = column.to_numpy()
    return values


def _wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_uint64(kind))


def _names(values: pa.Array) -> pa.Array:
    """Return the categories that values stand for, by `category_name`."""
    if is_text(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.string())
    return pa.array([category_name(value) for value in values.to_pylist()], pa.string())


def _absent(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values are missing. A dictionary may contain a missing value, too."""
    if pa.types.is_dictionary(column.type):
        gone = column.dictionary.is_null(nan_is_null=True).take(column.indices).fill_null(True)
    else:
        gone = column.is_null()
    flags: npt.NDArray[np.bool_] = gone.to_numpy(zero_copy_only=False).astype(bool)
    return flags
