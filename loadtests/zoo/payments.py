"""The payments for training and judging: the handbook's, or payments simulated by the same method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from examples.fraud.features import FEATURES, features
from examples.fraud.transactions import Transactions, read_transactions
from examples.simulators.transactions import TransactionPlan, simulate_transactions

DELAY_DAYS: Final = 7
"""Days until a fraud is known."""
_WARM_UP: Final = 37
"""Days before the first row with complete features: windows of 30 days, delayed by 7 days."""

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Payments:
    """Payments with features and labels, split into training, validation and judged payments.

    Attributes:
        name: Their source: `handbook` or `simulated`.
        rows: `[n, 15]` features as in serving.
        fresh: `[n, 15]` features that include frauds without delay, as a training set with leakage has them.
        stale: `[n, 15]` features that are 30 days late.
        fraud: `[n]` labels.
        scenario: `[n]` kind of fraud; 0: no fraud.
        day: `[n]` whole days since the first payment.
        at_ms: `[n]` milliseconds since the Unix epoch.
        train_days: Default number of training days.
        judged_days: Number of judged days, the last ones.
    """

    name: str
    rows: Rows
    fresh: Rows
    stale: Rows
    fraud: npt.NDArray[np.bool_]
    scenario: npt.NDArray[np.int64]
    day: npt.NDArray[np.int64]
    at_ms: npt.NDArray[np.int64]
    train_days: int
    judged_days: int

    def days(self, first: int, end: int) -> npt.NDArray[np.intp]:
        """Return the rows from day `first` to before day `end`."""
        low, high = np.searchsorted(self.day, (first, end))
        return np.arange(low, high)

    @property
    def last_day(self) -> int:
        """Number of days in the data."""
        return int(self.day[-1]) + 1

    @property
    def judged(self) -> npt.NDArray[np.intp]:
        """The rows of the judged days. Candidates are trained on earlier rows only."""
        return self.days(self.last_day - self.judged_days, self.last_day)

    @property
    def validation(self) -> npt.NDArray[np.intp]:
        """The rows of the last week whose labels are known when the judged days begin."""
        end = self.last_day - self.judged_days - DELAY_DAYS
        return self.days(end - 7, end)

    def training(self, days: int | None = None, *, earlier: int = 0) -> npt.NDArray[np.intp]:
        """Return the training rows.

        Args:
            days: Number of days before the validation week; None: `train_days`.
            earlier: Number of days by which the rows are older.
        """
        end = self.last_day - self.judged_days - DELAY_DAYS - 7 - earlier
        return self.days(max(end - (days or self.train_days), _WARM_UP if not earlier else 0), end)

    @staticmethod
    def column(name: str) -> int:
        """Return the column of a feature."""
        return FEATURES.index(name)


def handbook(file: Path) -> Payments:
    """Return the handbook's payments."""
    return _prepared("handbook", read_transactions(file), train_days=14, judged_days=28)


def simulated(*, customers: int = 5_000, days: int = 120, seed: int = 0) -> Payments:
    """Simulate payments by the method that the handbook describes."""
    # The number of frauds per customer is that of the handbook's data.
    plan = TransactionPlan(
        customers=customers,
        terminals=2 * customers,
        days=days,
        terminals_per_day=max(round(2 * customers / 5_000), 1),
        customers_per_day=max(round(3 * customers / 5_000), 1),
    )
    return _prepared("simulated", simulate_transactions(plan, seed), train_days=14, judged_days=28)


def _prepared(name: str, transactions: Transactions, *, train_days: int, judged_days: int) -> Payments:
    return Payments(
        name=name,
        rows=features(transactions, DELAY_DAYS),
        fresh=features(transactions, 0),
        stale=features(transactions, 30),
        fraud=transactions.fraud.astype(bool),
        scenario=transactions.scenario,
        day=transactions.day,
        at_ms=transactions.time_ms,
        train_days=train_days,
        judged_days=judged_days,
    )
