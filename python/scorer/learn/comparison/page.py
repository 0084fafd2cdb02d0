"""A comparison as one HTML page."""

from __future__ import annotations

from datetime import UTC, datetime

from scorer.learn.comparison.figures import TITLES, charts, version_name
from scorer.learn.comparison.results import MetricValue, VersionComparison
from scorer.report import ReportPage


def comparison_page(found: VersionComparison, metric: str = "") -> str:
    """Return a self-contained page with the versions, the charts of one metric, and all weeks.

    Args:
        found: The comparison.
        metric: Name of the metric; empty: the first one.

    Raises:
        DataError: There is no such metric.
    """
    moment = datetime.fromtimestamp(found.as_of_ms / 1000, UTC)
    settled = sum(week.settled for week in found.weeks)
    page = ReportPage(
        f"Versions of {found.checkpoint} over time",
        f"{len(found.versions)} versions in {settled} settled weeks, on {moment:%Y-%m-%d %H:%M}, UTC.",
    )
    page.table(
        ("version", "built", "algorithm", "data", "parameters", "state"),
        [
            (
                version_name(found, at),
                one.created[:10],
                one.algorithm,
                one.data.removeprefix("sha256:")[:12],
                ", ".join(f"{name} {value}" for name, value in (one.parameters or {}).items()),
                one.refused or "compared",
            )
            for at, one in enumerate(found.versions)
        ],
        texts=range(6),
    )
    for one in charts(found, metric):
        page.plotly(one.name, one.title, one.words, one.plotly, one.columns, one.rows)
    page.section(
        "All settled weeks", "Backtest: on all decisions. Served: on those that the version answered."
    )
    page.table(
        (
            "version",
            "basis",
            "decisions",
            *(TITLES.get(name, name) for name in found.metrics),
            "missing because",
        ),
        [
            (
                version_name(found, one.version),
                one.basis,
                f"{one.rows:,}",
                *(_text(one.metrics.get(name)) for name in found.metrics),
                one.reason,
            )
            for one in found.values
            if one.week is None
        ],
        texts=(0, 1),
    )
    page.section("Weeks")
    page.table(
        ("week", "decisions", "labelled", "positive", "declined", "labels that have come", "state"),
        [
            (
                week.begin,
                f"{week.decisions:,}",
                f"{week.labelled:,}",
                f"{week.positive:,}",
                f"{week.declined:,}",
                f"{week.maturity:.1%}",
                week.reason or "settled",
            )
            for week in found.weeks
        ],
        texts=(0, 6),
    )
    for reason, count in found.left_out.items():
        page.note(f"{count:,} left out: {reason}.")
    for note in found.notes:
        page.note(note)
    return page.text()


def _text(one: MetricValue | None) -> str:
    if one is None:
        return "-"
    bounds = "" if one.low is None or one.high is None else f" ({one.low:,.3g} to {one.high:,.3g})"
    return f"{one.value:,.4g}{bounds}"
