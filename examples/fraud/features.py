"""The fifteen features of a transaction, by the method of the Fraud Detection Handbook.

Windows look back from a transaction at time t and are half open, like the book's rolling windows:

* customer, w days: the customer's transactions in (t - w, t], including the current one. Of several
  transactions at the same time, a row counts itself and those before it in the table, as a server would have.
* terminal, w days: the terminal's transactions in (t - delay - w, t - delay]. A fraud is known only `delay`
  days after it happened, so later transactions are not used, not even in a count.

Every window is a pair of positions in a sorted array, found by binary search. Counts and sums are differences
of positions and of cumulative sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from examples.fraud.transactions import DAY_MS, Transactions
from scorer.learn.errors import DataError

WINDOWS = (1, 7, 30)
DELAY_DAYS = 7
# The book counts the hours 0 to 6 as night.
NIGHT_HOURS = 6

FEATURES: tuple[str, ...] = (
    "amount",
    "weekend",
    "night",
    *(f"customer_{what}_{w}d" for w in WINDOWS for what in ("count", "mean_amount")),
    *(f"terminal_{what}_{w}d" for w in WINDOWS for what in ("count", "risk")),
)

Ints = npt.NDArray[np.int64]


def features(transactions: Transactions, delay_days: int = DELAY_DAYS) -> npt.NDArray[np.float32]:
    """Compute the features of every transaction.

    Args:
        transactions: Transactions in order of time.
        delay_days: Number of days until a fraud is known.

    Returns:
        `[n, 15]` float32, in the order of `FEATURES`.
    """
    out = np.empty((len(transactions), len(FEATURES)), dtype=np.float32)
    day_number = transactions.time_ms // DAY_MS
    out[:, 0] = transactions.amount
    # Day 0 of the Unix epoch was a Thursday.
    out[:, 1] = (day_number + 3) % 7 >= 5
    out[:, 2] = transactions.time_ms % DAY_MS // 3_600_000 <= NIGHT_HOURS
    _customer_windows(transactions, out[:, 3:9])
    _terminal_windows(transactions, delay_days, out[:, 9:15])
    return out


def _customer_windows(transactions: Transactions, out: npt.NDArray[np.float32]) -> None:
    order, key = by_group(transactions.customer, transactions.time_ms, max(WINDOWS))
    sums = running_sums(transactions.amount[order])
    end = np.arange(1, len(order) + 1)
    for column, window in enumerate(WINDOWS):
        start = np.searchsorted(key, key - window * DAY_MS, side="right")
        count = end - start
        out[order, 2 * column] = count
        out[order, 2 * column + 1] = (sums[end] - sums[start]) / count


def _terminal_windows(transactions: Transactions, delay_days: int, out: npt.NDArray[np.float32]) -> None:
    order, key = by_group(transactions.terminal, transactions.time_ms, delay_days + max(WINDOWS))
    frauds = running_sums(transactions.fraud[order].astype(np.float64))
    known = key - delay_days * DAY_MS
    # Without a delay the window ends at the row itself, not at a later row of the same time.
    end = np.searchsorted(key, known, side="right") if delay_days else np.arange(1, len(order) + 1)
    for column, window in enumerate(WINDOWS):
        start = np.searchsorted(key, known - window * DAY_MS, side="right")
        count = end - start
        out[order, 2 * column] = count
        out[order, 2 * column + 1] = (frauds[end] - frauds[start]) / np.maximum(count, 1)


def by_group(group: Ints, time_ms: Ints, reach_days: int) -> tuple[npt.NDArray[np.intp], Ints]:
    """Order rows by group, then by time, and return the order with an ascending key for each row.

    The keys of different groups are further apart than any window is long, so a binary search over all rows
    never leaves its group.
    """
    _, code = np.unique(group, return_inverse=True)
    order = np.argsort(code, kind="stable")
    apart = int(time_ms[-1] - time_ms[0]) + (reach_days + 1) * DAY_MS
    groups = int(code.max()) + 1
    if groups > np.iinfo(np.int64).max // apart:
        raise DataError(f"{groups} customers or terminals over such a span do not fit; split the file")
    key = code.astype(np.int64) * apart + (time_ms - time_ms[0])
    return order, key[order]


def running_sums(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return cumulative sums with a leading 0, so that the sum over [a, b) is out[b] - out[a]."""
    out = np.zeros(len(values) + 1)
    np.cumsum(values, out=out[1:])
    return out


def column(name: str, names: Sequence[str] = FEATURES) -> int:
    """Return the column of a feature."""
    return names.index(name)
