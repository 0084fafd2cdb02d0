"""Which quantities have shifted at a look.

A quantity is a histogram per hour: the bins of a feature or score, the actions, or the hits and misses of a
rate. A look at hour t compares the window that ends at t with the same hours of earlier weeks, so that the
usual course of a day and of a week is no shift. A comparison of the last week with a reference finds changes
that are too slow for that.

The threshold depends on the sample size and on the quantity. The PSI of two samples of independent rows is
about (1/N + 1/M) chi-square. Real traffic varies more: days and hours differ. This part of the PSI does not
shrink with more rows, and is modelled as e chi-square with one degree of freedom, because usually one mean
wanders. e is estimated from the upper quartile of the PSI at the quantity's own earlier looks, on which a
short incident has no effect; its quantile is that of F, as e is estimated. The threshold is the sum of both
quantiles, each at half of the false-alarm rate. It is also at least a multiple of the variation between the
earlier weeks of the comparison, so that an incident among them is not reported again in the weeks after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from scorer.drift import shift
from scorer.drift.settings import WEEK, DetectionSettings
from scorer.stats.arrays import Bools, Floats, Ints

REFERENCE: Final = 0
"""Length of a comparison, in place of hours, that is of the last week with the reference."""
_DAY: Final = 24
GAP: Final = 72
"""Hours before a look that are left out of its history, so that slow changes do not raise it."""
_SPACING: Final = 6
"""Hours between the earlier looks from which the usual variation is estimated."""
_LEAST_HISTORY: Final = 28
"""Number of such looks, a week of them, below which a quantity is not judged by earlier weeks."""
_QUARTILE_OF_ONE: Final = 1.3233
"""Upper quartile of chi-square with one degree of freedom."""
_QUARTILE_OF_NORMAL: Final = 0.6745
"""Upper quartile of the normal distribution."""
_QUARTILE_EFFICIENCY: Final = 0.5
"""Degrees of freedom of a scale that is estimated by its upper quartile, relative to those by a mean."""
_LEAST_DEGREES: Final = 15.0
"""Least degrees of freedom of the usual variation. With fewer, the tail of F is so long that no change is
found in the first weeks."""
_ECHO: Final = 2.0
"""Multiple of the variation between earlier weeks. One deviating week among W has a variation of 1/W of its
squared deviation, and moves the PSI of later windows by 1/W² of it."""
_CHUNK: Final = 2_000_000
"""Number of counts of a window that are compared at a time."""


@dataclass(frozen=True)
class LeastChange:
    """Size that a change of a rate must have.

    Attributes:
        absolute: Least difference of the rates.
        relative: Least difference relative to the rate of the reference.
    """

    absolute: float
    relative: float = 0.0


@dataclass(frozen=True)
class WindowFigures:
    """Figures of one window length at some looks, `[T, F]` each.

    Attributes:
        psi: PSI of the window against its reference; NaN if there are too few rows.
        free: Degrees of freedom.
        noise: The PSI that one unit of chi-square corresponds to; 0 without rows.
        local: PSI of an earlier week against the others beyond that by chance, on average.
        rows: Rows of the window.
        reference_rows: Rows of the reference.
        hits: Rows of the window in the first bin.
        reference_hits: Rows of the reference in the first bin.
    """

    psi: Floats
    free: Floats
    noise: Floats
    local: Floats
    rows: Floats
    reference_rows: Floats
    hits: Floats
    reference_hits: Floats

    def take(self, places: Ints) -> WindowFigures:
        """Return the figures of some of the looks."""
        return WindowFigures(*(getattr(self, one.name)[places] for one in fields(self)))


@dataclass(frozen=True)
class WindowVerdict:
    """The verdict of one comparison at some looks, `[T, F]` each.

    Attributes:
        hours: Length of the window; `REFERENCE`: a week against the reference.
        figures: The figures of the window.
        threshold: PSI from which on the quantity counts as shifted; infinite if it is not judged. For a rate
            the exact test must agree.
        shifted: Whether the quantity has shifted.
    """

    hours: int
    figures: WindowFigures
    threshold: Floats
    shifted: Bools

    @property
    def judged(self) -> Bools:
        """Whether there are enough rows and history."""
        return np.isfinite(self.threshold)


def cumulative(counts: Floats) -> Floats:
    """Return the counts of all hours before each one, `[H + 1, F, B]`, of hourly counts `[H, F, B]`."""
    counts = np.asarray(counts, dtype=np.float64)
    return np.concatenate([np.zeros((1, *counts.shape[1:])), np.cumsum(counts, axis=0)])


def judge(
    sums: Floats, looks: Ints, settings: DetectionSettings, alpha: float, *, rate: LeastChange | None = None
) -> list[WindowVerdict]:
    """Compare each window length with the same hours of earlier weeks.

    Args:
        sums: `[H + 1, F, B]` of `cumulative`. For a rate, the first of two bins has the hits.
        looks: `[T]` hours, from 1 to H; a window ends before the hour.
        settings: Windows, weeks and least sizes.
        alpha: False-alarm rate of one comparison.
        rate: The quantities are rates, whose change must have this size; None: they are distributions.
    """
    offsets = GAP + _SPACING * np.arange(1, settings.history_days * _DAY // _SPACING + 1)
    needed = np.unique(looks[None, :] - np.concatenate([[0], offsets])[:, None])
    verdicts = []
    for hours in settings.windows_hours:
        every = _all_figures(sums, needed, hours, settings, is_rate=rate is not None)
        own = every.take(np.searchsorted(needed, looks))
        usual, count = _quartiles(_beyond_chance(every), needed, looks, offsets)
        # Longer windows overlap, so they are fewer independent ones.
        independent = count * min(1.0, 2 * _SPACING / hours)
        history = np.maximum(_QUARTILE_EFFICIENCY * independent, _LEAST_DEGREES)
        varies = usual / _QUARTILE_OF_ONE * shift.excess_critical(alpha / 2, history)
        judged = (count >= _LEAST_HISTORY) & np.isfinite(own.psi)
        verdicts.append(_verdict(hours, own, judged, varies, settings.least_psi, alpha, rate))
    return verdicts


def judge_reference(
    sums: Floats,
    looks: Ints,
    reference: Floats,
    settings: DetectionSettings,
    alpha: float,
    *,
    begin: int = 0,
    rate: LeastChange | None = None,
) -> WindowVerdict:
    """Compare the week before each look with a reference.

    Args:
        sums: `[H + 1, F, B]` of `cumulative`.
        looks: `[T]` hours, from 1 to H.
        reference: `[F, B]` counts. A quantity without counts is not judged.
        settings: Least rows and sizes.
        alpha: False-alarm rate of one comparison.
        begin: Hour at which the window must begin or later: the end of a reference that is a part of `sums`.
        rate: The quantities are rates, whose change must have this size; None: they are distributions.
    """
    window = _window(sums, looks, WEEK)
    window[looks - WEEK < begin] = 0
    days = np.stack([_window(sums, looks - _DAY * day, _DAY) for day in range(7)])
    whole = np.broadcast_to(reference, window.shape)
    figures = _figures(window, whole, days, settings.least_rows, is_rate=rate is not None)
    # Days of a week differ by their own course, and seven of them even it out.
    degrees = np.full(figures.psi.shape, _LEAST_DEGREES)
    varies = figures.local / 7 * shift.excess_critical(alpha / 2, degrees)
    judged = np.isfinite(figures.psi)
    return _verdict(REFERENCE, figures, judged, varies, settings.least_reference_psi, alpha, rate)


def _verdict(
    hours: int,
    own: WindowFigures,
    judged: Bools,
    varies: Floats,
    least: float,
    alpha: float,
    rate: LeastChange | None,
) -> WindowVerdict:
    by_chance = own.noise * shift.chi_square_critical(alpha / 2, own.free)
    if hours != REFERENCE:
        varies = np.maximum(varies, _ECHO * own.local)
    threshold = np.where(judged, by_chance + varies, np.inf)
    if rate is None:
        threshold = np.maximum(threshold, least)
        return WindowVerdict(hours, own, threshold, judged & (own.psi >= threshold))
    before = own.reference_hits / np.maximum(own.reference_rows, 1)
    change = np.abs(own.hits / np.maximum(own.rows, 1) - before)
    # For rare hits the exact test takes the place of chi-square.
    shifted = judged & (change >= np.maximum(rate.absolute, rate.relative * before)) & (own.psi >= varies)
    shifted[shifted] = (
        shift.rate_chance(
            own.hits[shifted],
            own.rows[shifted],
            own.reference_hits[shifted],
            own.reference_rows[shifted],
        )
        < alpha / 2
    )
    return WindowVerdict(hours, own, threshold, shifted)


def _all_figures(
    sums: Floats, looks: Ints, hours: int, settings: DetectionSettings, *, is_rate: bool
) -> WindowFigures:
    parts = []
    for some in _chunks(looks, sums[0].size * (settings.weeks + 1)):
        window = _window(sums, some, hours)
        earlier = np.stack(
            [_window(sums, some - WEEK * week, hours) for week in range(1, settings.weeks + 1)]
        )
        reference = earlier.sum(axis=0)
        reference[(earlier.sum(axis=-1) > 0).sum(axis=0) < 2] = 0
        parts.append(_figures(window, reference, earlier, settings.least_rows, is_rate=is_rate))
    columns = [[getattr(part, one.name) for part in parts] for one in fields(WindowFigures)]
    return WindowFigures(*(np.concatenate(column) for column in columns))


def _figures(
    window: Floats, reference: Floats, samples: Floats, least_rows: int, *, is_rate: bool
) -> WindowFigures:
    pair = shift.pooled(reference, window, least=0.0 if is_rate else shift.LEAST_EXPECTED)
    rows, reference_rows = window.sum(axis=-1), reference.sum(axis=-1)
    enough = (rows >= least_rows) & (reference_rows >= least_rows)
    noise = np.where(enough, pair.noise, 0.0)
    return WindowFigures(
        np.where(enough, shift.psi(pair), np.nan),
        pair.free,
        noise,
        shift.excess_variation(samples),
        rows,
        reference_rows,
        window[..., 0],
        reference[..., 0],
    )


def _window(sums: Floats, ends: Ints, hours: int) -> Floats:
    """Return the counts of the hours before each end, `[T, F, B]`; 0 if they are not all within the sums."""
    last = len(sums) - 1
    inside = (ends >= hours) & (ends <= last)
    found = sums[np.clip(ends, 0, last)] - sums[np.clip(ends - hours, 0, last)]
    found[~inside] = 0
    return found


def _beyond_chance(figures: WindowFigures) -> Floats:
    """Return the PSI beyond its upper quartile by chance, at least 0; NaN if it is not known."""
    # Wilson and Hilferty's quantile of chi-square.
    part = 2 / (9 * np.maximum(figures.free, 1))
    usual = figures.free * (1 - part + _QUARTILE_OF_NORMAL * np.sqrt(part)) ** 3 * figures.noise
    return np.maximum(figures.psi - usual, 0)


def _quartiles(excess: Floats, known: Ints, looks: Ints, offsets: Ints) -> tuple[Floats, Floats]:
    """Return the upper quartiles of earlier looks without NaN, and their numbers, `[T, F]`; 0 without values.

    Args:
        excess: `[K, F]` values of the looks in `known`.
        known: `[K]` hours, ascending.
        looks: `[T]` hours.
        offsets: `[J]` hours between a look and its earlier ones.
    """
    quartiles, counts = [], []
    for some in _chunks(looks, len(offsets) * excess.shape[1]):
        past = excess[np.searchsorted(known, some[None, :] - offsets[:, None])]
        count = np.isfinite(past).sum(axis=0)
        ordered = np.sort(np.where(np.isfinite(past), past, np.inf), axis=0)
        place = np.minimum(3 * count // 4, len(past) - 1)
        quartiles.append(np.where(count > 0, np.take_along_axis(ordered, place[None], 0)[0], 0))
        counts.append(count.astype(np.float64))
    return np.concatenate(quartiles), np.concatenate(counts)


def _chunks(looks: Ints, size: int) -> Iterator[Ints]:
    step = max(1, _CHUNK // max(size, 1))
    for begin in range(0, len(looks), step):
        yield looks[begin : begin + step]
