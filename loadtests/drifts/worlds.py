"""Simulated hourly counts of features, missing values and outcomes, stable or with a planted change.

The value of a feature is normal around a mean that depends on the hour and the weekend. The mean also varies
at random from hour to hour, so that rows are not independent and counts vary more than those of independent
rows. Counts are drawn in ten bins of equal probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from scorer.stats.arrays import Floats

BINS: Final = 10
DAY: Final = 24
_NIGHT: Final = 6
_MEMORY: Final = 0.95
"""Correlation of the random part of the mean between two hours."""


@dataclass(frozen=True)
class WorldPlan:
    """Size and variation of a simulated stream.

    Attributes:
        hours: Length of the stream.
        features: Number of features.
        rows_per_hour: Mean number of rows of an hour.
        wander: Standard deviation of the random part of a feature's mean, in those of its values.
        fraud_rate: Share of rows with a positive outcome.
        reported_share: Share of positive outcomes that are reported within their usual median delay.
    """

    hours: int
    features: int
    rows_per_hour: float = 400.0
    wander: float = 0.05
    fraud_rate: float = 0.01
    reported_share: float = 0.5


def volumes(plan: WorldPlan, random: np.random.Generator) -> Floats:
    """Return the number of rows of each hour, `[H]`: fewer at night and on weekends."""
    hour = np.arange(plan.hours)
    daily = 1 + 0.7 * np.sin(2 * np.pi * (hour % DAY - 8) / DAY)
    weekend = np.where(hour // DAY % 7 >= 5, 0.8, 1.0)
    return random.poisson(plan.rows_per_hour * daily * weekend).astype(np.float64)


def means(plan: WorldPlan, random: np.random.Generator) -> Floats:
    """Return the mean of each feature in each hour, `[H, F]`."""
    hour = np.arange(plan.hours)[:, None]
    size, phase = random.uniform(0, 0.5, plan.features), random.uniform(0, 2 * np.pi, plan.features)
    regular = size * np.sin(2 * np.pi * hour / DAY + phase)
    regular = regular + np.where(hour // DAY % 7 >= 5, random.normal(0, 0.2, plan.features), 0)
    steps = random.normal(0, plan.wander * np.sqrt(1 - _MEMORY**2), (plan.hours, plan.features))
    wander = np.empty_like(steps)
    state = random.normal(0, plan.wander, plan.features)
    for at in range(plan.hours):
        state = _MEMORY * state + steps[at]
        wander[at] = state
    return np.asarray(regular + wander)


def counts_of(rows: Floats, mean: Floats, random: np.random.Generator) -> Floats:
    """Draw the counts of the bins, `[H, F, 10]`, of `rows[H]` values around each mean `[H, F]`."""
    inner = special.ndtri(np.arange(1, BINS) / BINS)
    below = special.ndtr(inner - mean[..., None])
    edges = [np.zeros((*mean.shape, 1)), below, np.ones((*mean.shape, 1))]
    shares = np.maximum(np.diff(np.concatenate(edges, axis=-1), axis=-1), 0)
    shares /= shares.sum(axis=-1, keepdims=True)
    return random.multinomial(rows.astype(np.int64)[:, None], shares).astype(np.float64)


def sudden(mean: Floats, at: int) -> Floats:
    """Move a feature by half a standard deviation from an hour on."""
    return _moved(mean, np.where(np.arange(len(mean)) >= at, 0.5, 0.0))


def gradual(mean: Floats, at: int) -> Floats:
    """Move a feature by one standard deviation within two weeks."""
    return _moved(mean, np.clip((np.arange(len(mean)) - at) / (14 * DAY), 0, 1))


def seasonal(mean: Floats, at: int) -> Floats:
    """Move a feature by one standard deviation in the hours from 0 to 6 only, from an hour on."""
    hour = np.arange(len(mean))
    return _moved(mean, np.where((hour >= at) & (hour % DAY < _NIGHT), 1.0, 0.0))


def rate_counts(rows: Floats, share: Floats | float, random: np.random.Generator) -> Floats:
    """Draw the hits and misses of a rate, `[H, 1, 2]`."""
    hits = random.binomial(rows.astype(np.int64), share).astype(np.float64)
    return np.stack([hits, rows - hits], axis=-1)[:, None]


def _moved(mean: Floats, by: Floats) -> Floats:
    return np.asarray(mean + by[:, None])
