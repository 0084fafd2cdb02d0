"""The charts of a comparison as Plotly figures with their numbers, for the platform, pages and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

from scorer.figure import Figure
from scorer.figure_style import SEQUENTIAL, SERIES, SYMBOLS, axis, layout, scatter
from scorer.learn.comparison.measures import LOWER_IS_BETTER, NOT_RANKED
from scorer.learn.comparison.results import Basis, VersionComparison, VersionWeek
from scorer.learn.errors import DataError

TITLES: Final[Mapping[str, str]] = {
    "average_precision": "average precision",
    "auc": "AUC",
    "calibration_error": "calibration error",
    "recall": "recall at its own thresholds",
    "precision": "precision at its own thresholds",
    "recall_at_live_rate": "recall at the live rate",
    "value": "value per 1,000 decisions",
    "reward": "approval rate",
    "effective_share": "effective share of the decisions",
}
GROUPS: Final = ("version", "algorithm", "data")
"""What lines can be drawn for; further ones are `parameter:NAME`."""
_ROW_PX: Final = 30
_DIGITS: Final = 7
_TICKS: Final = 5


def version_name(found: VersionComparison, at: int) -> str:
    """Return the first digits of a version's digest, after its name if the versions have different ones."""
    facts = found.versions[at]
    digits = facts.digest.removeprefix("sha256:")[:_DIGITS]
    return digits if len({one.name for one in found.versions}) == 1 else f"{facts.name} {digits}"


def group_names(found: VersionComparison) -> tuple[str, ...]:
    """Return what lines can be drawn for: versions, algorithms, data sets, and parameters that differ."""
    names = dict.fromkeys(name for one in found.versions for name in one.parameters or {})
    differing = [
        name for name in names if len({(one.parameters or {}).get(name, "") for one in found.versions}) > 1
    ]
    return (*GROUPS, *(f"parameter:{name}" for name in differing))


def charts(found: VersionComparison, metric: str = "", by: str = "version") -> tuple[Figure, ...]:
    """Return the charts of one metric.

    Args:
        found: The comparison.
        metric: Name of the metric; empty: the first one.
        by: What a line is drawn for; see `group_names`.

    Raises:
        DataError: There is no such metric or group.
    """
    if not found.metrics:
        return ()
    chosen = metric or found.metrics[0]
    if chosen not in found.metrics:
        raise DataError(f'there is no metric "{chosen[:40]}"; there are {", ".join(found.metrics)}')
    if by not in group_names(found):
        raise DataError(f'there is no group "{by[:40]}"; there are {", ".join(group_names(found))}')
    made = [
        weeks_chart(found, chosen, "backtest", by),
        weeks_chart(found, chosen, "served", by),
    ]
    if chosen not in NOT_RANKED:
        made += [best_chart(found, chosen), pairs_chart(found, chosen)]
    return tuple(made)


def weeks_chart(found: VersionComparison, metric: str, basis: Basis, by: str = "version") -> Figure:
    """Return the metric of each version, or group of versions, by week, with 95 % bands."""
    title = TITLES.get(metric, metric)
    weeks = [week.begin for week in found.weeks]
    groups: dict[str, list[int]] = {}
    for at in range(len(found.versions)):
        groups.setdefault(_group(found, at, by), []).append(at)
    data: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    for place, (name, versions) in enumerate(groups.items()):
        colour, symbol = SERIES[place % len(SERIES)], SYMBOLS[place // len(SERIES) % len(SYMBOLS)]
        cells = [_mean(found, versions, week, basis, metric) for week in range(len(weeks))]
        rows += [
            (week, name, *cell)
            for week, cell in zip(weeks, cells, strict=True)
            if cell[0] is not None or cell[3]
        ]
        if any(cell[1] is not None for cell in cells):
            data += _bands(weeks, cells, name, colour)
        data.append(
            scatter(
                weeks,
                [cell[0] for cell in cells],
                name,
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"symbol": symbol, "size": 8, "color": colour},
                connectgaps=False,
                legendgroup=name,
            )
        )
    plot = layout(
        _week_axis(weeks),
        axis(title),
        shapes=_unsettled(found),
    )
    open_ = sum(not week.settled for week in found.weeks)
    what = "all decisions of a week" if basis == "backtest" else "the decisions that each version served"
    words = f"Measured on {what}, with 95 % intervals."
    if open_:
        words += f" {open_} shaded week{'s have' if open_ > 1 else ' has'} no values: not settled or empty."
    of = title[0].upper() + title[1:]
    heading = f"{of}, backtest" if basis == "backtest" else f"{of}, as served"
    columns = ("week", by, "value", "low", "high", "missing_because")
    return Figure(f"weeks-{basis}", heading, words, {"data": data, "layout": plot}, columns, rows)


def best_chart(found: VersionComparison, metric: str) -> Figure:
    """Return which version would have been best in each week, and how far the others are behind."""
    names = [version_name(found, at) for at in range(len(found.versions))]
    weeks = [week.begin for week in found.weeks]
    best = {one.week: one for one in found.best if one.metric == metric}
    distance: list[list[float | None]] = []
    marks: list[list[str]] = []
    rows: list[tuple[Any, ...]] = []
    for at, name in enumerate(names):
        own: list[float | None] = []
        text: list[str] = []
        for week, begin in enumerate(weeks):
            value = _value(found.of(at, week, "backtest"), metric)
            first = best.get(week)
            top = None if first is None else _value(found.of(first.version, week, "backtest"), metric)
            behind = None if value is None or top is None else -abs(value - top)
            own.append(behind)
            is_best = first is not None and first.version == at
            text.append(("●" if first is not None and first.clear else "○") if is_best else "")
            if value is not None:
                rows.append((begin, name, value, behind, is_best, bool(is_best and first and first.clear)))
        distance.append(own)
        marks.append(text)
    trace = {
        "type": "heatmap",
        "x": weeks,
        "y": names,
        "z": distance,
        "text": marks,
        "texttemplate": "%{text}",
        "textfont": {"size": 16},
        "zmax": 0,
        "colorscale": SEQUENTIAL,
        "colorbar": {"title": {"text": "behind the best"}},
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "%{y}<br>%{x}: %{z:.4g} against the best<extra></extra>",
    }
    plot = layout(
        _week_axis(weeks),
        axis("", type="category", dtick=1, autorange="reversed"),
        height=max(220, 140 + _ROW_PX * len(names)),
    )
    spans = _spans(found, best)
    words = (
        f"{'The lowest' if metric in LOWER_IS_BETTER else 'The highest'} value of each settled week is "
        "marked: ● if the paired interval of its lead excludes 0, ○ if not."
    )
    if spans:
        words += f" Best by week: {'; '.join(spans)}."
    columns = ("week", "version", "value", "behind", "best", "clear")
    figure = {"data": [trace], "layout": plot | {"hovermode": "closest"}}
    return Figure("best", "The version that would have been best", words, figure, columns, rows)


def pairs_chart(found: VersionComparison, metric: str) -> Figure:
    """Return the paired differences of all versions on the same decisions."""
    own = [one for one in found.pairs if one.metric == metric]
    names = [
        f"{version_name(found, one.left)} − {version_name(found, one.right)}"  # noqa: RUF001 - a minus sign
        for one in own
    ]
    rows = [
        (
            version_name(found, one.left),
            version_name(found, one.right),
            one.weeks,
            one.rows,
            one.difference.value,
            one.difference.low,
            one.difference.high,
        )
        for one in own
    ]
    reach = [
        0.0 if one.difference.high is None else one.difference.high - one.difference.value for one in own
    ]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [one.difference.value for one in own],
        "y": names,
        "error_x": {"type": "data", "array": reach, "thickness": 2},
        "marker": {"size": 9, "color": SERIES[0]},
        "name": "difference",
        "hovertemplate": "%{y}<br>%{x:.4g}<extra></extra>",
    }
    plot = layout(
        axis(f"difference of {TITLES.get(metric, metric)}", zeroline=True),
        axis("", type="category", dtick=1, autorange="reversed"),
        height=max(220, 120 + _ROW_PX * len(names)),
        showlegend=False,
    )
    clear = sum(
        one.difference.low is not None
        and one.difference.high is not None
        and (one.difference.low > 0 or one.difference.high < 0)
        for one in own
    )
    words = (
        f"Each pair is measured on the same decisions of the settled weeks of both. {clear} of {len(own)} "
        "intervals (95 % each, bootstrap by day) exclude 0."
        if own
        else "No two versions can be compared on the same decisions."
    )
    columns = ("left", "right", "weeks", "decisions", "difference", "low", "high")
    figure = {"data": [trace], "layout": plot | {"hovermode": "closest"}}
    return Figure("pairs", "Paired differences", words, figure, columns, rows)


def _group(found: VersionComparison, at: int, by: str) -> str:
    facts = found.versions[at]
    if by == "algorithm":
        return facts.algorithm or "not stated"
    if by == "data":
        return facts.data.removeprefix("sha256:")[:12] or "not stated"
    if by.startswith("parameter:"):
        name = by.partition(":")[2]
        return f"{name} = {(facts.parameters or {}).get(name, 'not stated')}"
    return version_name(found, at)


def _mean(
    found: VersionComparison, versions: Sequence[int], week: int, basis: Basis, metric: str
) -> tuple[float | None, float | None, float | None, str]:
    """Return value, bounds and the reason without a value; of several versions their mean, without bounds."""
    cells = [one for at in versions if (one := found.of(at, week, basis)) is not None]
    known = [one.metrics[metric] for one in cells if metric in one.metrics]
    if not known:
        return None, None, None, cells[0].reason if cells else found.weeks[week].reason
    if len(versions) == 1:
        return known[0].value, known[0].low, known[0].high, ""
    return sum(one.value for one in known) / len(known), None, None, ""


def _value(one: VersionWeek | None, metric: str) -> float | None:
    return None if one is None or metric not in one.metrics else one.metrics[metric].value


def _bands(
    weeks: Sequence[str], cells: Sequence[tuple[Any, ...]], name: str, colour: str
) -> list[dict[str, Any]]:
    """Return a filled band for each run of weeks that have bounds."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    style = {
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.14)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": name,
    }
    bands, run = [], list[int]()
    for at in range(len(cells) + 1):
        if at < len(cells) and cells[at][1] is not None:
            run.append(at)
            continue
        if run:
            x = [weeks[one] for one in run]
            low, high = [cells[one][1] for one in run], [cells[one][2] for one in run]
            bands.append(scatter(x + x[::-1], high + low[::-1], name, **style))
        run = []
    return bands


def _week_axis(weeks: Sequence[str]) -> dict[str, Any]:
    """Return the axis of weeks with at most five ticks, so that they do not overlap."""
    ticks = list(weeks[:: max(-(-len(weeks) // _TICKS), 1)])
    return axis(
        "week that begins, UTC",
        type="category",
        # A line without values in the first weeks would otherwise move them behind the others.
        categoryorder="array",
        categoryarray=list(weeks),
        tickvals=ticks,
        ticktext=[f"{date.fromisoformat(one):%-d %b}" for one in ticks],
    )


def _unsettled(found: VersionComparison) -> list[dict[str, Any]]:
    """Return a grey rectangle for each week without values. Positions are those of a category axis."""
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": at - 0.5,
            "x1": at + 0.5,
            "y0": 0,
            "y1": 1,
            "fillcolor": "rgba(107,114,128,0.12)",
            "line": {"width": 0},
            "layer": "below",
        }
        for at, week in enumerate(found.weeks)
        if not week.settled
    ]


def _spans(found: VersionComparison, best: Mapping[int, Any]) -> list[str]:
    """Return the runs of weeks with the same best version, in words."""
    runs: list[tuple[int, int, int]] = []
    for week in sorted(best):
        version = best[week].version
        if runs and runs[-1][0] == version:
            runs[-1] = (version, runs[-1][1], week)
        else:
            runs.append((version, week, week))
    shown = [
        f"{version_name(found, version)} from {found.weeks[first].begin} to {found.weeks[last].begin}"
        for version, first, last in runs[:4]
    ]
    return shown + ([f"and {len(runs) - 4} further changes"] if len(runs) > 4 else [])
