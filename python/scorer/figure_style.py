"""The style of figures: the palette of Okabe and Ito, which is safe for colour-blind readers, and dashes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LIVE, SHADOW, CONTROL, TRAINING, BAD = "#0072B2", "#D55E00", "#6B7280", "#009E73", "#9D174D"
AMBER = "#E69F00"
GRID, INK = "#E5E7EB", "#374151"
SERIES = (LIVE, SHADOW, TRAINING, AMBER, BAD, CONTROL)
"""Colours for values without a fixed colour, in this order."""
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "triangle-down")
"""Markers of the same values, for readers who cannot distinguish the colours."""
SEQUENTIAL = [[0.0, "#F7FBFF"], [0.25, "#C6DBEF"], [0.5, "#6BAED6"], [0.75, "#2171B5"], [1.0, "#08306B"]]

DENSITY = "density per 0.01: share"
"""Title of the axis of histograms whose bins have different widths."""
NAMES = {"live": "live", "shadow": "this bundle", "control": "A/A control", "training": "training"}
COLOURS = {"live": LIVE, "shadow": SHADOW, "control": CONTROL, "training": TRAINING}
DASHES = {"live": "solid", "shadow": "solid", "control": "dot", "training": "dash"}


def line(side: str, *, width: float = 2.0, dash: str | None = None) -> dict[str, Any]:
    """Return the style of the line of a side."""
    return {"color": COLOURS[side], "width": width, "dash": dash or DASHES[side]}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title."""
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": GRID,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": GRID,
        **more,
    }


def layout(x: Mapping[str, Any], y: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the common layout of figures: no title (the page has one), legend on top, small margins."""
    return {
        "xaxis": dict(x),
        "yaxis": dict(y),
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "margin": {"l": 56, "r": 16, "t": 40, "b": 48},
        "height": 360,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "x unified",
        **more,
    }


def steps(edges: Sequence[float], shares: Sequence[float]) -> tuple[list[float | None], list[float | None]]:
    """Return a histogram's outline as `(x, y)` of a line: a step for each bin, a gap where bins are empty.

    Args:
        edges: `[bins + 1]`.
        shares: `[bins]`. On a log axis an empty bin has no place, so the line is interrupted there.
    """
    x: list[float | None] = []
    y: list[float | None] = []
    for low, high, share in zip(edges, edges[1:], shares, strict=False):
        if share > 0:
            x += [low, high]
            y += [share, share]
        elif x and x[-1] is not None:
            x.append(None)
            y.append(None)
    return x, y


_MOST_TICKS = 8
_MARGIN = 0.04


def log_axis(title: str, values: Iterable[float | None], *, unit: str = "", **more: Any) -> dict[str, Any]:
    """A logarithmic axis around what is drawn, with ticks that are written out and do not overlap.

    Args:
        title: Of the axis.
        values: Everything drawn; what is not positive has no place on the axis.
        unit: `%` writes shares as percentages.
        more: Other properties of the axis.
    """
    shown = [value for value in values if value is not None and value > 0] or [1.0]
    low, high = math.log10(min(shown)), math.log10(max(shown))
    margin = max((high - low) * _MARGIN, 0.05)
    more = {"range": [round(low - margin, 4), round(high + margin, 4)]} | more
    powers = range(math.floor(low), math.ceil(high) + 1)
    for every, factors in ((1, (1, 2, 5)), (1, (1, 3)), (1, (1,)), (2, (1,)), (3, (1,))):
        ticks = [
            factor * 10.0**power for power in powers if power % every == 0 for factor in factors
            if low - margin <= math.log10(factor) + power <= high + margin
        ]  # fmt: skip
        if len(ticks) <= _MOST_TICKS:
            break
    if len(ticks) < 2:
        # The values span less than a factor of two, between two labelled ticks.
        ticks = sorted({float(f"{10**end:.3g}") for end in (low, high)})
    texts = [f"{100 * tick:,.6g} %" if unit == "%" else f"{tick:,.6g}" for tick in ticks]
    return axis(title, type="log", tickvals=ticks, ticktext=texts, minor={"ticks": ""}, **more)


def scatter(x: Iterable[Any], y: Iterable[Any], name: str, **more: Any) -> dict[str, Any]:
    """Return a Plotly line through the given points."""
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "name": name, **more}


def heights(
    edges: npt.NDArray[np.float64], *shares: npt.NDArray[np.float64]
) -> tuple[str, list[npt.NDArray[np.float64]]]:
    """Return the name and the heights of histograms: shares of even bins, else shares for each 0.01.

    Of bins with different widths, a share alone would make wide bins look full.

    Args:
        edges: `[bins + 1]`.
        shares: Each `[bins]`.
    """
    widths = np.diff(edges)
    if np.allclose(widths, widths[0], rtol=1e-6):
        return "share", list(shares)
    return DENSITY, [values * 0.01 / widths for values in shares]


def outlines(
    shares: Mapping[str, npt.NDArray[np.float64]], edges: npt.NDArray[np.float64], x: str
) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Return a drawing of histograms over common bins, and its numbers: from, to, a share for each side.

    Args:
        shares: By side, `[bins]`.
        edges: `[bins + 1]`.
        x: Title of the axis.
    """
    what, drawn = heights(edges, *shares.values())
    data = [
        scatter(
            *steps(edges.tolist(), values.tolist()),
            NAMES[side],
            line=line(side, width=2.5 if side == "shadow" else 2.0),
            hovertemplate="%{y:.3%}",
        )
        for side, values in zip(shares, drawn, strict=True)
    ]
    shown = [y for trace in data for y in trace["y"]]
    plot = layout(axis(x), log_axis(f"{what} of requests (log)", shown, unit="%"))
    columns = (edges[:-1], edges[1:], *shares.values())
    return {"data": data, "layout": plot}, list(zip(*(one.tolist() for one in columns), strict=True))


_NEAR = 10.0


def sla_line(
    limit: float, shown: Iterable[float | None], ends: Sequence[Any], *, text: str, vertical: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the SLA as a trace and its label as an annotation of a logarithmic axis.

    An SLA that is more than ten times what is drawn is told by the label alone: a line there would press the
    data into a corner.

    Args:
        limit: The SLA, in the unit of the axis.
        shown: Everything else that is drawn along that axis.
        ends: Where the line begins and ends on the other axis.
        text: The label, for example `SLA 5 ms`.
        vertical: Whether the SLA is a place on the x axis.
    """
    top = max((value for value in shown if value is not None), default=limit)
    label: dict[str, Any] = {"text": text, "showarrow": False, "font": {"color": BAD, "size": 12}}
    if limit > _NEAR * top:
        arrow = "\N{RIGHTWARDS ARROW}" if vertical else "\N{UPWARDS ARROW}"
        place = {"xref": "paper", "yref": "paper", "x": 1, "y": 0.5 if vertical else 1}
        anchors = {"xanchor": "right", "yanchor": "middle" if vertical else "top"}
        return [], [label | place | anchors | {"text": f"{text} {arrow}"}]
    dashed = {"color": BAD, "dash": "dash", "width": 2}
    x, y = ([limit, limit], list(ends)) if vertical else (list(ends), [limit, limit])
    trace = scatter(x, y, text, line=dashed, hoverinfo="skip")
    at = math.log10(limit)
    # Left of a vertical line, where a curve of shares has already risen; below a horizontal one.
    place = {"x": at, "yref": "paper", "y": 0.04, "xanchor": "right", "yanchor": "bottom", "xshift": -4}
    if not vertical:
        place = {"xref": "paper", "x": 1, "y": at, "xanchor": "right", "yanchor": "top"}
    return [trace], [label | place]


def micros(value: float | None) -> str:
    """Format a time in microseconds with a suitable unit."""
    if value is None or math.isnan(value):
        return "unknown"
    if value < 1_000:
        return f"{value:,.0f} µs"
    return f"{value / 1_000:,.3g} ms" if value < 1e6 else f"{value / 1e6:,.3g} s"


def percent(value: float | None, digits: int = 2) -> str:
    """Format a share as a percentage."""
    return "unknown" if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"
