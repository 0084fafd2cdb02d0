"""The quantities of a lane on each of the last days, from the same counts and thresholds as its looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scorer.drift.counting import BundleFacts, CheckpointPlan
from scorer.drift.detection import GAP, cumulative, judge
from scorer.drift.quantities import LaneName, QuantityGroup, load
from scorer.drift.settings import WEEK, DriftSettings
from scorer.drift.state import DriftState
from scorer.stats.arrays import Floats, Ints

DAY = 24


@dataclass(frozen=True)
class DayShares:
    """Shares of the parts of one quantity on a day and in its reference.

    Attributes:
        parts: What each part is.
        before: Shares in the same hours of earlier weeks.
        after: Shares of the day.
    """

    parts: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]


@dataclass(frozen=True)
class LaneHistory:
    """Days of a lane, each judged by the window of a day at its end.

    Attributes:
        hours: `[D]` end of each day, hours since the Unix epoch.
        titles: Name of each quantity, `F`.
        psi: `[D, F]` PSI; NaN if it is not known.
        threshold: `[D, F]` PSI from which on a quantity counts as shifted; infinite if it was not judged.
        rates: `[D, F]` rate of the day for a rate; NaN for distributions.
        shares: Shares of the latest day, by quantity.
    """

    hours: Ints
    titles: tuple[str, ...]
    psi: Floats
    threshold: Floats
    rates: Floats
    shares: dict[str, DayShares]


def history(
    state: DriftState,
    lane: LaneName,
    plan: CheckpointPlan,
    bundles: BundleFacts,
    settings: DriftSettings,
    *,
    end: int,
    days: int,
    kinds: Sequence[str] = (),
) -> LaneHistory | None:
    """Return the last days of a lane; None if nothing was counted.

    Args:
        state: The file of the state.
        lane: The lane.
        plan: What is counted of its checkpoint.
        bundles: Reference scores of bundles.
        settings: The settings.
        end: End of the last day, hours since the Unix epoch.
        days: Number of days.
        kinds: Kinds of quantities; empty: all.

    Raises:
        LogError: The state cannot be read.
    """
    own = settings.detection.model_copy(update={"windows_hours": (DAY,)})
    hours = end - DAY * np.arange(days)[::-1]
    begin = int(hours[0]) - GAP - own.history_days * DAY - own.weeks * WEEK - DAY
    with state.reading() as connection:
        counts = None
        if connection is not None:
            counts = load(connection, lane, begin, end, plan, bundles, settings.detection)
    if counts is None:
        return None
    titles: list[str] = []
    columns: list[tuple[Floats, Floats, Floats]] = []
    shares: dict[str, DayShares] = {}
    alpha = settings.detection.alpha(counts.number)
    for group in counts.groups:
        if kinds and group.kind not in kinds:
            continue
        sums = cumulative(group.counts)
        (verdict,) = judge(sums, hours - begin, own, alpha, rate=group.rate)
        figures = verdict.figures
        rates = figures.hits / np.maximum(figures.rows, 1)
        rates[figures.rows == 0] = np.nan
        if group.rate is None:
            rates = np.full(figures.psi.shape, np.nan)
        columns.append((figures.psi, verdict.threshold, rates))
        for at in range(len(group.names)):
            titles.append(group.title(at))
            shares[titles[-1]] = _shares(group, at, sums, end - begin, own.weeks)
    if not titles:
        return None
    psi, threshold, rate = (np.hstack(column) for column in zip(*columns, strict=True))
    return LaneHistory(hours, tuple(titles), psi, threshold, rate, shares)


def _shares(group: QuantityGroup, at: int, sums: Floats, end: int, weeks: int) -> DayShares:
    window = sums[end, at] - sums[end - DAY, at]
    earlier = [sums[end - WEEK * one, at] - sums[end - WEEK * one - DAY, at] for one in range(1, weeks + 1)]
    reference = np.sum(earlier, axis=0)
    used = np.flatnonzero(window + reference)
    before, after = (part / max(float(part.sum()), 1.0) for part in (reference, window))
    return DayShares(
        tuple(group.label(at, code) for code in used.tolist()),
        tuple(before[used].tolist()),
        tuple(after[used].tolist()),
    )
