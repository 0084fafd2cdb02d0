"""The transactions of the Fraud Detection Handbook as events and decisions of a feature set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SET = Path(__file__).parent / "handbook.toml"
"""The feature set with the handbook's window features."""

_PAYMENT = """
    cast(TRANSACTION_ID as varchar) as id, TX_DATETIME as {time},
    cast(CUSTOMER_ID as varchar) as customer, cast(TERMINAL_ID as varchar) as terminal
"""


@dataclass(frozen=True)
class HandbookTables:
    """Parquet files for `scorer features build`."""

    payments: Path
    frauds: Path
    decisions: Path


def write_tables(transactions: Path, directory: Path) -> HandbookTables:
    """Write a table of payments, of frauds, and of decisions with the label `fraud`.

    Args:
        transactions: The handbook's transactions as one Parquet file.
        directory: Where to write; it exists.
    """
    import duckdb

    tables = HandbookTables(*(directory / f"{name}.parquet" for name in ("payments", "frauds", "decisions")))
    event, decision = _PAYMENT.format(time="occurred_at"), _PAYMENT.format(time="time")
    wanted = {
        tables.payments: f"select {event}, TX_AMOUNT as amount",
        tables.frauds: f"select {event}",
        tables.decisions: f"select {decision}, TX_AMOUNT as amount, TX_FRAUD as fraud",
    }
    source = str(transactions).replace("'", "''")
    with duckdb.connect() as connection:
        for path, select in wanted.items():
            rule = " where TX_FRAUD = 1" if path == tables.frauds else ""
            target = str(path).replace("'", "''")
            connection.execute(
                f"copy ({select} from read_parquet('{source}'){rule} order by TX_DATETIME, TRANSACTION_ID) "
                f"to '{target}' (format parquet)"
            )
    return tables
