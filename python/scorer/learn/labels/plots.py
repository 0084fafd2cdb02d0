"""Plots of maturity curves as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from scorer.learn.labels.curves import DAY_MS, MaturityCurve
from scorer.learn.report.plots import BLUE, DARK, GREY, ORANGE, new_axes, svg

_TICKS: Final = (
    (1_000, "1 s"), (60_000, "1 min"), (3_600_000, "1 h"), (DAY_MS, "1 d"), (7 * DAY_MS, "7 d"),
    (30 * DAY_MS, "30 d"), (90 * DAY_MS, "90 d"), (365 * DAY_MS, "1 y"),
)  # fmt: skip
_COLOURS: Final = (BLUE, ORANGE, "#15803d", "#7c3aed", "#b45309", "#0e7490", "#be185d", "#4d7c0f")
_SHOWN: Final = 0.005
"""Share of the reports at which the axis of ages begins, a little before it."""
MOST_SEGMENTS: Final = len(_COLOURS)


def arrivals(curve: MaturityCurve) -> str:
    """Plot the share of decisions with a report by their age, with its bounds; positive ones apart."""
    figure, axes = new_axes()
    steps = curve.steps
    at = _ages(curve)
    _band(axes, at, steps.all_low, steps.all_high, BLUE)
    axes.plot(at, _from_zero(steps.all), color=BLUE, drawstyle="steps-post", label="any report")
    if curve.positive and curve.positive < curve.reports:
        _band(axes, at, steps.positive_low, steps.positive_high, ORANGE)
        axes.plot(
            at, _from_zero(steps.positive), color=ORANGE, drawstyle="steps-post", label="positive report"
        )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}" if value == 0 else f"{value:.2%}")
    axes.set_ylim(0)
    axes.set_ylabel("share of decisions")
    first = next(
        (at for at, share in zip(steps.at_ms, steps.all, strict=True) if share >= _SHOWN * steps.all[-1]), 0
    )
    _age_axis(axes, first, curve.horizon_ms)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return svg(figure)


def maturities(pooled: MaturityCurve, segments: Sequence[MaturityCurve]) -> str:
    """Plot the maturity by age: all decisions, and the segments that have curves of their own."""
    figure, axes = new_axes()
    for curve, colour in zip(segments[:MOST_SEGMENTS], _COLOURS, strict=False):
        value = "" if curve.segment is None else curve.segment.value
        axes.plot(
            _ages(curve), _maturity(curve), color=colour, linewidth=1, drawstyle="steps-post", label=value
        )
    axes.plot(
        _ages(pooled),
        _maturity(pooled),
        color=DARK,
        linewidth=1.6,
        drawstyle="steps-post",
        label="all decisions",
    )
    axes.axhline(0.95, color=GREY, linewidth=0.8, linestyle="--")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("maturity (dashed: 95 %)")
    every = [pooled, *segments[:MOST_SEGMENTS]]
    _age_axis(axes, min(one.age_of(_SHOWN) for one in every), max(one.horizon_ms for one in every))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return svg(figure)


def _ages(curve: MaturityCurve) -> list[int]:
    # A logarithmic axis has no zero: reports at the decision itself stand at one second.
    first = max(min(curve.steps.at_ms, default=1_000), 1_000)
    return [max(first // 2, 500), *(max(at, 1_000) for at in curve.steps.at_ms), curve.horizon_ms]


def _from_zero(values: Sequence[float]) -> list[float]:
    return [0.0, *values, values[-1] if values else 0.0]


def _maturity(curve: MaturityCurve) -> list[float]:
    return _from_zero(curve.maturity(np.array(curve.steps.at_ms, dtype=np.int64)).tolist())


def _band(axes: Any, at: Sequence[int], low: Sequence[float], high: Sequence[float], colour: str) -> None:
    lower, upper = _from_zero(low), _from_zero(high)
    axes.fill_between(at, lower, upper, step="post", color=colour, alpha=0.18, linewidth=0)


def _age_axis(axes: Any, first: int, high: int) -> None:
    low = max(first // 3, 500)
    axes.set_xscale("log")
    shown = [(at, name) for at, name in _TICKS if low <= at <= high]
    axes.set_xticks([at for at, _ in shown], [name for _, name in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)
    axes.set_xlabel("age of the decision")
