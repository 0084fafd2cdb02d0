"""Figures of a checkpoint's metrics over time: one line for each lane and version."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from scorer.figure import Figure
from scorer.figure_style import axis, log_axis, micros, percent, scatter, sla_line
from scorer.ids import short_digest
from scorer.release.readout.figures.times import moment
from scorer.release.timeseries import cells
from scorer.release.timeseries.cells import EXEC, LABEL, LOAD, OTHER_LABELS, SCORE, TIME_BINS
from scorer.release.timeseries.drawing import (
    NOTHING,
    Subject,
    coloured,
    divided,
    figure_of,
    inside,
    known,
    layout_of,
    legend,
    log_range,
    rows_of,
    share_axis,
    trace_of,
)
from scorer.release.timeseries.reading import Counts
from scorer.stats import distances

_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MOST_LABELS: Final = 5
"""Decisions or actions with a line of their own in the legend; the less frequent ones are summed up."""
_MANY_LINES: Final = 8
_ENOUGH: Final = 100
"""Of fewer rows, a p99 is a maximum."""
_HEADROOM: Final = 2.0
_CHANCE: Final = 0.01


def draw(subject: Subject, counts: Counts) -> tuple[Figure, ...]:
    """Return all figures, in the order of the page."""
    figures = (_rate, _decisions, _outcomes, _execution, _data_load, _fallbacks, _drift)
    return tuple(one(subject, counts) for one in figures)


def _rate(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data = []
    for line, colour in coloured(counts):
        is_inside = inside(line)
        values = [
            float(count / seconds) if there else None
            for count, seconds, there in zip(line.rows, subject.seconds, is_inside, strict=True)
        ]
        rows += rows_of(subject, line, [line.rows.astype(int).tolist(), values], line.rows > 0)
        data.append(trace_of(subject, line, values, colour, hovertemplate="%{y:.3~s}/s"))
    total = sum(float(line.rows.sum()) for line in counts.lines)
    words = (
        f"{total:,.0f} rows, {total / float(subject.seconds.sum()):,.3g} per second on average. A line ends "
        "with the last decision of its lane and version."
    )
    plot = layout_of(subject, axis("rows per second", rangemode="tozero"))
    columns = ("start", "lane", "version", "rows", "per_second")
    return figure_of("rate", "Request rate", words, data, plot, columns, rows)


def _decisions(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data: list[dict[str, Any]] = []
    total = sum((line.counts.sum(axis=0) for line in counts.lines), np.zeros(cells.WIDTH))[LABEL:]
    order = [int(one) for one in np.argsort(-total[:-1], kind="stable") if total[one] > 0]
    named = order[:_MOST_LABELS]
    rest = [*order[_MOST_LABELS:], OTHER_LABELS - LABEL]
    choices = [(counts.labels[one], [one]) for one in named]
    if total[rest].sum():
        choices.append(("other", rest))
    is_crowded = len(choices) * len(counts.lines) > _MANY_LINES
    shares = []
    for line, colour in coloured(counts):
        labelled = line.counts[:, LABEL:].sum(axis=1)
        for place, (name, codes) in enumerate(choices):
            own = line.counts[:, LABEL:][:, codes].sum(axis=1)
            values = divided(own, labelled)
            rows += rows_of(subject, line, [[name] * len(own), own.astype(int).tolist(), values], own > 0)
            trace = trace_of(subject, line, values, colour, dash=_DASHES[place], hovertemplate="%{y:.2%}")
            trace |= {"name": f"{name} {trace['name']}", "showlegend": False}
            # The most frequent decision of each version is what the others are the remainder of.
            if not (is_crowded and codes == [order[0]]):
                data.append(trace)
    for name, codes in choices:
        shares.append(f"{name} {percent(float(total[codes].sum() / total.sum()))}")
    words = f"Of all rows in the window: {', '.join(shares)}." if shares else NOTHING
    if is_crowded:
        words += f" The lines of {choices[0][0]} are in the numbers only."
        choices = choices[1:]
    data += legend(counts, {name: _DASHES[at + is_crowded] for at, (name, _) in enumerate(choices)})
    plot = layout_of(subject, axis("share of rows", tickformat=".0%", rangemode="tozero"))
    columns = ("start", "lane", "version", "decision", "rows", "share")
    return figure_of("decisions", "Decisions by outcome", words, data, plot, columns, rows)


def _outcomes(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data: list[dict[str, Any]] = []
    colours = {line.bundle: colour for line, colour in coloured(counts)}
    matured_rows = matured_positive = 0.0
    for one in counts.outcomes:
        final = divided(one.matured_positive, one.matured)
        so_far = divided(one.positive, one.rows)
        is_complete = (one.matured >= one.rows) & (one.rows > 0)
        name = short_digest(one.bundle)
        lines = (
            (
                f"{name} complete",
                [y if whole else None for y, whole in zip(final, is_complete, strict=True)],
                "solid",
            ),
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
    plot = layout_of(subject, share_axis(f"share of {subject.outcome}", data))
    columns = (
        "start", "version", "rows", "matured_share", "reported", "positive", "rate_so_far", "rate_of_matured",
        "state",
    )  # fmt: skip
    title = f"Outcome rate: {subject.outcome}"
    return figure_of("outcomes", title, words, data, plot, columns, rows)


def _execution(subject: Subject, counts: Counts) -> Figure:
    return _time(subject, counts, "execution", "Execution", EXEC)


def _data_load(subject: Subject, counts: Counts) -> Figure:
    return _time(subject, counts, "data-load", "Data loading", LOAD)


def _time(subject: Subject, counts: Counts, name: str, title: str, base: int) -> Figure:
    """p50 and p99 of a time, on a logarithmic axis around the data, with the SLA."""
    rows: list[tuple[Any, ...]] = []
    data: list[dict[str, Any]] = []
    whole = np.zeros(TIME_BINS, dtype=np.int64)
    for line, colour in coloured(counts):
        times = line.counts[:, base : base + TIME_BINS].astype(np.int64)
        whole += times.sum(axis=0)
        found = [[known(cells.quantile(one, q)) for one in times] for q in (0.5, 0.99)]
        sizes = times.sum(axis=1)
        rows += rows_of(subject, line, [sizes.tolist(), *found], sizes > 0)
        for label, values, dash in (("p50", found[0], "dot"), ("p99", found[1], "solid")):
            y = [None if value is None or not value else round(value / 1000, 5) for value in values]
            trace = trace_of(subject, line, y, colour, dash=dash, hovertemplate="%{y:.3g} ms")
            trace |= {"name": f"{label} {trace['name']}", "showlegend": False}
            if label == "p50":
                trace["line"]["width"] = 1.5
            data.append(trace)
    ends = [moment(subject.window.start), moment(subject.window.end)]
    shown = [y for trace in data for y in trace["y"] if y]
    data += legend(counts, {"p99": "solid", "p50": "dot"})
    labels: list[dict[str, Any]] = []
    if shown:
        limit, text = subject.sla_us / 1000, f"SLA {micros(subject.sla_us)}"
        lines, labels = sla_line(limit, shown, ends, text=text, vertical=False)
        data += [{**line, "showlegend": False} for line in lines]
        # Without a line, the label is above the data.
        shown.append(limit if lines else _HEADROOM * max(shown))
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
    plot = layout_of(subject, log_axis("ms (log)", shown, range=log_range(shown)), labels)
    columns = ("start", "lane", "version", "rows", "p50_us", "p99_us")
    return figure_of(name, f"{title}: p50 and p99", words, data, plot, columns, rows)


def _fallbacks(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data = []
    total = bad = 0.0
    for line, colour in coloured(counts):
        own = line.counts[:, cells.FALLBACKS] + line.counts[:, cells.ERRORS]
        values = divided(own, line.rows)
        total, bad = total + float(line.rows.sum()), bad + float(own.sum())
        rows += rows_of(
            subject, line, [line.rows.astype(int).tolist(), own.astype(int).tolist(), values], line.rows > 0
        )
        data.append(trace_of(subject, line, values, colour, hovertemplate="%{y:.3%}"))
    words = (
        f"{percent(bad / total, 3)} of the rows were not answered by the model. In observe lanes, these are "
        "observations that failed."
        if total
        else NOTHING
    )
    plot = layout_of(subject, share_axis("share of rows", data))
    columns = ("start", "lane", "version", "rows", "fallbacks", "share")
    return figure_of("fallbacks", "Fallback rate", words, data, plot, columns, rows)


def _drift(subject: Subject, counts: Counts) -> Figure:
    rows: list[tuple[Any, ...]] = []
    data = []
    missing = set()
    for line, colour in coloured(counts):
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
        rows += rows_of(subject, line, [sizes.astype(int).tolist(), psi, chance], sizes > 0)
        shown = [value if size >= _ENOUGH else None for value, size in zip(psi, sizes, strict=True)]
        data.append(trace_of(subject, line, shown, colour, hovertemplate="%{y:.3f}"))
    words = (
        "PSI of the scores against the reference of their own bundle, in the bins of the gate score_psi. "
        f"Points of fewer than {_ENOUGH} scores are in the numbers only; by_chance is the PSI that 1 % of "
        "samples of that size exceed without any drift."
    )
    if not data:
        words = NOTHING if not counts.lines else "No score could be compared."
    if missing:
        words += f" Not available for {', '.join(sorted(missing))}: the bundle's reference could not be read."
    plot = layout_of(subject, axis("PSI", rangemode="tozero"))
    columns = ("start", "lane", "version", "scores", "psi", "by_chance")
    return figure_of("drift", "Score drift", words, data, plot, columns, rows)
