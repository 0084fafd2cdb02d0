"""The fifteen features of a transaction, after the Fraud Detection Handbook.

Windows look back from a transaction at time t and are half open, as the
book's rolling windows are:

* customer, w days: the customer's transactions in (t - w, t], the current one
  included. Of several at the same time, a row sees those before it in the
  table and itself, which is what a server would have seen.
* terminal, w days: the terminal's transactions in (t - delay - w, t - delay].
  A fraud is known only `delay` days after it happened, so nothing later may
  enter, not even a count.

Every window is a pair of positions in a sorted array, found by binary search;
counts and sums are then differences of positions and of cumulative sums.
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
    """Computes the features of every transaction.

    Args:
        transactions: in order of time.
        delay_days: days until a fraud is known.

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
    order, key = _by_group(transactions.customer, transactions.time_ms, max(WINDOWS))
    sums = _running(transactions.amount[order])
    end = np.arange(1, len(order) + 1)
    for column, window in enumerate(WINDOWS):
        start = np.searchsorted(key, key - window * DAY_MS, side="right")
        count = end - start
        out[order, 2 * column] = count
        out[order, 2 * column + 1] = (sums[end] - sums[start]) / count


def _terminal_windows(transactions: Transactions, delay_days: int, out: npt.NDArray[np.float32]) -> None:
    order, key = _by_group(transactions.terminal, transactions.time_ms, delay_days + max(WINDOWS))
    frauds = _running(transactions.fraud[order].astype(np.float64))
    known = key - delay_days * DAY_MS
    # With no delay the window ends at the row itself, not at a later row of the same time.
    end = np.searchsorted(key, known, side="right") if delay_days else np.arange(1, len(order) + 1)
    for column, window in enumerate(WINDOWS):
        start = np.searchsorted(key, known - window * DAY_MS, side="right")
        count = end - start
        out[order, 2 * column] = count
        out[order, 2 * column + 1] = (frauds[end] - frauds[start]) / np.maximum(count, 1)


def _by_group(group: Ints, time_ms: Ints, reach_days: int) -> tuple[npt.NDArray[np.intp], Ints]:
    """Orders rows by group, then time, and gives each a key that grows along that order.

    Groups lie further apart on the key's axis than any window reaches, so one
    binary search over all rows never leaves its group.
    """
    _, code = np.unique(group, return_inverse=True)
    order = np.argsort(code, kind="stable")
    apart = int(time_ms[-1] - time_ms[0]) + (reach_days + 1) * DAY_MS
    groups = int(code.max()) + 1
    if groups > np.iinfo(np.int64).max // apart:
        raise DataError(f"{groups} customers or terminals over such a span do not fit; split the file")
    key = code.astype(np.int64) * apart + (time_ms - time_ms[0])
    return order, key[order]


def _running(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Cumulative sums with a leading 0, so that [a, b) sums to out[b] - out[a]."""
    out = np.zeros(len(values) + 1)
    np.cumsum(values, out=out[1:])
    return out


def column(name: str, names: Sequence[str] = FEATURES) -> int:
    """The column of a feature."""
    return names.index(name)
