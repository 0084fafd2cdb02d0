"""Further features of a transaction: the customer's usual amounts, and what is known of terminal and card.

Every value uses only what a server would have at the time of the transaction:

* Amounts and times: transactions of the customer before this one. Of several at the same time, those before
  it in the table count.
* Labels: transactions that are at least `delay` days old, because a fraud is known only then.

A customer's usual amount is the mean of the earlier amounts that were not unusual themselves (at most `FAR`
times the usual amount at their time), so that frauds do not raise it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from examples.fraud.features import DELAY_DAYS, by_group, running_sums
from examples.fraud.transactions import DAY_MS, Transactions

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FAR: Final = 2.5
"""An amount is unusual if it is more than so many times the usual one."""
LARGE: Final = 220.0
"""A fraud of a larger amount is explained by the amount, and says nothing about the terminal."""
RECENT: Final = (1, 3, 7, 14)
CARD_KNOWN: Final = (7, 14)
KNOWN: Final = (7, 14, 28)
LONG_AGO: Final = 60.0
"""Days that stand for "never" and for everything longer ago."""

BEHAVIOUR: Final[tuple[str, ...]] = (
    "amount_ratio",
    "amount_above_mean",
    "amount_deviation",
    "customer_usual_amount",
    *(f"customer_unusual_{w}d" for w in RECENT),
    "customer_excess_14d",
    *(f"customer_fraud_{w}d" for w in CARD_KNOWN),
    *(f"terminal_plain_fraud_{w}d" for w in KNOWN),
    *(f"terminal_plain_share_{w}d" for w in KNOWN),
    "terminal_days_since_plain_fraud",
    "terminal_days_since_first_plain_fraud",
    "terminal_days_since_genuine",
    "terminal_fraud_run",
    "terminal_run_days",
)


def behaviour(transactions: Transactions, delay_days: int = DELAY_DAYS) -> npt.NDArray[np.float32]:
    """Compute the columns of `BEHAVIOUR`.

    Args:
        transactions: Transactions in order of time.
        delay_days: Number of days until a fraud is known.

    Returns:
        `[n, len(BEHAVIOUR)]` float32.
    """
    columns: dict[str, npt.NDArray[np.generic]] = {}
    ratio = _customer(transactions, delay_days, columns)
    plain = (transactions.fraud == 1) & (transactions.amount <= LARGE) & (ratio <= FAR)
    _terminal(transactions, delay_days, plain, columns)
    return np.stack([columns[name].astype(np.float32) for name in BEHAVIOUR], axis=1)


def _customer(
    transactions: Transactions, delay_days: int, columns: dict[str, npt.NDArray[np.generic]]
) -> Floats:
    """Add the features of the customer, and return `[n]` amounts over the usual amount."""
    reach = max(*RECENT, *CARD_KNOWN) + delay_days
    order, key = by_group(transactions.customer, transactions.time_ms, reach)
    amount, row = transactions.amount[order], np.arange(len(order))
    start = _starts(transactions.customer[order])
    count = row - start
    sums, squares = running_sums(amount), running_sums(amount * amount)
    # Without history, the mean of all earlier transactions of the table stands for the customer's.
    prior = _mean_before(transactions.amount)[order]
    mean = (sums[row] - sums[start] + prior) / (count + 1)
    variance = (squares[row] - squares[start]) / np.maximum(count, 1) - (
        (sums[row] - sums[start]) / np.maximum(count, 1)
    ) ** 2
    deviation = np.sqrt(np.maximum(variance, 0.0))
    usual = mean
    for _ in range(2):
        is_usual = amount <= FAR * usual
        usual_sums, usual_count = running_sums(amount * is_usual), running_sums(is_usual * 1.0)
        usual = (usual_sums[row] - usual_sums[start] + prior) / (usual_count[row] - usual_count[start] + 1)
    ratio = amount / np.maximum(usual, 0.01)
    unusual = running_sums((ratio > FAR) * 1.0)
    excess = running_sums(np.maximum(ratio - FAR, 0.0))
    columns |= {
        "customer_usual_amount": _scattered(order, usual),
        "amount_ratio": _scattered(order, ratio),
        "amount_above_mean": _scattered(order, amount - mean),
        "amount_deviation": _scattered(order, (amount - mean) / np.maximum(deviation, 1.0)),
    }
    for window in RECENT:
        first = np.searchsorted(key, key - window * DAY_MS, side="right")
        columns[f"customer_unusual_{window}d"] = _scattered(order, unusual[row] - unusual[first])
    columns["customer_excess_14d"] = _scattered(order, excess[row] - excess[first])
    frauds = running_sums(transactions.fraud[order] * 1.0)
    end = _known_until(key, delay_days)
    for window in CARD_KNOWN:
        first = np.searchsorted(key, key - (delay_days + window) * DAY_MS, side="right")
        columns[f"customer_fraud_{window}d"] = _scattered(order, frauds[end] - frauds[first])
    return np.asarray(_scattered(order, ratio))


def _terminal(
    transactions: Transactions,
    delay_days: int,
    plain: Bools,
    columns: dict[str, npt.NDArray[np.generic]],
) -> None:
    order, key = by_group(transactions.terminal, transactions.time_ms, max(KNOWN) + delay_days)
    start, row = _starts(transactions.terminal[order]), np.arange(len(order))
    fraud, is_plain = transactions.fraud[order] == 1, plain[order]
    plains = running_sums(is_plain * 1.0)
    end = _known_until(key, delay_days)
    for window in KNOWN:
        first = np.searchsorted(key, key - (delay_days + window) * DAY_MS, side="right")
        known = plains[end] - plains[first]
        columns[f"terminal_plain_fraud_{window}d"] = _scattered(order, known)
        columns[f"terminal_plain_share_{window}d"] = _scattered(order, known / np.maximum(end - first, 1))
    # Positions of the newest known fraud and genuine transaction of the terminal; -1: there is none.
    newest_plain = _newest(is_plain, end, start)
    newest_genuine = _newest(~fraud, end, start)
    # The known frauds after the newest known genuine transaction are a run.
    run_start = np.where(newest_genuine < 0, start, newest_genuine + 1)
    run = np.maximum(end - run_start, 0)
    first_plain = np.searchsorted(key, key - (delay_days + max(KNOWN)) * DAY_MS, side="right")
    oldest_plain = _oldest(is_plain, first_plain, end)
    columns |= {
        "terminal_days_since_plain_fraud": _scattered(order, _days_since(key, row, newest_plain)),
        "terminal_days_since_first_plain_fraud": _scattered(order, _days_since(key, row, oldest_plain)),
        "terminal_days_since_genuine": _scattered(order, _days_since(key, row, newest_genuine)),
        "terminal_fraud_run": _scattered(order, run),
        "terminal_run_days": _scattered(order, _days_since(key, row, np.where(run > 0, run_start, -1))),
    }


def _known_until(key: Ints, delay_days: int) -> Ints:
    """Return the end, `[n]`, of the rows of each group whose labels are known at a row."""
    if not delay_days:
        return np.arange(len(key))
    return np.asarray(np.searchsorted(key, key - delay_days * DAY_MS, side="right"))


def _newest(flags: Bools, end: Ints, start: Ints) -> Ints:
    """Return the last position before `end` with the flag, `[n]`, or -1 if the group has none."""
    last = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
    at = np.where(end > start, last[np.maximum(end - 1, 0)], -1)
    return np.where(at >= start, at, -1)


def _oldest(flags: Bools, first: Ints, end: Ints) -> Ints:
    """Return the first position in [first, end) with the flag, `[n]`, or -1."""
    n = len(flags)
    following = np.minimum.accumulate(np.where(flags, np.arange(n), n)[::-1])[::-1]
    at = np.append(following, n)[first]
    return np.where(at < end, at, -1)


def _days_since(key: Ints, row: Ints, at: Ints) -> Floats:
    days = np.where(at >= 0, (key[row] - key[np.maximum(at, 0)]) / DAY_MS, LONG_AGO)
    return np.minimum(days, LONG_AGO)


def _mean_before(values: Floats) -> Floats:
    """Return the mean of the values before each, `[n]`; for the first, the value itself."""
    sums = running_sums(values)
    count = np.arange(len(values))
    return np.where(count > 0, sums[:-1] / np.maximum(count, 1), values)


def _starts(group: Ints) -> Ints:
    """Return the position of the first row of each row's group, `[n]`, for rows in order of groups."""
    is_first = np.concatenate([[True], group[1:] != group[:-1]])
    return np.maximum.accumulate(np.where(is_first, np.arange(len(group)), 0))


def _scattered(order: npt.NDArray[np.intp], values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return values of rows in `order` in the order of the table."""
    out = np.empty(len(values), values.dtype)
    out[order] = values
    return out
