"""The transactions that train a fraud model and those that evaluate it.

The protocol is the book's: a block of training days, a delay in which frauds are not known yet, and a block
of test days. Customers who are known to be compromised when a test day begins are left out of that day,
because their cards are blocked by then.

    ── training ──┬── calibration ──┬── delay ──┬── test ──
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from examples.fraud.transactions import Transactions
from scorer.learn.errors import DataError

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Days:
    """A block of days [first, end), as numbers of `Transactions.day`."""

    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first

    def rows(self, transactions: Transactions) -> Rows:
        """Return the positions of the transactions of these days."""
        first, end = np.searchsorted(transactions.day, [self.first, self.end])
        return np.arange(first, end)


@dataclass(frozen=True)
class Split:
    """The blocks of days of one training run."""

    training: Days
    calibration: Days
    test: Days

    def describe(self, transactions: Transactions) -> str:
        """Return the blocks as dates for display, including the last day."""
        blocks = [("train", self.training), ("calibrate", self.calibration), ("test", self.test)]
        return " · ".join(
            f"{name} {transactions.date(block.first)}..{transactions.date(block.end - 1)}"
            for name, block in blocks
        )


@dataclass(frozen=True)
class SplitPlan:
    """Number of days of each block.

    Attributes:
        training: Largest number of training days.
        calibration: Largest number of calibration days. In shorter data it is a quarter of the known days.
        delay: Number of days until a fraud is known.
        test: Number of test days.
        least_training: Smallest number of training days.
        least_calibration: Smallest number of calibration days.
    """

    training: int = 28
    calibration: int = 7
    delay: int = 7
    test: int = 7
    least_training: int = 7
    least_calibration: int = 3

    @property
    def least(self) -> int:
        """Number of days that a split needs."""
        return self.least_training + self.least_calibration + self.delay + self.test

    def last(self, transactions: Transactions) -> Split:
        """Return the split whose test block is the last days of the data."""
        return self.earlier(transactions, 0)

    def earlier(self, transactions: Transactions, days: int) -> Split:
        """Return the split as of `days` days earlier, evaluated on the same last days.

        Raises:
            DataError: The data is too short.
        """
        end = transactions.days
        known = end - self.test - self.delay - days
        calibration = min(self.calibration, max(self.least_calibration, known // 4))
        if known - calibration < self.least_training:
            raise DataError(
                f"the transactions cover {end} days and at least {self.least + days} are needed"
                f" ({self.least_training} to train, {self.least_calibration} to calibrate,"
                f" {self.delay} of delay, {self.test} to test{f', {days} between versions' if days else ''});"
                " give a longer period"
            )
        first = known - calibration
        return Split(
            training=Days(max(0, first - self.training), first),
            calibration=Days(first, known),
            test=Days(end - self.test, end),
        )


def without_known(transactions: Transactions, known_from: Days, test: Days, delay: int) -> Rows:
    """Return the test rows, for each day without the customers known by then to be compromised.

    Args:
        transactions: All transactions.
        known_from: The days whose frauds are known when the test begins.
        test: The test days.
        delay: Number of days until a fraud is known. On every test day the frauds of one more day become
            known.

    Returns:
        Positions of the remaining rows, in order of time.
    """
    fraud = transactions.fraud == 1
    rows = known_from.rows(transactions)
    known = np.unique(transactions.customer[rows[fraud[rows]]])
    kept = []
    for day in range(test.first, test.end):
        rows = Days(day - delay - 1, day - delay).rows(transactions)
        known = np.union1d(known, transactions.customer[rows[fraud[rows]]])
        rows = Days(day, day + 1).rows(transactions)
        kept.append(rows[~np.isin(transactions.customer[rows], known)])
    return np.concatenate(kept)
