"""Figures of a checkpoint's metrics over time: one line for each lane and version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scorer.ids import short_digest
from scorer.release.answers import Figure, ReleaseMark
from scorer.release.readout.figures.times import moment
from scorer.release.readout.style import BAD, axis, layout, log_axis, micros, percent, scatter
from scorer.release.timeseries import cells
from scorer.release.timeseries.cells import EXEC, LABEL, LOAD, OTHER_LABELS, SCORE, TIME_BINS
from scorer.release.timeseries.marks import drawn
from scorer.release.timeseries.reading import Counts, Line
from scorer.release.timeseries.windows import Window
from scorer.stats import distances
from scorer.stats.arrays import Floats

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#9467BD", "#8C6D1F", "#5B6CC9", "#B0478C", "#6B7280")
"""Of versions, in the order of their first decision; as many as versions that are shown."""
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MOST_LABELS: Final = 5
"""Decisions or actions with a line of their own in the legend; the less frequent ones are summed up."""
_MANY_LINES: Final = 8
_ENOUGH: Final = 100
"""Of fewer rows, a p99 is a maximum."""
_CHANCE: Final = 0.01
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

    window: Window
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


def draw(subject: Subject, counts: Counts) -> tuple[Figure, ...]:
    """Return all figures, in the order of the page."""
    figures = (_rate, _decisions, _outcomes, _execution, _data_load, _fallbacks, _drift)
    return tuple(one(subject, counts) for one in figures)


def _rate(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data = []
    for line, colour in _coloured(counts):
        inside = _inside(line)
        values = [
            float(count / seconds) if there else None
            for count, seconds, there in zip(line.rows, subject.seconds, inside, strict=True)
        ]
        rows += _rows(subject, line, [line.rows.astype(int).tolist(), values], line.rows > 0)
        data.append(_trace(subject, line, values, colour, hovertemplate="%{y:.3~s}/s"))
    total = sum(float(line.rows.sum()) for line in counts.lines)
    words = (
        f"{total:,.0f} rows, {total / float(subject.seconds.sum()):,.3g} per second on average. A line ends "
        "with the last decision of its lane and version."
    )
    plot = _layout(subject, axis("rows per second", rangemode="tozero"))
    columns = ("start", "lane", "version", "rows", "per_second")
    return _figure("rate", "Request rate", words, data, plot, columns, rows)


def _decisions(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data: list[dict[str, Any]] = []
    total = sum((line.counts.sum(axis=0) for line in counts.lines), np.zeros(cells.WIDTH))[LABEL:]
    order = [int(one) for one in np.argsort(-total[:-1], kind="stable") if total[one] > 0]
    named = sorted(order[:_MOST_LABELS])
    rest = [*order[_MOST_LABELS:], OTHER_LABELS - LABEL]
    choices = [(counts.labels[one], [one]) for one in named]
    if total[rest].sum():
        choices.append(("other", rest))
    is_crowded = len(choices) * len(counts.lines) > _MANY_LINES
    shares = []
    for line, colour in _coloured(counts):
        labelled = line.counts[:, LABEL:].sum(axis=1)
        for place, (name, codes) in enumerate(choices):
            own = line.counts[:, LABEL:][:, codes].sum(axis=1)
            values = _divided(own, labelled)
            rows += _rows(subject, line, [[name] * len(own), own.astype(int).tolist(), values], own > 0)
            trace = _trace(subject, line, values, colour, dash=_DASHES[place], hovertemplate="%{y:.2%}")
            trace["name"] = f"{name} {trace['name']}"
            # The most frequent decision of each version is what the others are the remainder of.
            if is_crowded and codes == [order[0]]:
                trace["visible"] = "legendonly"
            data.append(trace)
    for name, codes in choices:
        shares.append(f"{name} {percent(float(total[codes].sum() / total.sum()))}")
    words = f"Of all rows in the window: {', '.join(shares)}." if shares else NOTHING
    plot = _layout(subject, axis("share of rows", tickformat=".0%", rangemode="tozero"))
    columns = ("start", "lane", "version", "decision", "rows", "share")
    return _figure("decisions", "Decisions by outcome", words, data, plot, columns, rows)


def _outcomes(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data: list[dict[str, Any]] = []
    colours = {line.bundle: colour for line, colour in _coloured(counts)}
    matured_rows = matured_positive = 0.0
    for one in counts.outcomes:
        final = _divided(one.matured_positive, one.matured)
        so_far = _divided(one.positive, one.rows)
        is_complete = (one.matured >= one.rows) & (one.rows > 0)
        name = short_digest(one.bundle)
        lines = (
            (name, [y if whole else None for y, whole in zip(final, is_complete, strict=True)], "solid"),
            (
                f"{name} incomplete",
                [None if whole else y for y, whole in zip(so_far, is_complete, strict=True)],
                "dot",
            ),
        )
        for label, values, dash in lines:
            if any(value is not None for value in values):
                line = {"color": colours[one.bundle], "width": 2.5 if dash == "solid" else 1.5, "dash": dash}
                marker = {"symbol": "circle" if dash == "solid" else "circle-open", "size": 6}
                trace = scatter(subject.times, values, label, line=line, marker=marker)
                data.append({**trace, "mode": "lines+markers", "hovertemplate": "%{y:.3%}"})
        matured_rows += float(one.matured.sum())
        matured_positive += float(one.matured_positive.sum())
        for at, start in enumerate(subject.times):
            if not one.rows[at]:
                continue
            rows.append(
                (
                    start,
                    one.bundle,
                    int(one.rows[at]),
                    float(one.matured[at] / one.rows[at]),
                    int(one.reported[at]),
                    int(one.positive[at]),
                    so_far[at],
                    final[at],
                    "complete" if is_complete[at] else "incomplete",
                )
            )
    total = sum(float(one.rows.sum()) for one in counts.outcomes)
    if not total:
        words = NOTHING
    elif matured_rows:
        words = (
            f"{percent(matured_rows / total, 1)} of the rows have matured; of these, "
            f"{percent(matured_positive / matured_rows, 3)} are {subject.outcome}. Open circles on a dotted "
            "line are incomplete: their outcomes can still arrive."
        )
    else:
        words = (
            f"No row of the window has matured yet. Open circles on a dotted line are the share of "
            f"{subject.outcome} so far, and can still rise."
        )
    if total:
        words += " Outcomes are counted by version, for all servers and lanes that answer."
    plot = _layout(subject, axis(f"share of {subject.outcome}", tickformat=".2~%", rangemode="tozero"))
    columns = (
        "start", "version", "rows", "matured_share", "reported", "positive", "rate_so_far", "rate_of_matured",
        "state",
    )  # fmt: skip
    title = f"Rate of the outcome {subject.outcome}"
    return _figure("outcomes", title, words, data, plot, columns, rows)


def _execution(subject: Subject, counts: Counts) -> Figure:
    return _time(subject, counts, "execution", "Execution", EXEC)


def _data_load(subject: Subject, counts: Counts) -> Figure:
    return _time(subject, counts, "data-load", "Data loading", LOAD)


def _time(subject: Subject, counts: Counts, name: str, title: str, base: int) -> Figure:
    """p50 and p99 of a time, on a logarithmic axis around the data, with the SLA."""
    rows: list[tuple[Any, ...]] = []
    data: list[dict[str, Any]] = []
    whole = np.zeros(TIME_BINS, dtype=np.int64)
    for line, colour in _coloured(counts):
        times = line.counts[:, base : base + TIME_BINS].astype(np.int64)
        whole += times.sum(axis=0)
        found = [[_known(cells.quantile(one, q)) for one in times] for q in (0.5, 0.99)]
        sizes = times.sum(axis=1)
        rows += _rows(subject, line, [sizes.tolist(), *found], sizes > 0)
        for label, values, dash in (("p50", found[0], "dot"), ("p99", found[1], "solid")):
            y = [None if value is None or not value else round(value / 1000, 5) for value in values]
            trace = _trace(subject, line, y, colour, dash=dash, hovertemplate="%{y:.3g} ms")
            trace["name"] = f"{label} {trace['name']}"
            if label == "p50":
                trace["line"]["width"] = 1.5
            data.append(trace)
    ends = [moment(subject.window.start), moment(subject.window.end)]
    sla = {"color": BAD, "dash": "dash", "width": 1.5}
    shown = [y for trace in data for y in trace["y"] if y]
    if shown:
        limit = [subject.sla_us / 1000] * 2
        data.append(scatter(ends, limit, f"SLA {micros(subject.sla_us)}", line=sla, hoverinfo="skip"))
        shown += limit
    p50, p99 = (cells.quantile(whole, q) for q in (0.5, 0.99))
    words = NOTHING
    if whole.sum():
        words = (
            f"p50 {micros(p50)} and p99 {micros(p99)} over the window; the SLA of the p99 is "
            f"{micros(subject.sla_us)}. Quantiles have an error of at most {cells.RELATIVE_ERROR:.0%}."
        )
        if whole[0]:
            share = percent(float(whole[0] / whole.sum()), 1)
            words += f" {share} of the rows took less than 1 µs, which a logarithmic axis does not show."
    plot = _layout(subject, log_axis("ms (log)", shown, range=_log_range(shown)))
    columns = ("start", "lane", "version", "rows", "p50_us", "p99_us")
    return _figure(name, f"{title}: p50 and p99", words, data, plot, columns, rows)


def _fallbacks(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data = []
    total = bad = 0.0
    for line, colour in _coloured(counts):
        own = line.counts[:, cells.FALLBACKS] + line.counts[:, cells.ERRORS]
        values = _divided(own, line.rows)
        total, bad = total + float(line.rows.sum()), bad + float(own.sum())
        rows += _rows(
            subject, line, [line.rows.astype(int).tolist(), own.astype(int).tolist(), values], line.rows > 0
        )
        data.append(_trace(subject, line, values, colour, hovertemplate="%{y:.3%}"))
    words = (
        f"{percent(bad / total, 3)} of the rows were not answered by the model. In observe lanes, these are "
        "observations that failed."
        if total
        else NOTHING
    )
    plot = _layout(subject, axis("share of rows", tickformat=".2~%", rangemode="tozero"))
    columns = ("start", "lane", "version", "rows", "fallbacks", "share")
    return _figure("fallbacks", "Fallback rate", words, data, plot, columns, rows)


def _drift(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data = []
    missing = set()
    for line, colour in _coloured(counts):
        reference = counts.references.get(line.bundle)
        if reference is None:
            missing.add(short_digest(line.bundle))
            continue
        width = len(reference.counts)
        binned = line.counts[:, SCORE : SCORE + width]
        sizes = binned.sum(axis=1)
        pairs = [distances.BinnedPair(reference.edges, reference.counts, one) for one in binned]
        psi = [
            distances.psi(pair.second, pair.first) if size else None
            for pair, size in zip(pairs, sizes, strict=True)
        ]
        chance = [pair.null_psi(_CHANCE) if size else None for pair, size in zip(pairs, sizes, strict=True)]
        rows += _rows(subject, line, [sizes.astype(int).tolist(), psi, chance], sizes > 0)
        shown = [value if size >= _ENOUGH else None for value, size in zip(psi, sizes, strict=True)]
        data.append(_trace(subject, line, shown, colour, hovertemplate="%{y:.3f}"))
    words = (
        "PSI of the scores against the reference of their own bundle, in the bins of the gate score_psi. "
        f"Points of fewer than {_ENOUGH} scores are in the numbers only; by_chance is the PSI that 1 % of "
        "samples of that size exceed without any drift."
    )
    if not data:
        words = NOTHING if not counts.lines else "No score could be compared."
    if missing:
        words += f" Not available for {', '.join(sorted(missing))}: the bundle's reference could not be read."
    plot = _layout(subject, axis("PSI", rangemode="tozero"))
    columns = ("start", "lane", "version", "scores", "psi", "by_chance")
    return _figure("drift", "Score drift", words, data, plot, columns, rows)


def _coloured(counts: Counts) -> list[tuple[Line, str]]:
    """Return each line with the colour of its version, which is the same in all figures."""
    versions = list(dict.fromkeys(line.bundle for line in counts.lines))
    colours = {bundle: COLOURS[at % len(COLOURS)] for at, bundle in enumerate(versions)}
    return [(line, colours[line.bundle]) for line in counts.lines]


def _trace(
    subject: Subject,
    line: Line,
    values: Sequence[float | None],
    colour: str,
    *,
    dash: str = "solid",
    **more: Any,
) -> dict[str, Any]:
    own = {"color": colour, "width": 2.5 if line.lane == "live" else 1.5, "dash": dash}
    # A point between two gaps has no line to be part of.
    known = sum(value is not None for value in values)
    mode = "lines+markers" if known < 3 or _has_lone_points(values) else "lines"
    name = f"{short_digest(line.bundle)} {line.lane}"
    return {**scatter(subject.times, values, name, line=own, marker={"size": 5}, **more), "mode": mode}


def _has_lone_points(values: Sequence[float | None]) -> bool:
    padded = [None, *values, None]
    return any(
        before is None and value is not None and after is None
        for before, value, after in zip(padded, padded[1:], padded[2:], strict=False)
    )


def _inside(line: Line) -> list[bool]:
    """Whether each point is between the first and the last row of a line, so that its count can be 0."""
    there = np.flatnonzero(line.rows > 0)
    return [bool(len(there)) and there[0] <= at <= there[-1] for at in range(len(line.rows))]


def _rows(subject: Subject, line: Line, columns: Sequence[Sequence[Any]], kept: Any) -> list[tuple[Any, ...]]:
    every = zip(subject.times, kept, *columns, strict=True)
    return [(start, line.lane, line.bundle, *values) for start, there, *values in every if there]


def _layout(subject: Subject, y: dict[str, Any]) -> dict[str, Any]:
    span = [moment(subject.window.start), moment(subject.window.end)]
    # The legend is above the numbers of the marks.
    legend = {"orientation": "h", "y": 1.1 if subject.marks else 1.02, "yanchor": "bottom", "x": 0}
    more = {**drawn(subject.marks, subject.window), "legend": legend, "showlegend": True}
    return layout(axis("time (UTC)", type="date", range=span), y, **more)


def _figure(
    name: str,
    title: str,
    words: str,
    data: list[dict[str, Any]],
    plot: dict[str, Any],
    columns: tuple[str, ...],
    rows: list[tuple[Any, ...]],
) -> Figure:
    return Figure(
        name, title, words if rows or data else NOTHING, {"data": data, "layout": plot}, columns, rows
    )


def _divided(part: Floats, whole: Floats) -> list[float | None]:
    return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _log_range(shown: Sequence[float]) -> list[float]:
    """Return the range of a logarithmic axis around some values, in powers of ten."""
    if not shown:
        return [0.0, 1.0]
    return [math.log10(min(shown)) - 0.15, math.log10(max(shown)) + 0.15]
