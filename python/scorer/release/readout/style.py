"""How figures look: Okabe and Ito's colours, which colour-blind people tell apart, and dashes beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

LIVE, SHADOW, CONTROL, TRAINING, BAD = "#0072B2", "#D55E00", "#6B7280", "#009E73", "#9D174D"
AMBER = "#E69F00"
GRID, INK = "#E5E7EB", "#374151"
SEQUENTIAL = [[0.0, "#F7FBFF"], [0.25, "#C6DBEF"], [0.5, "#6BAED6"], [0.75, "#2171B5"], [1.0, "#08306B"]]

NAMES = {"live": "live", "shadow": "this bundle", "control": "A/A control", "training": "training"}
COLOURS = {"live": LIVE, "shadow": SHADOW, "control": CONTROL, "training": TRAINING}
DASHES = {"live": "solid", "shadow": "solid", "control": "dot", "training": "dash"}


def line(side: str, *, width: float = 2.0, dash: str | None = None) -> dict[str, Any]:
    """The line of a side."""
    return {"color": COLOURS[side], "width": width, "dash": dash or DASHES[side]}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
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
    """What all figures share: no title (the page has it), legend on top, room on a phone."""
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


def level(value: float, words: str, *, colour: str = INK) -> tuple[dict[str, Any], dict[str, Any]]:
    """A horizontal line with its words, as a shape and an annotation."""
    shape = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"color": colour, "width": 1.5, "dash": "dash"},
    }
    note = {
        "xref": "paper",
        "x": 1,
        "y": value,
        "xanchor": "right",
        "yanchor": "bottom",
        "text": words,
        "showarrow": False,
        "font": {"size": 12, "color": colour},
    }
    return shape, note


def scatter(x: Iterable[Any], y: Iterable[Any], name: str, **more: Any) -> dict[str, Any]:
    """A line through points."""
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "name": name, **more}


def micros(value: float | None) -> str:
    """A time as a person says it."""
    if value is None or math.isnan(value):
        return "unknown"
    if value < 1_000:
        return f"{value:,.0f} µs"
    return f"{value / 1_000:,.3g} ms" if value < 1e6 else f"{value / 1e6:,.3g} s"


def percent(value: float | None, digits: int = 2) -> str:
    """A share as a person says it."""
    return "unknown" if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"
