"""Figures of drift over time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from scorer.drift.history import LaneHistory
from scorer.figure import Figure
from scorer.figure_style import BAD, LIVE, SEQUENTIAL, SHADOW, axis, layout, percent, scatter

_MOST: Final = 40
"""Quantities in the overview: those nearest to their thresholds."""
_ROW_PX: Final = 18
_SCALE: Final = [[2 / 3 * at / (len(SEQUENTIAL) - 1), one[1]] for at, one in enumerate(SEQUENTIAL)]
"""Colours up to the threshold, which is at two thirds of the scale."""


def overview(found: LaneHistory) -> Figure:
    """Return the PSI of each quantity relative to its threshold, by day."""
    near = _nearness(found)
    order = np.argsort(-np.nan_to_num(near, nan=0.0).max(axis=0), kind="stable")[:_MOST][::-1]
    days = [_day(hour) for hour in found.hours.tolist()]
    names = [found.titles[at] for at in order.tolist()]
    values = [[_known(value) for value in near[:, at].tolist()] for at in order.tolist()]
    rows: list[tuple[Any, ...]] = [
        (day, name, _known(found.psi[place, at]), _known(found.threshold[place, at]), near_of)
        for at, name, own in zip(order.tolist(), names, values, strict=True)
        for place, (day, near_of) in enumerate(zip(days, own, strict=True))
    ]
    trace = {
        "type": "heatmap",
        "x": days,
        "y": names,
        "z": values,
        "zmin": 0,
        "zmax": 1.5,
        "colorscale": [*_SCALE, [2 / 3, BAD], [1, BAD]],
        "colorbar": {"title": {"text": "of threshold"}, "tickformat": ".0%"},
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y}<br>%{x}: %{z:.0%} of its threshold<extra></extra>",
    }
    above = sorted({name for _, name, *_, value in rows if value is not None and value >= 1})
    words = (
        f"{len(above)} of {len(found.titles)} quantities reached their threshold on a day"
        f"{': ' + ', '.join(above[:5]) if above else ''}. A cell without colour was not judged."
    )
    height = max(320, 120 + _ROW_PX * len(names))
    plot = layout(axis("day that ends, UTC", type="date"), axis("", type="category", dtick=1), height=height)
    columns = ("day", "quantity", "psi", "threshold", "of_threshold")
    plotly = {"data": [trace], "layout": plot | {"hovermode": "closest"}}
    return Figure("overview", "Drift of all quantities", words, plotly, columns, rows)


def course(found: LaneHistory, quantity: str) -> Figure:
    """Return the PSI of a quantity with its threshold, by day."""
    at = found.titles.index(quantity)
    days = [_day(hour) for hour in found.hours.tolist()]
    psi = [_known(value) for value in found.psi[:, at].tolist()]
    threshold = [_known(value) for value in found.threshold[:, at].tolist()]
    rates = [_known(value) for value in found.rates[:, at].tolist()]
    rows = list(zip(days, psi, threshold, rates, strict=True))
    data = [
        {**scatter(days, psi, "PSI", line={"color": LIVE, "width": 2.5}), "mode": "lines+markers"},
        scatter(days, threshold, "threshold", line={"color": BAD, "width": 2, "dash": "dash"}),
    ]
    latest = next((row for row in reversed(rows) if row[1] is not None), None)
    if latest is None:
        words = "There are not enough rows to compare a day with earlier weeks yet."
    else:
        limit = "not judged yet" if latest[2] is None else f"the threshold is {latest[2]:.3f}"
        words = f"PSI {latest[1]:.3f} on the latest day; {limit}."
        if latest[3] is not None:
            words += f" The rate was {percent(latest[3], 2)}."
    plot = layout(axis("day that ends, UTC", type="date"), axis("PSI", rangemode="tozero"))
    columns = ("day", "psi", "threshold", "rate")
    return Figure("course", f"Drift of {quantity}", words, {"data": data, "layout": plot}, columns, rows)


def shares(found: LaneHistory, quantity: str) -> Figure:
    """Return the shares of the parts of a quantity on the latest day and in the same hours before."""
    own = found.shares[quantity]
    rows = list(zip(own.parts, own.before, own.after, strict=True))
    data = [
        # Horizontal bars, because the names of bins and categories are long.
        {"type": "bar", "orientation": "h", "y": list(own.parts), "x": list(values), "name": name}
        | {"marker": {"color": colour}, "hovertemplate": "%{x:.2%}"}
        for name, values, colour in (("earlier weeks", own.before, LIVE), ("latest day", own.after, SHADOW))
    ]
    words = "No row of the latest day can be compared."
    if rows and sum(own.before) and sum(own.after):
        part, before, after = max(rows, key=lambda row: abs(row[2] - row[1]))
        words = f"The share of {part} changed most: from {percent(before)} to {percent(after)}."
    plot = layout(
        axis("share of rows", tickformat=".0%", rangemode="tozero"),
        axis("", type="category", dtick=1, autorange="reversed"),
        height=max(320, 120 + 2 * _ROW_PX * len(rows)),
    )
    columns = ("part", "earlier_weeks", "latest_day")
    figure = {"data": data, "layout": plot | {"barmode": "group", "hovermode": "closest"}}
    return Figure("shares", f"Values of {quantity}", words, figure, columns, rows)


def _nearness(found: LaneHistory) -> np.ndarray[Any, np.dtype[np.float64]]:
    judged = np.isfinite(found.threshold) & np.isfinite(found.psi)
    return np.where(judged, found.psi / np.where(judged, np.maximum(found.threshold, 1e-12), 1), np.nan)


def _day(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour * 3_600, UTC):%Y-%m-%d %H:%M}"


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
