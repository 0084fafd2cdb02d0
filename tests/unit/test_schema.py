"""Tests of encoding columns and of the schema's fingerprint, against independently computed values."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pyarrow as pa
import pytest

from scorer.bundle import Feature, Log1p, Standardise, encode, transform
from scorer.errors import BundleError

AMOUNT = Feature(name="amount", missing="refuse", minimum=0, maximum=0.1)
HOUR = Feature(name="hour")
COUNTRY = Feature(name="country", type="category", categories=["NL", "DE"], unknown_category="missing")
PLAN = Feature(name="plan", type="category", categories=["1", "2"], missing="refuse")
NIGHT = Feature(name="night", type="flag")
FEATURES = [AMOUNT, HOUR, COUNTRY, PLAN, NIGHT]

COLUMNS = {
    "amount": [0.1, 0.0, 0.05],
    "hour": [1, None, 3],
    "country": ["DE", None, "FR"],
    "plan": [1, 2, 1],
    "night": [True, False, True],
    "not in the schema": [1, 2, 3],
}
nan = np.nan
ROWS = np.array([[0.1, 1, 1, 0, 1], [0, nan, nan, 1, 0], [0.05, 3, nan, 0, 1]], dtype=np.float32)


@pytest.mark.parametrize("table", [dict, pa.table], ids=["mapping", "pyarrow"])
def test_columns_are_converted_to_rows(table: type) -> None:
    rows = encode(FEATURES, table(COLUMNS))
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, ROWS)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("amount", [0.1, None, 0], 'feature "amount": row 1 has no value'),
        ("amount", [0.1, 0.2, 0], 'feature "amount": row 1 has 0.2, the schema allows finite values from 0'),
        ("amount", [-1e-30, 0, 0], 'feature "amount": row 0 has -1e-30'),
        ("hour", [1, 2, np.inf], 'feature "hour": row 2 has inf'),
        ("hour", [1, 2, 1e300], 'feature "hour": row 2 has 1e+300'),
        ("hour", ["noon", "x", "y"], 'feature "hour": the column has type'),
        ("plan", ["1", "3", "1"], 'feature "plan": category "3" is not in its dictionary'),
        ("plan", ["1", None, "1"], 'feature "plan": row 1 has no value'),
        ("night", [0, 2, 1], 'feature "night": row 1 has 2.0, a flag is 0 or 1'),
        ("hour", [1, 2], "the columns differ in length"),
        ("hour", None, 'feature "hour": the data has no such column'),
    ],
)
def test_columns_are_refused_by_name(column: str, values: list[object] | None, message: str) -> None:
    columns: dict[str, object] = {**COLUMNS, column: values}
    if values is None:
        del columns[column]
    with pytest.raises(BundleError) as error:
        encode(FEATURES, columns)
    assert message in str(error.value)


def test_an_array_must_have_one_column_per_feature() -> None:
    with pytest.raises(BundleError, match=r"shape \(3, 4\), \[n, 5\] is needed"):
        encode(FEATURES, ROWS[:, :4])


def test_a_transform_is_computed_in_float64_and_rounded_once() -> None:
    features = [Feature(name="a", minimum=0), Feature(name="b")]
    steps = [Log1p(feature="a"), Standardise(feature="b", mean=0.3, scale=7.0)]
    rows = np.random.default_rng(1).uniform(0, 1000, (500, 2)).astype(np.float32)
    rows[0] = nan
    wide = rows.astype(np.float64)
    expected = np.stack([np.log1p(wide[:, 0]), (wide[:, 1] - 0.3) / 7.0], axis=1).astype(np.float32)
    np.testing.assert_array_equal(transform(features, steps, rows)[:, 1], expected[:, 1])
    # Logarithms of two libraries may differ in the last bit of float64, which rarely shows in float32.
    np.testing.assert_array_max_ulp(transform(features, steps, rows)[1:, 0], expected[1:, 0], maxulp=1)
    np.testing.assert_array_equal(rows[1:], wide[1:].astype(np.float32))


def fingerprint(features: list[Feature]) -> int:
    """Return the fingerprint by the algorithm of docs/bundle-format.md."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    rendering = text("scorer-schema-1")
    for feature in features:
        parts = [feature.name, feature.type, str(len(feature.categories)), *feature.categories]
        rendering += b"".join(text(part) for part in parts)
    return int.from_bytes(hashlib.sha256(rendering).digest()[:8], "big")


def test_the_fingerprint_follows_the_documentation(score_bundle) -> None:
    assert score_bundle.bundle.schema_fingerprint == fingerprint(score_bundle.schema.features)
