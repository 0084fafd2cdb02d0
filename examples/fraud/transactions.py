"""Card transactions as columns: reading, checking, writing.

The layout is that of the Fraud Detection Handbook's data: one row per transaction, with a label for fraud.
Time spans, splits and features are computed from these columns only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scorer.learn.errors import DataError

DAY_MS = 86_400_000

COLUMNS = (
    "TRANSACTION_ID",
    "TX_DATETIME",
    "CUSTOMER_ID",
    "TERMINAL_ID",
    "TX_AMOUNT",
    "TX_FRAUD",
    "TX_FRAUD_SCENARIO",
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Transactions:
    """Transactions in order of time. Transactions at the same time are in the order of the file.

    Attributes:
        ids: `[n]` transaction ids, unique.
        time_ms: `[n]` milliseconds since the Unix epoch, ascending.
        customer: `[n]` customer ids.
        terminal: `[n]` terminal ids.
        amount: `[n]` amounts, not negative.
        fraud: `[n]` 1 for fraud, else 0.
        scenario: `[n]` scenario of the fraud; 0 for genuine transactions.
    """

    ids: Ints
    time_ms: Ints
    customer: Ints
    terminal: Ints
    amount: Floats
    fraud: Ints
    scenario: Ints

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def day(self) -> Ints:
        """`[n]` whole days since the midnight before the first transaction."""
        return np.asarray(self.time_ms // DAY_MS - self.time_ms[0] // DAY_MS)

    @cached_property
    def days(self) -> int:
        """Number of calendar days from the first transaction to the last, including both."""
        return int(self.day[-1]) + 1

    def date(self, day: int) -> str:
        """Return the calendar date of a day number, as YYYY-MM-DD."""
        return str((self.time_ms[0] // DAY_MS + day).astype("datetime64[D]"))

    def digest(self) -> str:
        """Return `sha256:<hex>` over the columns, for the lineage of models that are trained on them."""
        hasher = hashlib.sha256()
        for column in (self.ids, self.time_ms, self.customer, self.terminal, self.amount, self.fraud):
            hasher.update(np.ascontiguousarray(column).data)
        return f"sha256:{hasher.hexdigest()}"

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Transactions:
        """Return the transactions at `rows`, in that order."""
        return Transactions(
            ids=self.ids[rows],
            time_ms=self.time_ms[rows],
            customer=self.customer[rows],
            terminal=self.terminal[rows],
            amount=self.amount[rows],
            fraud=self.fraud[rows],
            scenario=self.scenario[rows],
        )


def read_transactions(path: Path) -> Transactions:
    """Read and check a Parquet file of transactions.

    Args:
        path: A file with the columns in `COLUMNS`. Other columns are ignored.

    Returns:
        The transactions, sorted by time.

    Raises:
        DataError: The file cannot be read or lacks a column, or a column has the wrong type, nulls or values
            out of range.
    """
    if not path.is_file():
        raise DataError(
            f"transactions {path}: no such file; give a Parquet file, or leave --transactions out"
        )
    try:
        file = pq.ParquetFile(path)
        missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise DataError(
                f"transactions {path}: column {', '.join(missing)} is missing;"
                f" needed are {', '.join(COLUMNS)}"
            )
        table = file.read(columns=list(COLUMNS))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"transactions {path}: not a readable Parquet file ({error})") from error
    return from_table(table, str(path))


def from_table(table: pa.Table, source: str) -> Transactions:
    """Check an Arrow table and convert it to `Transactions`. Error messages contain `source`."""
    if table.num_rows == 0:
        raise DataError(f"transactions {source}: the file has no rows")
    for name in COLUMNS:
        nulls = table.column(name).null_count
        if nulls:
            raise DataError(
                f"transactions {source}: column {name} has {nulls} empty values; remove these rows"
            )
    time_ms = _times(table, source)
    ids = _integers(table, "TRANSACTION_ID", source)
    amount = _numbers(table, "TX_AMOUNT", source)
    fraud = _integers(table, "TX_FRAUD", source)
    bad = ~np.isin(fraud, (0, 1))
    if bad.any():
        raise DataError(
            f"transactions {source}: TX_FRAUD is {fraud[bad][0]} in row {bad.argmax()}; it must be 0 or 1"
        )
    bad = ~np.isfinite(amount) | (amount < 0)
    if bad.any():
        raise DataError(
            f"transactions {source}: TX_AMOUNT is {amount[bad][0]} in row {bad.argmax()};"
            " it must be finite and not negative"
        )
    order = np.argsort(time_ms, kind="stable")
    by_id = np.sort(ids)
    twice = by_id[1:] == by_id[:-1]
    if twice.any():
        raise DataError(f"transactions {source}: TRANSACTION_ID {by_id[1:][twice][0]} appears more than once")
    return Transactions(
        ids=ids[order],
        time_ms=time_ms[order],
        customer=_integers(table, "CUSTOMER_ID", source)[order],
        terminal=_integers(table, "TERMINAL_ID", source)[order],
        amount=amount[order],
        fraud=fraud[order],
        scenario=_integers(table, "TX_FRAUD_SCENARIO", source)[order],
    )


def write_transactions(transactions: Transactions, path: Path) -> None:
    """Write transactions to a Parquet file in the layout that `read_transactions` reads."""
    table = pa.table(
        {
            "TRANSACTION_ID": pa.array(transactions.ids),
            "TX_DATETIME": pa.array(transactions.time_ms.astype("datetime64[ms]")),
            "CUSTOMER_ID": pa.array(transactions.customer.astype(np.int32)),
            "TERMINAL_ID": pa.array(transactions.terminal.astype(np.int32)),
            "TX_AMOUNT": pa.array(transactions.amount),
            "TX_FRAUD": pa.array(transactions.fraud.astype(np.int8)),
            "TX_FRAUD_SCENARIO": pa.array(transactions.scenario.astype(np.int8)),
        }
    )
    try:
        pq.write_table(table, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def _times(table: pa.Table, source: str) -> Ints:
    column = table.column("TX_DATETIME")
    if not pa.types.is_timestamp(column.type):
        raise DataError(f"transactions {source}: TX_DATETIME is {column.type}; it must be a timestamp")
    milliseconds = pc.cast(column, pa.timestamp("ms", tz=column.type.tz), safe=False)
    return np.asarray(pc.cast(milliseconds, pa.int64()).to_numpy(), dtype=np.int64)


def _integers(table: pa.Table, name: str, source: str) -> Ints:
    column = table.column(name)
    kind = column.type
    # The handbook's own files contain the ids as text.
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"transactions {source}: column {name} is {kind}; it must be an integer")
    try:
        return np.asarray(pc.cast(column, pa.int64()).to_numpy(), dtype=np.int64)
    except pa.ArrowInvalid as error:
        raise DataError(f"transactions {source}: column {name} must contain integers ({error})") from error


def _numbers(table: pa.Table, name: str, source: str) -> Floats:
    column = table.column(name)
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        raise DataError(f"transactions {source}: column {name} is {kind}; it must be a number")
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(), dtype=np.float64)
