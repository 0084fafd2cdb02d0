"""Differences of a data set to the last one with the same name and purpose."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from scorer.drift.shift import chi_square_critical, pooled, psi
from scorer.learn.datasets.records import CountedColumn, DatasetRecord
from scorer.learn.findings import DataFinding

LEAST_PSI: Final = 0.1
"""Smallest PSI that is reported."""
_ALPHA: Final = 0.01
"""Probability that a data set without a change has any finding of drift."""


def compare(
    new: DatasetRecord, in_old_bins: Sequence[CountedColumn], old: DatasetRecord
) -> list[DataFinding]:
    """Return the differences to an earlier data set.

    A distribution has changed if its PSI is at least 0.1 and above what chance explains at these numbers of
    rows, corrected for the number of columns.

    Args:
        new: The data set.
        in_old_bins: Its counts in the bins of the earlier one.
        old: The earlier data set.
    """
    found = []
    before, after = ({one.name: one for one in record.features} for record in (old, new))
    if before != after:
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        found.append(_finding("schema", f"features that differ from {_short(old)}: {', '.join(names)}"))
    counts = {one.name: one.counts for one in old.columns}
    shared = [one for one in in_old_bins if one.name in counts]
    for column in shared:
        # The last code counts unseen values a second time, which are in their bins as well.
        pair = pooled(counts[column.name][:-1], column.counts[:-1])
        critical = float(chi_square_critical(_ALPHA / len(shared), pair.free) * pair.noise)
        value = float(psi(pair))
        if np.isfinite(critical) and value >= max(LEAST_PSI, critical):
            text = f'"{column.name}" has a PSI of {value:.2f} to {_short(old)}; find the cause before use'
            found.append(_finding(f"drift {column.name}", text))
    return found


def overlaps(new: DatasetRecord, others: Sequence[DatasetRecord]) -> list[DataFinding]:
    """Return a finding for each data set of the other role whose time window overlaps.

    Args:
        new: A data set for training or evaluation.
        others: Data sets with the same name.
    """
    role = {"training": "evaluation", "evaluation": "training"}.get(new.purpose)
    found = []
    for other in others:
        times = (new.begins_ms, new.ends_ms, other.begins_ms, other.ends_ms)
        if other.purpose != role or any(moment is None for moment in times):
            continue
        begin, end, low, high = (moment or 0 for moment in times)
        if begin <= high and low <= end:
            days = " to ".join(
                f"{datetime.fromtimestamp(moment / 1000, UTC):%Y-%m-%d}" for moment in (low, high)
            )
            text = f"the window overlaps the {role} data {_short(other)} ({days}); separate them by time"
            found.append(_finding("window", text))
    return found


def _finding(name: str, text: str) -> DataFinding:
    return DataFinding(name=name, effect="reported", count=1, text=text)


def _short(record: DatasetRecord) -> str:
    return record.digest.removeprefix("sha256:")[:12]
