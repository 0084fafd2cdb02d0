"""What the figures of metrics over time have in common: lines, colours, marks and the axis of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scorer.figure import Figure
from scorer.figure_style import CONTROL, axis, layout, scatter
from scorer.ids import short_digest
from scorer.release.answers import ReleaseMark
from scorer.release.lanes import recorded
from scorer.release.readout.figures.times import moment
from scorer.release.timeseries.marks import drawn
from scorer.release.timeseries.reading import Counts, Line
from scorer.release.timeseries.windows import MetricsWindow
from scorer.stats.arrays import Floats

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#9467BD", "#8C6D1F", "#5B6CC9", "#B0478C", "#6B7280")
"""Of versions, in the order of their first decision; as many as versions that are shown."""
_RARE: Final = 0.01
NOTHING: Final = "Nothing was counted in this window."


@dataclass(frozen=True)
class Subject:
    """What the figures are about.

    Attributes:
        window: The window.
        now: The current time, microseconds.
        sla_us: Promised p99 of the checkpoint, microseconds.
        outcome: Kind of outcome, for example `fraud`.
        marks: Releases and rollbacks.
    """

    window: MetricsWindow
    now: int
    sla_us: float
    outcome: str
    marks: Sequence[ReleaseMark]

    @property
    def times(self) -> list[str]:
        """Start of each point, as text."""
        return [moment(at) for at in self.window.starts()]

    @property
    def seconds(self) -> Floats:
        """Length of each point in seconds; the last one ends with the window."""
        starts = np.array(self.window.starts(), dtype=np.float64)
        ends = np.minimum(starts + self.window.step, min(self.window.end, self.now))
        return np.maximum((ends - starts) / 1e6, 1e-3)


def coloured(counts: Counts) -> list[tuple[Line, str]]:
    """Return each line with the colour of its version, which is the same in all figures."""
    versions = list(dict.fromkeys(line.bundle for line in counts.lines))
    colours = {bundle: COLOURS[at % len(COLOURS)] for at, bundle in enumerate(versions)}
    return [(line, colours[line.bundle]) for line in counts.lines]


def trace_of(
    subject: Subject,
    line: Line,
    values: Sequence[float | None],
    colour: str,
    *,
    dash: str = "solid",
    **more: Any,
) -> dict[str, Any]:
    """Return the line of one quantity of a lane and version; interrupted where a value is None."""
    own = {"color": colour, "width": _width(line), "dash": dash}
    # A point between two gaps has no line to be part of.
    known = sum(value is not None for value in values)
    mode = "lines+markers" if known < 3 or _has_lone_points(values) else "lines"
    name = f"{short_digest(line.bundle)} {line.lane}"
    more = {"legendgroup": name, **more}
    return {**scatter(subject.times, values, name, line=own, marker={"size": 5}, **more), "mode": mode}


def _width(line: Line) -> float:
    """Return the width of a line: that of the live lane is wider."""
    return 2.5 if line.lane == recorded.LIVE else 1.5


def _has_lone_points(values: Sequence[float | None]) -> bool:
    padded = [None, *values, None]
    return any(
        before is None and value is not None and after is None
        for before, value, after in zip(padded, padded[1:], padded[2:], strict=False)
    )


def inside(line: Line) -> list[bool]:
    """Whether each point is between the first and the last row of a line, so that its count can be 0."""
    there = np.flatnonzero(line.rows > 0)
    return [bool(len(there)) and there[0] <= at <= there[-1] for at in range(len(line.rows))]


def rows_of(
    subject: Subject, line: Line, columns: Sequence[Sequence[Any]], kept: Any
) -> list[tuple[Any, ...]]:
    """Return the numbers of a line, without the points that are not kept."""
    every = zip(subject.times, kept, *columns, strict=True)
    return [(start, line.lane, line.bundle, *values) for start, there, *values in every if there]


def legend(counts: Counts, dashes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return traces without points for the legend: a colour for each version, a dash for each quantity.

    One entry for each line would leave no room for the lines.
    """
    found = []
    for line, colour in coloured(counts):
        own = {"color": colour, "width": _width(line)}
        name = f"{short_digest(line.bundle)} {line.lane}"
        found.append(scatter([None], [None], name, line=own, legendgroup=name, hoverinfo="skip"))
    for name, dash in dashes.items():
        plain = {"color": CONTROL, "width": 2, "dash": dash}
        found.append(scatter([None], [None], name, line=plain, hoverinfo="skip"))
    return found


def layout_of(subject: Subject, y: dict[str, Any], labels: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the layout with the axis of time, the marks and further labels."""
    span = [moment(subject.window.start), moment(subject.window.end)]
    # The legend is above the numbers of the marks.
    legend = {"orientation": "h", "y": 1.1 if subject.marks else 1.02, "yanchor": "bottom", "x": 0}
    more = {**drawn(subject.marks, subject.window), "legend": legend, "showlegend": True}
    more["annotations"] = [*more["annotations"], *labels]
    return layout(axis("time (UTC)", type="date", range=span), y, **more)


def share_axis(title: str, data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the axis of rare shares. Where all of them are 0, it ends at 1 % instead of 100 %."""
    is_empty = not any(value for trace in data for value in trace["y"])
    return axis(title, tickformat=".2~%", **({"range": [0, _RARE]} if is_empty else {"rangemode": "tozero"}))


def figure_of(
    name: str,
    title: str,
    words: str,
    data: list[dict[str, Any]],
    plot: dict[str, Any],
    columns: tuple[str, ...],
    rows: list[tuple[Any, ...]],
) -> Figure:
    """Return a figure with its words, or with the words that there is nothing."""
    return Figure(
        name, title, words if rows or data else NOTHING, {"data": data, "layout": plot}, columns, rows
    )


def divided(part: Floats, whole: Floats) -> list[float | None]:
    """Return shares, None where there is nothing to divide by."""
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]


def known(value: float) -> float | None:
    """Return a value, or None for NaN."""
    return None if math.isnan(value) else value


def log_range(shown: Sequence[float]) -> list[float]:
    """Return the range of a logarithmic axis around some values, in powers of ten."""
    if not shown:
        return [0.0, 1.0]
    return [math.log10(min(shown)) - 0.15, math.log10(max(shown)) + 0.15]
