"""What is counted of one decision, as a function of the records that are known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from scorer.release.timeseries import cells
from scorer.release.timeseries.cells import ROWS
from scorer.stats.arrays import Ints

NO_CODE: Final = -1
"""In place of a code: the decision is not counted in this respect."""


class Decided(NamedTuple):
    """One record of a decision, as the file keeps it until its outcome is final."""

    key: int
    log: int
    sequence: int
    at: int
    series: int
    exec: int
    load: int
    score: int
    label: int
    flag: int


class LedgerReport(NamedTuple):
    """One reported outcome, as the file keeps it."""

    key: int
    log: int
    sequence: int
    rank: int
    positive: int
    counts: int
    kinds: str
    unknown: int
    """Series that it is counted in while its decision is not known."""
    received_at: int
    token_series: int
    token_at: int
    series: int
    """Series of outcomes that it belongs to; `NONE`: not known."""
    at: int


def contribution(
    decisions: Sequence[Decided], reports: Sequence[LedgerReport]
) -> Iterator[tuple[int, int, int]]:
    """Yield series, time and code of everything that is counted of one decision."""
    if decisions:
        one = min(decisions, key=order)
        for code in (ROWS, one.exec, one.load, one.score, one.label, one.flag):
            if code != NO_CODE:
                yield one.series, one.at, code
    countable = [one for one in reports if one.counts]
    if countable:
        best = min(countable, key=_precedence)
        if not best.series:
            yield best.unknown, best.received_at, cells.UNPLACED
        else:
            yield best.series, best.at, cells.REPORTED
            if best.positive:
                yield best.series, best.at, cells.POSITIVE
    elif reports:
        best = min(reports, key=_precedence)
        yield best.series or best.unknown, best.at if best.series else best.received_at, cells.UNPROVEN


def order(one: Decided) -> tuple[int, int, int]:
    """Return the sort key of records of one decision, of which the earliest counts."""
    return one.at, one.log, one.sequence


def _precedence(one: LedgerReport) -> tuple[int, int, int, int]:
    """Return the sort key of reports of one decision: of equal revisions, the first that was received."""
    return -one.rank, one.received_at, one.log, one.sequence


def single_decisions(rows: Sequence[Decided]) -> Ints:
    """Return the changes of counts by decisions of which no other record is known.

    Args:
        rows: One record of each decision.

    Returns:
        `[n, 4]` series, time in microseconds, code, and 1.
    """
    if not rows:
        return np.empty((0, 4), dtype=np.int64)
    table = np.array(rows, dtype=np.int64)
    at, series = table[:, 3], table[:, 4]
    codes = np.column_stack([np.full(len(table), ROWS), table[:, 5:10]])
    kept = codes != NO_CODE
    counts = kept.sum(axis=1)
    repeated = [np.repeat(series, counts), np.repeat(at, counts), codes[kept]]
    return np.column_stack([*repeated, np.ones(len(repeated[0]), np.int64)])


class CountDeltas:
    """Collects the changes of counts that a batch makes."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._arrays: list[Ints] = []

    def add(self, contribution: Iterator[tuple[int, int, int]], sign: int) -> None:
        """Add (1) or subtract (-1) the contribution of a decision."""
        self._rows += [(series, at, code, sign) for series, at, code in contribution]

    def extend(self, rows: Ints) -> None:
        """Add rows as `single_decisions` returns them."""
        self._arrays.append(rows)

    def all(self) -> Ints:
        """Return all changes, `[n, 4]` series, time in microseconds, code, sign."""
        own = np.array(self._rows, dtype=np.int64).reshape(-1, 4)
        return np.concatenate([own, *self._arrays])
