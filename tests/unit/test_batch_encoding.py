"""Tests that Arrow columns are encoded by the rules of `scorer.bundle.encode`, without a loop over rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.batch.encoding import ColumnEncoder
from scorer.bundle import Feature, encode
from scorer.errors import BatchError, BundleError

COUNTRY = Feature(name="c", type="category", categories=["NL", "DE", "FR"], unknown_category="missing")
DIGITS = Feature(name="c", type="category", categories=["3", "7", "11"], unknown_category="missing")
NUMBER = Feature(name="x")
FLAG = Feature(name="f", type="flag")


def encoded(feature: Feature, column: pa.Array) -> np.ndarray:
    """The encoded column, which `encode` must give too."""
    encoder = ColumnEncoder([feature])
    batch = pa.RecordBatch.from_arrays([column], [feature.name])
    encoder.check(batch.schema, "the table")
    columns, problems = encoder.encode(batch)
    assert not problems
    reference = encode([feature], {feature.name: column.to_pylist()})
    np.testing.assert_array_equal(columns.T, reference)
    return columns[0]


@settings(deadline=None)
@given(
    st.lists(st.none() | st.floats(allow_infinity=False, min_value=-1e38, max_value=1e38)),
    st.sampled_from([pa.float64(), pa.float32()]),
    st.integers(0, 3),
)
def test_floating_point_numbers(values: list[float | None], kind: Any, offset: int) -> None:
    encoded(NUMBER, pa.array(values, pa.float64()).cast(kind).slice(offset))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, -3], pa.int8()),
        # Rounded from float64 as on the wire, and not from the integer: one ulp of float32 higher.
        pa.array([2**63 - 1, -(2**53) - 1, 4611686293305294849], pa.int64()),
        pa.array([2**63 - 1, None, 4611686293305294849], pa.int64()),
        pa.array([2**64 - 1, 16777217], pa.uint64()),
        pa.array([16777217, 2**31 - 1], pa.int32()),
        pa.array([True, None, False]),
        pa.array([0.5, None, 2.0], pa.float16()),
        pa.array([1.5, None, 2.25, 1.5]).dictionary_encode(),
        pa.nulls(3),
    ],
    ids=lambda column: str(column.type),
)
def test_numbers_of_every_type(column: pa.Array) -> None:
    encoded(NUMBER, column)


def test_decimals_are_numbers() -> None:
    columns, _ = ColumnEncoder([NUMBER]).encode(
        pa.record_batch({"x": pa.array([Decimal("0.10"), None], pa.decimal128(9, 2))})
    )
    np.testing.assert_array_equal(columns[0], np.float32([0.1, np.nan]))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_categories_of_text(kind: pa.DataType) -> None:
    column = pa.array(["FR", None, "NL", "XX", ""], kind)
    np.testing.assert_array_equal(encoded(COUNTRY, column), np.float32([2, np.nan, 0, np.nan, np.nan]))


@pytest.mark.parametrize(
    ("column", "codes"),
    [
        (pa.array(["FR", None, "XX", "NL"]).dictionary_encode(), [2, np.nan, np.nan, 0]),
        (pa.array(["FR", None, "XX", "NL"]).dictionary_encode().slice(1), [np.nan, np.nan, 0]),
        (pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array([None, "DE"])), [1, np.nan, np.nan]),
    ],
)
def test_categories_of_a_dictionary(column: pa.Array, codes: list[float]) -> None:
    np.testing.assert_array_equal(encoded(COUNTRY, column), np.float32(codes))


@pytest.mark.parametrize(
    "column",
    [pa.array([3, 11, None, 5]), pa.array([3.0, 7.0, None, 3.5, float("nan")]), pa.array([7, 3], pa.uint8())],
    ids=lambda column: str(column.type),
)
def test_whole_numbers_stand_for_the_category_with_their_text(column: pa.Array) -> None:
    assert encoded(DIGITS, column)[0] in {0.0, 1.0}


def test_flags() -> None:
    np.testing.assert_array_equal(encoded(FLAG, pa.array([True, None, False])), np.float32([1, np.nan, 0]))
    np.testing.assert_array_equal(encoded(FLAG, pa.array([1, 0], pa.int8())), np.float32([1, 0]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["NL", "XX", None, "YY"]),
        pa.array(["NL", "XX", None, "YY"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3]), pa.array(["NL", "XX", None, "YY"])),
    ],
)
def test_a_refused_category_names_the_row_the_rule_and_the_remedy(column: pa.Array) -> None:
    feature = COUNTRY.model_copy(update={"unknown_category": "refuse"})
    columns, problems = ColumnEncoder([feature]).encode(pa.RecordBatch.from_arrays([column], ["c"]))
    assert set(problems) == {1, 3}, "a missing value is not an unknown one"
    with pytest.raises(BundleError) as caught:
        encode([feature], {"c": column.to_pylist()})
    assert problems[1] == str(caught.value)
    assert columns[0, 0] == 0.0


@pytest.mark.parametrize(
    ("feature", "schema", "reason"),
    [
        (NUMBER, pa.schema({"y": pa.float64()}), 'feature "x": the table has no such column; add it'),
        (NUMBER, pa.schema({"X": pa.float64()}), 'no such column (it has "X")'),
        (NUMBER, pa.schema([("x", pa.int8()), ("x", pa.int8())]), "has 2 columns of this name; rename"),
        (NUMBER, pa.schema({"x": pa.string()}), "has type string, and a number is an integer"),
        (NUMBER, pa.schema({"x": pa.timestamp("us")}), 'CAST("x" AS DOUBLE)'),
        (FLAG, pa.schema({"f": pa.string()}), "a flag is a boolean, or a number that is 0 or 1"),
        (COUNTRY, pa.schema({"c": pa.bool_()}), "a category is text or a whole number"),
        (
            COUNTRY,
            pa.schema({"c": pa.list_(pa.string())}),
            'feature "c": the column of the table has type list',
        ),
    ],
)
def test_a_column_that_cannot_be_used_is_refused(feature: Feature, schema: pa.Schema, reason: str) -> None:
    with pytest.raises(BatchError) as caught:
        ColumnEncoder([feature]).check(schema, "the table")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
