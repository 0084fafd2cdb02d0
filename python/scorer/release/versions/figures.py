"""Figures of two bundles over each other: scores, execution times, features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scorer.figure import Figure
from scorer.figure_style import (
    DENSITY,
    LIVE,
    SHADOW,
    axis,
    heights,
    layout,
    log_axis,
    micros,
    scatter,
    sla_line,
    steps,
)
from scorer.release.gates.evidence import Floats
from scorer.release.readout.figures.scores import bins, counted

COLOURS = (LIVE, SHADOW)
_FEATURES = 20
_LAST = 0.999


def references(named: Mapping[str, Mapping[str, Any]], name: str = "reference") -> Figure | None:
    """Return the histograms that bundles carry of their scores; None if none has one.

    Args:
        named: By name of a line: the distribution, with `edges` and `counts`.
        name: Name of the figure.
    """
    known = {
        title: (np.asarray(one["edges"], np.float64), np.asarray(one["counts"], np.float64))
        for title, one in named.items()
        if one.get("counts") and sum(one["counts"])
    }
    if not known:
        return None
    ends = [edges[[at, at + 1]] for edges, counts in known.values() for at in np.flatnonzero(counts)]
    low, high = float(np.min(ends)), float(np.max(ends))
    shares: dict[str, tuple[Floats, Floats] | None] = dict.fromkeys(named)
    for title, (own, counts) in known.items():
        edges = bins(own, max(low, own[0]), min(high, own[-1]))
        shares[title] = (edges, counted(own, counts, edges))
    words = "Scores when the bundles were built, as their own reference histograms count them."
    return _histograms(shares, name, "Reference scores", words)


def observed_scores(named: Mapping[str, Figure | None]) -> Figure | None:
    """Return the score histograms of reports over each other; None if there is none.

    Args:
        named: By name of a line: the figure `scores` of the report; None if the side has no report.
    """
    shares: dict[str, tuple[Floats, Floats] | None] = dict.fromkeys(named)
    for title, figure in named.items():
        if figure is None or not figure.rows:
            continue
        table = {name: [row[at] for row in figure.rows] for at, name in enumerate(figure.columns)}
        edges = np.asarray([*table["from"], table["to"][-1]], np.float64)
        shares[title] = (edges, np.asarray(table["shadow"], np.float64))
    return _histograms(
        shares,
        "observed-scores",
        "Observed scores",
        "Scores of the requests that each bundle was observed at. Reports of different times saw different "
        "requests.",
    )


def _histograms(
    shares: Mapping[str, tuple[Floats, Floats] | None], name: str, title: str, words: str
) -> Figure | None:
    """Draw a histogram for each side that has one. A side keeps its colour where it is alone."""
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    every = [one[0] for one in shares.values() if one is not None]
    if not every:
        return None
    is_common = all(len(one) == len(every[0]) and np.allclose(one, every[0]) for one in every)
    what = "share"
    for place, (line, found) in enumerate(shares.items()):
        if found is None:
            continue
        edges, values = found
        what, (own,) = heights(edges, values)
        if not is_common and what == "share":
            # Bins of other bundles have other widths.
            what, own = DENSITY, values * 0.01 / np.diff(edges)
        data.append(_line(place, line, *steps(edges.tolist(), own.tolist()), hovertemplate="%{y:.3%}"))
        rows += [
            (line, low, high, value)
            for low, high, value in zip(edges[:-1].tolist(), edges[1:].tolist(), values.tolist(), strict=True)
        ]
    shown = [y for trace in data for y in trace["y"]]
    plot = layout(
        axis("score"),
        log_axis(f"{what} of rows (log)", shown, unit="%"),
        hovermode="closest",
        showlegend=True,
    )
    return Figure(name, title, words, {"data": data, "layout": plot}, ("bundle", "from", "to", "share"), rows)


def execution(named: Mapping[str, Figure | None], sla_us: Sequence[float]) -> Figure | None:
    """Return the distributions of execution times of reports over each other; None if there is none.

    Args:
        named: By name of a line: the figure `latency` of the report; None if the side has no report.
        sla_us: SLAs of the reports' checkpoints, in microseconds.
    """
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    around: list[float | None] = []
    tails = []
    for place, (line, figure) in enumerate(named.items()):
        points = [(share, us) for side, share, us in figure.rows if side == "shadow"] if figure else []
        if not points:
            continue
        rows += [(line, share, us) for share, us in points]
        around += [us / 1000 for share, us in points if 0.001 <= share <= _LAST]
        tails.append(f"p99 of {line} is {micros(next(us for share, us in points if share >= 0.99))}")
        x, y = [us / 1000 for _, us in points], [share for share, _ in points]
        trace = _line(place, line, x, y, hovertemplate="%{y:.3%} within %{x:.3g} ms")
        trace["line"]["shape"] = "hv"
        data.append(trace)
    if not data:
        return None
    labels: list[dict[str, Any]] = []
    for limit in sorted(set(sla_us)):
        lines, own = sla_line(limit / 1000, around, (0, 1), text=f"SLA {micros(limit)}", vertical=True)
        data += lines
        labels += own
        around += [x for trace in lines for x in trace["x"]]
    plot = layout(
        log_axis("execution, ms (log)", around),
        axis("share of requests", tickformat=".0%", range=[0, 1.02]),
        hovermode="closest",
        annotations=labels,
        showlegend=True,
    )
    words = f"{'; '.join(tails)}."
    plotly = {"data": data, "layout": plot}
    return Figure("execution", "Execution times", words, plotly, ("bundle", "share", "exec_us"), rows)


def importance(named: Mapping[str, Mapping[str, float]], what: str) -> Figure | None:
    """Return the importances of features beside each other; None if a bundle has none.

    Args:
        named: By name of a bar: importance by feature. Each is shown as a share of its sum.
        what: What the importances are, for example `Splits on the feature`.
    """
    if not named or not all(sum(one.values()) > 0 for one in named.values()):
        return None
    shares = {
        line: {name: value / sum(one.values()) for name, value in one.items()} for line, one in named.items()
    }
    names = dict.fromkeys(name for one in shares.values() for name in one)
    ordered = sorted(names, key=lambda name: -max(one.get(name, 0.0) for one in shares.values()))
    shown = ordered[:_FEATURES]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": shown,
            "x": [one.get(name, 0.0) for name in shown],
            "name": line,
            "marker": {"color": COLOURS[place % 2], "pattern": {"shape": "/" if place else ""}},
            "hovertemplate": "%{x:.2%}",
        }
        for place, (line, one) in enumerate(shares.items())
    ]
    plot = layout(
        axis("share of the sum", tickformat=".0%"),
        axis("", type="category", autorange="reversed"),
        barmode="group",
        hovermode="closest",
    )
    words = f"{what}, as shares of the sum."
    if len(ordered) > len(shown):
        words += f" The {len(shown)} of {len(ordered)} features with the largest share are drawn."
    rows = [(name, *(one.get(name) for one in shares.values())) for name in ordered]
    return Figure(
        "importance", "Feature importance", words, {"data": data, "layout": plot}, ("feature", *shares), rows
    )


def _line(place: int, name: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
    dash = "solid" if place == 0 else "dash"
    return scatter(x, y, name, line={"color": COLOURS[place % 2], "width": 2.2, "dash": dash}, **more)
