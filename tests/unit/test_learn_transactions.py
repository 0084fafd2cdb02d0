"""Tests of reading transactions, and of files that are rejected."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.fraud.transactions import read_transactions, write_transactions
from examples.simulators.transactions import TransactionPlan, simulate_transactions
from scorer.learn.errors import DataError


def table(**changes: pa.Array | None) -> pa.Table:
    columns = {
        "TRANSACTION_ID": pa.array([10, 11, 12]),
        "TX_DATETIME": pa.array(
            np.array(["2020-01-02T03:04:05", "2020-01-01", "2020-01-02"], "datetime64[s]")
        ),
        "CUSTOMER_ID": pa.array([1, 2, 3]),
        "TERMINAL_ID": pa.array([4, 5, 6]),
        "TX_AMOUNT": pa.array([1.5, 2.5, 3.5]),
        "TX_FRAUD": pa.array([0, 1, 0]),
        "TX_FRAUD_SCENARIO": pa.array([0, 2, 0]),
    }
    columns.update(changes)
    return pa.table({name: values for name, values in columns.items() if values is not None})


def test_transactions_are_sorted_by_time_with_their_columns(tmp_path):
    pq.write_table(table(), tmp_path / "t.parquet")
    transactions = read_transactions(tmp_path / "t.parquet")
    assert transactions.ids.tolist() == [11, 12, 10]
    assert transactions.amount.tolist() == [2.5, 3.5, 1.5]
    assert transactions.fraud.tolist() == [1, 0, 0]
    assert transactions.days == 2
    assert transactions.date(1) == "2020-01-02"
    assert transactions.time_ms[2] - transactions.time_ms[1] == ((3 * 60 + 4) * 60 + 5) * 1000


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_every_time_resolution_and_text_ids_are_read(tmp_path, unit):
    times = np.array(["2020-01-01T00:00:01", "2020-01-02", "2020-01-03"], f"datetime64[{unit}]")
    result = table(TX_DATETIME=pa.array(times), CUSTOMER_ID=pa.array(["7", "8", "9"]))
    pq.write_table(result, tmp_path / "t.parquet")
    transactions = read_transactions(tmp_path / "t.parquet")
    assert transactions.time_ms[0] == 1_577_836_801_000
    assert transactions.customer.tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"TX_AMOUNT": None}, "column TX_AMOUNT is missing"),
        ({"TX_AMOUNT": None, "TX_FRAUD": None}, "column TX_AMOUNT, TX_FRAUD is missing"),
        ({"TX_AMOUNT": pa.array(["1", "2", "3"])}, "TX_AMOUNT is string; it must be a number"),
        ({"TX_AMOUNT": pa.array([1.0, float("nan"), 2.0])}, "TX_AMOUNT is nan in row 1"),
        ({"TX_AMOUNT": pa.array([1.0, 2.0, -3.0])}, "TX_AMOUNT is -3.0 in row 2"),
        ({"TX_AMOUNT": pa.array([1.0, None, 2.0])}, "TX_AMOUNT has 1 empty values"),
        ({"TX_FRAUD": pa.array([0, 2, 0])}, "TX_FRAUD is 2 in row 1; it must be 0 or 1"),
        ({"TX_FRAUD": pa.array([0.0, 1.0, 0.0])}, "TX_FRAUD is double; it must be an integer"),
        ({"TX_DATETIME": pa.array(["a", "b", "c"])}, "TX_DATETIME is string; it must be a timestamp"),
        ({"CUSTOMER_ID": pa.array(["1", "x", "2"])}, "CUSTOMER_ID must contain integers"),
        ({"TRANSACTION_ID": pa.array([1, 2, 1])}, "TRANSACTION_ID 1 appears more than once"),
    ],
)
def test_refusals_name_the_column(tmp_path, changes, message):
    path = tmp_path / "t.parquet"
    pq.write_table(table(**changes), path)
    with pytest.raises(DataError) as refused:
        read_transactions(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_parquet_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_transactions(tmp_path / "none.parquet")
    (tmp_path / "t.parquet").write_bytes(b"TRANSACTION_ID,TX_DATETIME\n1,2\n")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_transactions(tmp_path / "t.parquet")
    pq.write_table(table().slice(0, 0), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="no rows"):
        read_transactions(tmp_path / "t.parquet")


def test_written_transactions_are_read_unchanged(tmp_path):
    stream = simulate_transactions(TransactionPlan(customers=50, terminals=500, days=10), seed=3)
    write_transactions(stream, tmp_path / "t.parquet")
    again = read_transactions(tmp_path / "t.parquet")
    assert again.digest() == stream.digest()
    assert again.scenario.tolist() == stream.scenario.tolist()
