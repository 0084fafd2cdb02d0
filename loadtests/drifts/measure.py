"""Measures of drift detection: false alerts of stable features, and delays of planted changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadtests.drifts import worlds
from loadtests.drifts.worlds import DAY, WorldPlan
from scorer.drift.detection import LeastChange, cumulative, judge, judge_reference
from scorer.drift.settings import WEEK, DetectionSettings
from scorer.drift.trigger import alert_hours, tripped
from scorer.stats.arrays import Bools, Floats, Ints

QUANTITIES: Final = 200
"""Number of quantities that the false-alarm budget is divided by."""
REFERENCE_WEEKS: Final = 4
FIRST: Final = (4 * 7 + 3 + 8) * DAY
"""Hour of the first look with four earlier weeks and enough history."""
MATURES: Final = 7 * DAY
"""Hours after which the outcomes of decisions are counted."""
REPORTS: Final = 3 * DAY
"""Median delay of reports, hours."""
_MONTH: Final = 30 * DAY


@dataclass(frozen=True)
class Planted:
    """A kind of change.

    Attributes:
        name: What changes.
        hours: Stated delay within which it must be found.
    """

    name: str
    hours: int


KINDS: Final = (
    Planted("sudden: 0.5 standard deviations", DAY),
    Planted("gradual: 1 standard deviation in 14 days", 10 * DAY),
    Planted("seasonal: 1 standard deviation at night", 2 * DAY),
    Planted("broken feature: missing", 12),
    Planted("broken feature: one constant", 12),
    Planted("broken feature: 5 % missing", 2 * DAY),
    Planted("unseen category in 3 %", 2 * DAY),
    Planted("new fraud scenario: rate doubled", MATURES + 3 * DAY),
    Planted("delay of labels doubled", REPORTS + 3 * DAY),
)


@dataclass(frozen=True)
class FoundDelays:
    """Results of one kind of change.

    Attributes:
        kind: The change and its stated delay.
        delays: Hours until each planted change was found; infinite: it was not found.
    """

    kind: Planted
    delays: tuple[float, ...]

    @property
    def found(self) -> int:
        """Number of changes that were found within the stated delay."""
        return sum(delay <= self.kind.hours for delay in self.delays)


def trips(
    counts: Floats,
    settings: DetectionSettings,
    *,
    rate: LeastChange | None = None,
    quantities: int = QUANTITIES,
    begin: int = FIRST,
) -> tuple[Ints, Bools]:
    """Return the looks of each hour from `begin` on, `[T]`, and what tripped, `[T, F]`.

    Args:
        counts: `[H, F, B]` counts of each hour.
        settings: The settings of the detection.
        rate: As in `scorer.drift.detection.judge`.
        quantities: Number of quantities that the budget is divided by.
        begin: First look.
    """
    sums, looks = cumulative(counts), np.arange(begin, len(counts) + 1)
    alpha = settings.alpha(quantities)
    shifted = np.zeros((len(looks), counts.shape[1]), dtype=bool)
    for verdict in judge(sums, looks, settings, alpha, rate=rate):
        shifted |= verdict.shifted
    end = REFERENCE_WEEKS * WEEK
    shifted |= judge_reference(sums, looks, sums[end], settings, alpha, begin=end, rate=rate).shifted
    return looks, tripped(shifted, settings.shifted_looks, settings.of_looks)


def false_alerts(
    months: int,
    settings: DetectionSettings,
    *,
    features: int = QUANTITIES,
    seed: int = 0,
    wander: float = 0.05,
) -> int:
    """Return the number of alerts of stable features in months of 30 days.

    Args:
        months: Judged months, after the history that detection needs.
        settings: The settings of the detection.
        features: Number of features.
        seed: Seed of the stream.
        wander: As in `WorldPlan`.
    """
    random = np.random.default_rng(seed)
    plan = WorldPlan(FIRST + months * _MONTH, features, wander=wander)
    counts = worlds.counts_of(worlds.volumes(plan, random), worlds.means(plan, random), random)
    looks, shifted = trips(counts, settings)
    return len(alert_hours(looks, shifted, [str(at) for at in range(features)], settings.cool_down_hours))


def planted(kind: Planted, repeats: int, settings: DetectionSettings, *, seed: int = 0) -> FoundDelays:
    """Plant a kind of change in streams of their own, at random hours, and measure when it is found.

    Args:
        kind: One of `KINDS`.
        repeats: Number of streams.
        settings: The settings of the detection.
        seed: Seed of the first stream.
    """
    delays = []
    for repeat in range(repeats):
        random = np.random.default_rng([seed, KINDS.index(kind), repeat])
        plan = WorldPlan(FIRST + 5 * WEEK, 1)
        at = int(random.integers(FIRST + DAY, FIRST + 2 * WEEK))
        delays.append(_delay(at, *_trips_of(kind, plan, at, settings, random)))
    return FoundDelays(kind, tuple(delays))


def _delay(at: int, looks: Ints, shifted: Bools) -> float:
    """Return the hours from a change to the first look that trips; infinite if there is none."""
    after = looks[shifted.any(axis=1) & (looks > at)]
    return float(after[0] - at) if len(after) else float("inf")


def _trips_of(
    kind: Planted, plan: WorldPlan, at: int, settings: DetectionSettings, random: np.random.Generator
) -> tuple[Ints, Bools]:
    rows, hours = worlds.volumes(plan, random), np.arange(plan.hours)
    changed = hours >= at
    moves: dict[int, Callable[[Floats, int], Floats]] = {
        0: worlds.sudden,
        1: worlds.gradual,
        2: worlds.seasonal,
    }
    number = KINDS.index(kind)
    if number in moves:
        return trips(worlds.counts_of(rows, moves[number](worlds.means(plan, random), at), random), settings)
    missing = LeastChange(settings.least_rate)
    match number:
        case 3:
            return trips(
                worlds.rate_counts(rows, np.where(changed, 1.0, 0.001), random), settings, rate=missing
            )
        case 4:
            counts = worlds.counts_of(rows, worlds.means(plan, random), random)
            counts[changed] = 0
            counts[changed, :, 0] = rows[changed, None]
            return trips(counts, settings)
        case 5:
            return trips(
                worlds.rate_counts(rows, np.where(changed, 0.051, 0.001), random), settings, rate=missing
            )
        case 6:
            return trips(
                worlds.rate_counts(rows, np.where(changed, 0.03, 0.0), random), settings, rate=missing
            )
    outcome = LeastChange(0.0, settings.least_ratio)
    if number == len(KINDS) - 2:
        share, later = np.where(changed, 2.0, 1.0) * plan.fraud_rate, MATURES
    else:
        # A lognormal delay: of the reports that came within its median, few come within half of it.
        share = np.where(changed, 0.083 / 0.5, 1.0) * plan.fraud_rate * plan.reported_share
        later = REPORTS
    cohorts = worlds.rate_counts(rows, share, random)
    # Outcomes are counted once they have matured, at the hour when they are known.
    known = np.concatenate([np.zeros((later, *cohorts.shape[1:])), cohorts])[: plan.hours]
    return trips(known, settings, rate=outcome, begin=FIRST + later)
