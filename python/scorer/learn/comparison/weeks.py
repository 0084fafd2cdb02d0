"""Weeks of decisions, from Monday 00:00 UTC, and whether their labels have matured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from scorer.stats.arrays import Bools, Floats, Ints

WEEK_MS: Final = 7 * 86_400_000
_MONDAY_MS: Final = 3 * 86_400_000
"""The Unix epoch is a Thursday, three days after a Monday."""


@dataclass(frozen=True)
class Week:
    """One week of decisions.

    Attributes:
        begin: Its Monday, such as 2026-03-02.
        decisions: Number of decisions, without declined ones.
        labelled: Of these, with a label that counts.
        positive: Of these, positive.
        declined: Decisions that ended the payment and have no label.
        maturity: Mean share of the labels of its decisions that have come by now, by the maturity curve.
        settled: Whether it is compared.
        reason: Why it is not.
    """

    begin: str
    decisions: int
    labelled: int
    positive: int
    declined: int
    maturity: float
    settled: bool
    reason: str = ""


def week_codes(time_ms: Ints) -> Ints:
    """Return the number of each week since the one of the Unix epoch, `[n]`."""
    return np.asarray((time_ms + _MONDAY_MS) // WEEK_MS, np.int64)


def week_begin_ms(code: int) -> int:
    """Return the beginning of a week, Unix time."""
    return code * WEEK_MS - _MONDAY_MS


def first_week(as_of_ms: int, weeks: int) -> int:
    """Return the first of a number of weeks of which the last one contains the moment."""
    return int(week_codes(np.array([as_of_ms], np.int64))[0]) - weeks + 1


def weeks_of(
    codes: Ints,
    *,
    first: int,
    count: int,
    as_of_ms: int,
    open_: Bools,
    used: Bools,
    positive: Bools,
    declined: Bools,
    maturity: Floats,
    least_maturity: float,
) -> tuple[Week, ...]:
    """Count the decisions of each week and state whether it is settled.

    Args:
        codes: `[n]` of `week_codes`.
        first: Code of the first week.
        count: Number of weeks.
        as_of_ms: The moment.
        open_: `[n]` whether a decision still waits for its label.
        used: `[n]` whether it has a label that counts.
        positive: `[n]` whether the label is positive.
        declined: `[n]` whether it ended the payment without a label.
        maturity: `[n]` share of the labels that have come at its age.
        least_maturity: Mean maturity from which on a week is settled.
    """
    place = codes - first
    inside = (place >= 0) & (place < count)

    def total(chosen: Bools) -> Ints:
        return np.bincount(place[inside & chosen], minlength=count)

    every, waiting = total(~declined), total(open_ & ~declined)
    summed = np.bincount(
        place[inside & ~declined], np.asarray(maturity, np.float64)[inside & ~declined], minlength=count
    )
    labelled, positives, stopped = total(used), total(used & positive), total(declined)
    found = []
    for at in range(count):
        begin = week_begin_ms(first + at)
        mean = float(summed[at] / every[at]) if every[at] else 0.0
        reason = _reason(
            int(every[at]), int(waiting[at]), int(labelled[at]), mean, least_maturity, begin, as_of_ms
        )
        found.append(
            Week(
                f"{datetime.fromtimestamp(begin / 1000, UTC):%Y-%m-%d}",
                int(every[at]),
                int(labelled[at]),
                int(positives[at]),
                int(stopped[at]),
                mean,
                not reason,
                reason,
            )
        )
    return tuple(found)


def _reason(
    decisions: int, waiting: int, labelled: int, maturity: float, least: float, begin: int, as_of_ms: int
) -> str:
    if begin + WEEK_MS > as_of_ms:
        return "not settled: the week has not ended"
    if not decisions:
        return "no decisions"
    if waiting:
        return f"not settled: {waiting:,} of {decisions:,} decisions wait for their label"
    if maturity < least:
        return f"not settled: {maturity:.1%} of the labels have come, {least:.0%} are needed"
    return "" if labelled else "no decision has a label that counts"
