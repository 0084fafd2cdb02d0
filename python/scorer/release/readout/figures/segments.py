"""The figure of the segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scorer.figure import Figure
from scorer.figure_style import BAD, SHADOW, axis, layout
from scorer.release.answers import SegmentReport, SegmentResult
from scorer.release.gates.names import METRICS

NAME: Final = "segments"
_DRAWN: Final = 40
"""Segments that are drawn; the table has all of them."""
_METRICS: Final = ("approve_rate_delta", "expected_reward")
"""What is drawn, of scores and of actions."""
_COLUMNS: Final = ("feature", "segment", "rows", "live_rows", "metric", "value", "low", "high", "worse")


def draw(report: SegmentReport) -> Figure:
    """Draw the difference from live in each segment, with its bounds.

    Args:
        report: Segments of a shadow or of a canary.
    """
    judged = [one for one in report.segments if one.judged]
    metric = next((name for name in _METRICS if any(name in one.measures for one in judged)), _METRICS[0])
    shown = [one for one in judged if metric in one.measures]
    # What an approver looks for first stays on the drawing however many segments there are.
    shown = sorted(shown, key=lambda one: not one.worse)[:_DRAWN]
    is_share = metric == "approve_rate_delta"
    title = METRICS[metric].title if metric in METRICS else "Change of the expected reward"
    data = [
        trace
        for trace in (
            _points("as live", SHADOW, "circle", [one for one in shown if not one.worse], metric),
            _points("clearly worse", BAD, "diamond", [one for one in shown if one.worse], metric),
        )
        if trace["y"]
    ]
    plot = layout(
        axis(f"{title.lower()} against live", tickformat="+.1%" if is_share else "", zeroline=True),
        axis("", type="category", autorange="reversed", categoryarray=[_name(one) for one in shown]),
        hovermode="closest",
        height=max(220, 90 + 24 * len(shown)),
    )
    words = report.words
    if len(judged) > len(shown):
        words += f" {len(shown)} of {len(judged)} segments are drawn."
    rows = [
        (one.feature, one.level, one.rows, one.live_rows, name, *_numbers(one, name), "; ".join(one.worse))
        for one in report.segments
        for name in (one.measures or ("too few rows",))
    ]
    return Figure(NAME, "Segments", words, {"data": data, "layout": plot}, _COLUMNS, rows)


def _points(
    name: str, colour: str, symbol: str, shown: Sequence[SegmentResult], metric: str
) -> dict[str, Any]:
    values = [one.measures[metric] for one in shown]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [one.value for one in values],
        "y": [_name(one) for one in shown],
        "customdata": [one.rows for one in shown],
        "marker": {"color": colour, "symbol": symbol, "size": 9},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_gap(one.value, one.high) for one in values],
            "arrayminus": [_gap(one.low, one.value) for one in values],
            "color": colour,
            "thickness": 1.5,
        },
        "hovertemplate": "%{y}: %{x:.4g}, %{customdata:,} rows<extra></extra>",
    }


def _gap(low: float | None, high: float | None) -> float:
    return 0.0 if low is None or high is None else max(high - low, 0.0)


def _numbers(one: SegmentResult, name: str) -> tuple[float | None, float | None, float | None]:
    value = one.measures.get(name)
    return (None, None, None) if value is None else (value.value, value.low, value.high)


def _name(one: SegmentResult) -> str:
    return f"{one.feature} {one.level}"
