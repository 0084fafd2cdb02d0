"""The figures of a global explanation."""

from __future__ import annotations

from typing import Any, Final

from scorer.explain.document import FeatureDependence, FeatureImportance, GlobalExplanation
from scorer.figure import Figure
from scorer.figure_style import CONTROL, LIVE, SEQUENTIAL, SHADOW, axis, layout, scatter

_BARS: Final = 20
_PAIRS: Final = 15
_CURVES: Final = 12
_ROW: Final = 26
"""Height of a bar in pixels."""
_LEAST: Final = 340
"""Least height of a figure in pixels, which is that of its place on pages."""


def explanation_figures(explanation: GlobalExplanation) -> tuple[Figure, ...]:
    """Return the figures: importance, interactions, and the curves of the most important features."""
    found = [_importance(explanation.importance)]
    if explanation.interactions:
        found += [_interactions(explanation)]
    found += [_dependence(one, at, explanation) for at, one in enumerate(explanation.dependence[:_CURVES])]
    return tuple(found)


def quantity_words(explanation: GlobalExplanation) -> str:
    """Return the name of the explained quantity for axes."""
    return "margin (log-odds)" if explanation.quantity == "margin" else "expected reward"


def _importance(entries: list[FeatureImportance]) -> Figure:
    has_means = any(one.mean is not None for one in entries)
    shown = [one for one in entries if (one.mean if has_means else one.splits)][:_BARS]
    values = [(one.mean or 0.0) if has_means else float(one.splits) for one in shown]
    bar: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "y": [one.feature for one in shown],
        "x": values,
        "marker": {"color": LIVE},
        "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
    }
    if has_means:
        bar["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": [(one.high or 0.0) - value for one, value in zip(shown, values, strict=True)],
            "arrayminus": [value - (one.low or 0.0) for one, value in zip(shown, values, strict=True)],
            "color": "#374151",
            "thickness": 1.2,
            "width": 4,
        }
    title = "mean absolute contribution" if has_means else "splits"
    plot = layout(
        axis(title, rangemode="tozero"),
        axis("", type="category", autorange="reversed"),
        hovermode="closest",
        height=max(_LEAST, 120 + _ROW * len(shown)),
        showlegend=False,
    )
    words = (
        "Mean absolute exact contribution to the margin, with 95 % intervals over rows."
        if has_means
        else "Number of nodes that split on each feature, because the bundle has no covers."
    )
    if len(shown) < len(entries):
        words += f" {len(shown)} of {len(entries)} features are drawn."
    columns = ("feature", "mean", "low", "high", "splits", "cover", "gain")
    rows = [(o.feature, o.mean, o.low, o.high, o.splits, o.cover, o.gain) for o in entries]
    return Figure("importance", "Importance", words, {"data": [bar], "layout": plot}, columns, rows)


def _interactions(explanation: GlobalExplanation) -> Figure:
    pairs = explanation.interactions
    shown = [one for one in pairs if one.strength > 0][:_PAIRS]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": [f"{one.first} × {one.second}" for one in shown],
        "x": [one.strength for one in shown],
        "customdata": [one.share for one in shown],
        "marker": {
            "color": [one.share for one in shown],
            "colorscale": SEQUENTIAL,
            "cmin": 0,
            "cmax": 1,
            "colorbar": {"title": {"text": "H"}, "thickness": 12},
            "line": {"color": "#374151", "width": 0.5},
        },
        "hovertemplate": "%{y}: %{x:.4g}, H %{customdata:.2f}<extra></extra>",
    }
    plot = layout(
        axis(f"interaction, {quantity_words(explanation)}", rangemode="tozero"),
        axis("", type="category", autorange="reversed"),
        hovermode="closest",
        height=max(_LEAST, 140 + _ROW * len(shown)),
        showlegend=False,
    )
    words = (
        "Root mean square of what the joint effect of two features adds to their own effects. The colour is "
        "Friedman's H, the same as a share of the joint effect."
        if shown
        else "No pair of the examined features interacts."
    )
    rows = [(one.first, one.second, one.strength, one.share) for one in pairs]
    columns = ("first", "second", "strength", "H")
    return Figure("interactions", "Interactions", words, {"data": [bar], "layout": plot}, columns, rows)


def _dependence(one: FeatureDependence, place: int, explanation: GlobalExplanation) -> Figure:
    if one.type == "number":
        data = _lines(one)
        x = axis(one.feature)
    else:
        data = _bars(one)
        x = axis(one.feature, type="category")
    plot = layout(x, axis(quantity_words(explanation)), hovermode="closest", showlegend=True)
    words = "Partial dependence, with the quantiles 0.1 and 0.9 of the curves of single rows."
    if one.effects:
        mean = sum(point.mean * point.rows for point in one.points) / max(
            sum(point.rows for point in one.points), 1
        )
        words += f" Accumulated local effects are drawn around {mean:.3g}, the mean of the curve."
    if any(point.value is None for point in one.points):
        words += " The rhombus is a missing value."
    columns = ("curve", "value", "rows", "mean", "q10", "median", "q90", "score")
    rows: list[tuple[Any, ...]] = [
        ("partial dependence", p.label, p.rows, p.mean, p.low, p.median, p.high, p.score) for p in one.points
    ]
    rows += [("local effects", p.label, p.rows, p.effect, None, None, None, None) for p in one.effects]
    title = f"Dependence on {one.feature}"
    return Figure(f"dependence-{place + 1}", title, words, {"data": data, "layout": plot}, columns, rows)


def _lines(one: FeatureDependence) -> list[dict[str, Any]]:
    known = [point for point in one.points if point.value is not None]
    x = [point.value for point in one.points if point.value is not None]
    mode = "lines+markers" if len(known) < 3 else "lines"
    fill = "rgba(0, 114, 178, 0.15)"
    none = {"width": 0}
    data = [
        {**scatter(x, [p.low for p in known], "q10", line=none, hoverinfo="skip"), "showlegend": False},
        {
            **scatter(x, [p.high for p in known], "single rows, 0.1 to 0.9", line=none, hoverinfo="skip"),
            "fill": "tonexty",
            "fillcolor": fill,
        },
        {
            **scatter(x, [p.mean for p in known], "partial dependence", line={"color": LIVE, "width": 2.5}),
            "mode": mode,
        },
    ]
    if one.effects:
        rows = max(sum(point.rows for point in one.points), 1)
        mean = sum(point.mean * point.rows for point in one.points) / rows
        effects = [point.effect + mean for point in one.effects]
        dashed = {"color": SHADOW, "width": 2, "dash": "dash"}
        data.append(scatter([p.value for p in one.effects], effects, "local effects", line=dashed))
    missing = [point for point in one.points if point.value is None]
    if missing:
        marker = {"color": CONTROL, "symbol": "diamond", "size": 10}
        at = [min(x)] if x else [0.0]
        data.append(
            {
                **scatter(at, [missing[0].mean], "missing", marker=marker),
                "mode": "markers",
                "hovertemplate": "missing: %{y:.4g}<extra></extra>",
            }
        )
    return data


def _bars(one: FeatureDependence) -> list[dict[str, Any]]:
    names = [point.label for point in one.points]
    return [
        {
            **scatter(names, [point.mean for point in one.points], "partial dependence"),
            "mode": "markers",
            "marker": {"color": LIVE, "size": 10},
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [point.high - point.mean for point in one.points],
                "arrayminus": [point.mean - point.low for point in one.points],
                "color": LIVE,
                "thickness": 1.2,
                "width": 6,
            },
        }
    ]
