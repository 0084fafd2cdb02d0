"""Figures of times: execution, data load and latency, over time and as distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from scorer.figure import Figure
from scorer.figure_style import (
    COLOURS,
    NAMES,
    axis,
    layout,
    line,
    log_axis,
    micros,
    scatter,
    sla_line,
)
from scorer.release.gates.evidence import Floats, Ints, Observed, ShadowEvidence
from scorer.stats.quantiles import quantile

BUCKETS = 60
LEAST_ROWS = 20
# With fewer rows, the p99 (or p99.9) is the maximum.
_ENOUGH, _ENOUGH_FOR_TAIL = 100, 1_000
_STEPS_S = (1, 5, 10, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400)
_POINTS = 160
_HEADROOM = 2.5
_FIRST, _LAST = 0.001, 0.999
"""Shares of the requests that limit the axis of the latency distribution."""


def buckets(at: Ints, *, most: int = BUCKETS) -> tuple[Ints, int]:
    """Return the start of each row's bucket, `[n]`, and the length of the buckets, in microseconds.

    Args:
        at: Times of the rows in microseconds since the Unix epoch, `[n]`.
        most: Largest number of buckets.
    """
    if not len(at):
        return at, 1_000_000
    span = int(at.max()) - int(at.min())
    step = next((s for s in _STEPS_S if span <= s * 1_000_000 * most), _STEPS_S[-1]) * 1_000_000
    return at // step * step, step


def moment(at: int) -> str:
    """Format a time in microseconds since the Unix epoch for Plotly and CSV: ISO 8601 in UTC."""
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat().replace("+00:00", "Z")


def sides(
    evidence: ShadowEvidence, times: Callable[[Observed], Floats], live: Callable[[Observed], Floats]
) -> Any:
    """Yield side, times of decisions and durations of the live bundle, this bundle and the A/A control.

    Rows without a score are left out.
    """
    shadow, control = evidence.shadow, evidence.control
    kept = shadow.take(shadow.error == 0)
    yield "live", shadow.at, live(shadow)
    yield "shadow", kept.at, times(kept)
    if len(control):
        good = control.take(control.error == 0)
        yield "control", good.at, times(good)


def execution(evidence: ShadowEvidence) -> Figure:
    """Draw p50, p99 and p99.9 of the execution time over time, with the SLA."""
    columns = ("time", "side", "rows", "p50_us", "p99_us", "p999_us")
    rows: list[tuple[Any, ...]] = []
    data: list[dict[str, Any]] = []
    for side, at, times in sides(evidence, lambda one: one.exec_us, lambda one: one.live_exec_us):
        points = []
        bucket, _ = buckets(at, most=min(max(len(at) // _ENOUGH, 1), BUCKETS))
        for start, values in _groups(bucket, times):
            found = [_known(quantile(values, q)) for q in (0.5, 0.99, 0.999)]
            if len(values) < _ENOUGH_FOR_TAIL:
                found[2] = None
            points.append((moment(start), side, len(values), *found))
        rows += points
        for place, (name, dash) in enumerate((("p50", "dot"), ("p99", "solid"), ("p99.9", "dash"))):
            if side == "control" and name != "p99":
                continue
            # Times are in whole microseconds, and 0 has no place on a logarithmic axis.
            y = [_ms(point[3 + place] or None) for point in points]
            data.append(
                scatter(
                    [point[0] for point in points],
                    y,
                    f"{NAMES[side]} {name}",
                    mode="lines+markers" if len(points) < 3 else "lines",
                    line=line(side, width=2.5 if name == "p99" else 1.2, dash=dash),
                    hovertemplate="%{y:.3g} ms",
                    # The lines of the control are hidden at first, because six lines would overlap.
                    visible="legendonly" if name == "p99.9" else True,
                )
            )
    # The control is drawn first: it is the background that the other two are compared with.
    data.sort(key=lambda trace: not str(trace["name"]).startswith(NAMES["control"]))
    ends = [point["x"][end] for point in data if point["x"] for end in (0, -1)]
    shown = [y for trace in data for y in trace["y"]]
    lines, labels = sla_line(
        evidence.sla_us / 1000,
        shown,
        [min(ends), max(ends)] if ends else [],
        text=f"SLA {micros(evidence.sla_us)}",
        vertical=False,
    )
    data += lines if ends else []
    shown = [y for trace in data for y in trace["y"]]
    if not lines:
        # The label is above the data.
        shown += [_HEADROOM * max((y for y in shown if y is not None), default=1.0)]
    plot = layout(axis("time (UTC)", type="date"), log_axis("execution, ms (log)", shown), annotations=labels)
    shadow = evidence.shadow.take(evidence.shadow.error == 0)
    own, live = quantile(shadow.exec_us, 0.99), quantile(evidence.shadow.live_exec_us, 0.99)
    words = (
        f"p99 of this bundle is {micros(own)}, of live {micros(live)} on the same requests; the SLA is "
        f"{micros(evidence.sla_us)}."
    )
    return Figure("execution", "Execution over time", words, _plot(data, plot), columns, rows)


def data_load(evidence: ShadowEvidence) -> Figure:
    """Draw the time to obtain features beside the execution, by quantile."""
    columns = ("side", "quantile", "data_load_us", "exec_us")
    rows: list[tuple[Any, ...]] = []
    loads = {side: times for side, _, times in sides(evidence, lambda o: o.load_us, lambda o: o.live_load_us)}
    execs = {side: times for side, _, times in sides(evidence, lambda o: o.exec_us, lambda o: o.live_exec_us)}
    for side, load in loads.items():
        for name, q in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            rows.append((side, name, _known(quantile(load, q)), _known(quantile(execs[side], q))))
    x = [[NAMES[row[0]] for row in rows], [row[1] for row in rows]]
    data: list[dict[str, Any]] = [
        {"type": "bar", "x": x, "y": [_ms(row[2]) for row in rows], "name": "data-load"}
        | {"marker": {"color": COLOURS["training"]}},
        {"type": "bar", "x": x, "y": [_ms(row[3]) for row in rows], "name": "execution"}
        | {"marker": {"color": COLOURS["live"]}},
    ]
    # A p99.9 of milliseconds would leave nothing to see of a p50 of microseconds on a linear axis.
    shown = [value for trace in data for value in trace["y"]]
    lines, labels = sla_line(
        evidence.sla_us / 1000, shown, (0, 1), text=f"SLA {micros(evidence.sla_us)}", vertical=False
    )
    # Groups of bars have no places that a line of data could begin and end at, so it is drawn over the chart.
    shapes = [_across(trace) for trace in lines]
    shown += [y for trace in lines for y in trace["y"]]
    if not lines:
        # The label is above the bars.
        shown += [_HEADROOM * max((y for y in shown if y is not None), default=1.0)]
    plot = layout(
        axis("", type="multicategory", tickangle=-90),
        log_axis("ms (log)", shown),
        barmode="group",
        annotations=labels,
        shapes=shapes,
    )
    words = (
        f"Features take {micros(quantile(loads['shadow'], 0.99))} at p99 for this bundle and "
        f"{micros(quantile(loads['live'], 0.99))} for live; each bar is a quantile of its own."
    )
    return Figure("data-load", "Data-load beside execution", words, _plot(data, plot), columns, rows)


def latency(evidence: ShadowEvidence) -> Figure:
    """Draw the share of requests by their largest latency."""
    columns = ("side", "share", "exec_us")
    # More points near 1, where the SLA is.
    shares = np.unique(np.concatenate([np.linspace(0, 0.99, _POINTS), 1 - np.logspace(-2, -4, 41)]))
    rows: list[tuple[Any, ...]] = []
    data: list[dict[str, Any]] = []
    around: list[float | None] = []
    for side, _, every in sides(evidence, lambda one: one.exec_us, lambda one: one.live_exec_us):
        times = np.sort(every[np.isfinite(every)])
        if not len(times):
            continue
        at = np.ceil(shares * len(times)).astype(np.int64).clip(1, len(times)) - 1
        points = [(side, float(share), float(value)) for share, value in zip(shares, times[at], strict=True)]
        rows += points
        # Without this limit, a single outlier would determine the range of the axis.
        around += [point[2] / 1000 for point in points if _FIRST <= point[1] <= _LAST]
        data.append(
            scatter(
                [point[2] / 1000 for point in points],
                [point[1] for point in points],
                NAMES[side],
                line=line(side, width=2.5 if side == "shadow" else 2) | {"shape": "hv"},
                hovertemplate="%{y:.3%} within %{x:.3g} ms",
            )
        )
    sla = evidence.sla_us / 1000
    lines, labels = sla_line(sla, around, (0, 1), text=f"SLA {micros(evidence.sla_us)}", vertical=True)
    data += lines
    own = _within(evidence.shadow.exec_us[evidence.shadow.error == 0], evidence.sla_us)
    live = _within(evidence.shadow.live_exec_us, evidence.sla_us)
    words = f"{own} of this bundle's evaluations and {live} of live's were within the SLA."
    plot = layout(
        log_axis("execution, ms (log)", [*around, *(x for trace in lines for x in trace["x"])]),
        axis("share of requests", tickformat=".0%", range=[0, 1.02]),
        hovermode="closest",
        annotations=labels,
    )
    return Figure("latency", "Latency distribution", words, _plot(data, plot), columns, rows)


def _across(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return a horizontal line as a shape across the whole chart."""
    (y, _) = trace["y"]
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": trace["line"]}


def _within(times: Floats, limit: float) -> str:
    times = times[np.isfinite(times)]
    return f"{100 * float((times <= limit).mean()):.2f} %" if len(times) else "none"


def _groups(bucket: Ints, values: Floats) -> Sequence[tuple[int, Floats]]:
    """Return the values by bucket. Buckets with too few rows are left out unless there are no others."""
    if not len(bucket):
        return []
    order = np.argsort(bucket, kind="stable")
    starts, first = np.unique(bucket[order], return_index=True)
    parts = [
        (int(start), part)
        for start, part in zip(starts, np.split(values[order], first[1:]), strict=True)
        if len(part)
    ]
    enough = [one for one in parts if len(one[1]) >= LEAST_ROWS]
    return enough or parts


def _known(us: float) -> float | None:
    return None if math.isnan(us) else us


def _ms(us: float | None) -> float | None:
    return None if us is None else round(us / 1000, 4)


def _plot(data: Sequence[dict[str, Any]], plot: dict[str, Any]) -> dict[str, Any]:
    return {"data": list(data), "layout": plot}
