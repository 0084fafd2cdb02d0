"""The charts of a result as Plotly figures with their numbers, for the platform, the report and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scorer.causal.results import DeltaCV
from scorer.figure import Figure
from scorer.figure_style import CONTROL, LIVE, SHADOW, axis, layout, scatter

_BAND: Final = "rgba(0,114,178,0.15)"
_ROW_PX: Final = 34
_FRAME_PX: Final = 120


def causal_charts(found: DeltaCV) -> tuple[Figure, ...]:
    """Return all charts of a result."""
    made = [_path(found), _difference(found), _methods(found), _balance(found)]
    if any(one.cohort for one in found.effects):
        made.append(_cohorts(found))
    if found.chains:
        made.append(_chains(found))
    return tuple(made)


def _money(found: DeltaCV) -> str:
    return found.currency or "value"


def _adoption() -> list[dict[str, Any]]:
    return [
        {"type": "line", "x0": -0.5, "x1": -0.5, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": CONTROL, "dash": "dot", "width": 1}}
    ]  # fmt: skip


def _path(found: DeltaCV) -> Figure:
    months = [one.month for one in found.path]
    data = [
        scatter(months, [one.adopters for one in found.path], "adopters", mode="lines+markers",
                line={"color": LIVE, "width": 2}, marker={"symbol": "circle", "size": 6}),
        scatter(months, [one.synthetic for one in found.path], "synthetic controls", mode="lines+markers",
                line={"color": SHADOW, "width": 2, "dash": "dash"}, marker={"symbol": "square", "size": 6}),
    ]  # fmt: skip
    plot = layout(
        axis("month from adoption"), axis(f"{_money(found)} per unit", rangemode="tozero"), shapes=_adoption()
    )
    return Figure(
        "path",
        "Value by month",
        "Mean value of adopters and of their synthetic controls. Before adoption the lines must agree; "
        "after it, "
        "the gap is the effect.",
        {"data": data, "layout": plot},
        ("month", "adopters", "synthetic"),
        [(one.month, one.adopters, one.synthetic) for one in found.path],
    )


def _difference(found: DeltaCV) -> Figure:
    months = [one.month for one in found.path]
    data = [
        scatter(months, [one.high for one in found.path], "95 %", line={"width": 0}, showlegend=False,
                hoverinfo="skip"),
        scatter(months, [one.low for one in found.path], f"{_level(found)} interval", line={"width": 0},
                fill="tonexty", fillcolor=_BAND, hoverinfo="skip"),
        scatter(months, [one.difference for one in found.path], "difference", mode="lines+markers",
                line={"color": LIVE, "width": 2}, marker={"size": 6}),
    ]  # fmt: skip
    plot = layout(
        axis("month from adoption"),
        axis(f"{_money(found)} per unit", zeroline=True, zerolinecolor=CONTROL),
        shapes=_adoption(),
    )
    return Figure(
        "difference",
        "Difference by month, and the trend before adoption",
        f"Adopters minus synthetic controls, without correction, with {_level(found)} intervals for "
        "each month. A "
        "trend before adoption means that the controls would not have developed alike.",
        {"data": data, "layout": plot},
        ("month", "difference", "low", "high"),
        [(one.month, one.difference, one.low, one.high) for one in found.path],
    )


def _level(found: DeltaCV) -> str:
    return f"{float(found.settings.get('confidence', 0.95)):.0%}"


def _methods(found: DeltaCV) -> Figure:
    rows: list[tuple[str, float, float | None, float | None]] = []
    for one in found.effects:
        if one.cohort:
            continue
        over = f"{one.horizon} months: "
        rows += [
            (f"{over}mean", one.mean.value, one.mean.low, one.mean.high),
            (f"{over}median", one.median.value, one.median.low, one.median.high),
            (f"{over}without correction", one.plain_mean, None, None),
            (f"{over}difference in differences", one.differences, None, None),
            (f"{over}naive difference", one.naive, None, None),
        ]
    return _dots(
        found,
        "methods",
        "Effect per adopter, and other estimates",
        f"Mean and median with {_level(found)} intervals. The naive difference compares with all units "
        "that never "
        "adopted.",
        rows,
    )


def _cohorts(found: DeltaCV) -> Figure:
    rows = [
        (f"{one.cohort}, {one.horizon} months", one.mean.value, one.mean.low, one.mean.high)
        for one in found.effects
        if one.cohort
    ]
    words = f"Mean effect per adopter of each cohort, with {_level(found)} intervals each."
    return _dots(found, "cohorts", "Effect by cohort", words, rows)


def _dots(
    found: DeltaCV,
    name: str,
    title: str,
    words: str,
    rows: Sequence[tuple[str, float, float | None, float | None]],
) -> Figure:
    names = [row[0] for row in rows]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [row[1] for row in rows],
            "y": names,
            "marker": {"color": LIVE, "size": 9},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [0 if row[3] is None else row[3] - row[1] for row in rows],
                "arrayminus": [0 if row[2] is None else row[1] - row[2] for row in rows],
                "color": LIVE,
            },
            "showlegend": False,
        }
    ]
    plot = layout(
        axis(f"{_money(found)} per adopter", zeroline=True, zerolinecolor=CONTROL),
        axis("", autorange="reversed", type="category"),
        height=_FRAME_PX + _ROW_PX * max(len(rows), 2),
        hovermode="closest",
    )
    return Figure(
        name, title, words, {"data": data, "layout": plot}, ("estimate", "value", "low", "high"), rows
    )


def _balance(found: DeltaCV) -> Figure:
    names = [one.name for one in found.balance]
    limit = float(found.settings.get("balance", 0.1))
    data = [
        {"type": "scatter", "mode": "markers", "name": "before matching", "y": names,
         "x": [one.before for one in found.balance],
         "marker": {"color": SHADOW, "symbol": "square", "size": 9}},
        {"type": "scatter", "mode": "markers", "name": "after matching", "y": names,
         "x": [one.after for one in found.balance], "marker": {"color": LIVE, "symbol": "circle", "size": 9}},
    ]  # fmt: skip
    lines = [
        {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": CONTROL, "dash": "dot", "width": 1}}
        for at in (-limit, limit)
    ]  # fmt: skip
    plot = layout(
        axis("standardised difference", zeroline=True, zerolinecolor=CONTROL),
        axis("", autorange="reversed", type="category"),
        height=_FRAME_PX + _ROW_PX * max(len(names), 2),
        shapes=lines,
        hovermode="closest",
    )
    return Figure(
        "balance",
        "Balance before and after matching",
        f"Difference of means in standard deviations. After matching, all must be within {limit:g}.",
        {"data": data, "layout": plot},
        ("variable", "adopters", "controls", "synthetic", "before", "after"),
        [
            (one.name, one.adopters, one.controls, one.synthetic, one.before, one.after)
            for one in found.balance
        ],
    )


def _chains(found: DeltaCV) -> Figure:
    names = [one.name for one in found.chains]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": values,
            "marker": {"color": colour},
        }
        for name, values, colour in (
            ("adopters", [one.adopters for one in found.chains], LIVE),
            ("their controls", [one.controls for one in found.chains], SHADOW),
        )
    ]
    plot = layout(
        axis("share of units", tickformat=".0%", rangemode="tozero"),
        axis("", autorange="reversed", type="category"),
        height=_FRAME_PX + 2 * _ROW_PX * max(len(names), 2),
        barmode="group",
        hovermode="closest",
    )
    return Figure(
        "chains",
        "Other products adopted at about the same time",
        "In the period before adoption and the longest horizon. Where adopters adopt another product more "
        "often, the effect contains its value.",
        {"data": data, "layout": plot},
        ("product", "adopters", "controls", "z"),
        [(one.name, one.adopters, one.controls, one.z) for one in found.chains],
    )
