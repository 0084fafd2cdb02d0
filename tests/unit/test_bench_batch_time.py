"""Tests of `loadtests.batch_time`: its arithmetic, and a measurement with a small bundle."""

from __future__ import annotations

import pyarrow as pa
import pytest
from trained import Trained, contexts

from loadtests.batch import BATCH, NAMES
from loadtests.batch_time import BatchTimes, measure, mixed, row
from scorer.errors import BatchError


def test_what_is_not_the_engine_is_the_share_of_python() -> None:
    times = BatchTimes(whole=50.0, encode=2.0, engine=47.0)
    assert times.python == pytest.approx(0.06)
    assert row("table", times) == "| table | 50.0 | 2.00 | 47.0 | 1.00 | 6.0% |"


def test_a_measurement_divides_the_time_of_a_batch(score_bundle: Trained) -> None:
    rows = contexts(500, seed=9)
    batch = pa.record_batch(
        {
            "amount": pa.array(rows[:, 0].astype("float64")),
            "hour": pa.array(rows[:, 1]),
            "country": pa.array(["NL"] * len(rows)),
            "night": pa.array(rows[:, 3] == 1),
        }
    )
    found = measure(score_bundle.path, batch, 3)
    assert min(found.whole, found.encode, found.engine) > 0


def test_a_measurement_refuses_rows_that_are_not_scored(score_bundle: Trained) -> None:
    batch = pa.record_batch({"amount": [-1.0], "hour": [3.0], "country": ["NL"], "night": [True]})
    with pytest.raises(BatchError, match="below the allowed minimum"):
        measure(score_bundle.path, batch, 1)


def test_the_mixed_table_has_every_type_that_takes_long() -> None:
    batch = mixed()
    assert batch.num_rows == BATCH
    assert batch.schema.names == NAMES
    kinds = {str(field.type) for field in batch.schema}
    assert kinds == {"double", "int64", "string", "decimal128(18, 2)"}
    assert all(column.null_count for column in batch.columns)
