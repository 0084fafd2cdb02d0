"""The page of maturity curves."""

from __future__ import annotations

from datetime import UTC, datetime

from scorer.learn.labels import plots
from scorer.learn.labels.curves import DAY_MS, MaturityCurve, MaturityCurves
from scorer.report import PART, ReportPage

LATE_LIMIT = 0.02
"""Share of the reports in the last fifth of the horizon above which the horizon is called too short."""


def maturity_page(curves: MaturityCurves) -> str:
    """Return one self-contained HTML page about all curves of a file."""
    window = curves.window
    page = ReportPage(
        f"Maturity of outcomes at {window.checkpoint}",
        f"{window.decisions:,} decisions from {_day(window.first_ms)} to {_day(window.last_ms)}, as known on "
        f"{_day(window.as_of_ms)} (UTC).",
    )
    for kind in curves.kinds():
        _kind(page, curves, kind)
    page.section("How this was estimated")
    page.note(
        f"{curves.estimator}; confidence {curves.confidence:.0%}. A report is positive from the value "
        f"{curves.threshold:g} on. A segment with fewer than {curves.least} reports, or with fewer than "
        f"{curves.least} decisions as old as the horizon, uses the curve of all decisions. Delays end when "
        f"{'the report was received' if window.clock == 'received' else 'the outcome occurred'}."
    )
    page.table(
        ("", ""),
        [
            ("logs", ", ".join(window.logs)),
            ("data", window.data_digest),
            ("curves", curves.digest),
            *((f"finding: {name}", f"{count:,}") for name, count in window.findings.items()),
        ],
        texts=(0, 1),
    )
    return page.text()


def age_text(milliseconds: float) -> str:
    """Return a duration in its largest fitting unit."""
    for unit, name in ((DAY_MS, "d"), (3_600_000, "h"), (60_000, "min")):
        if milliseconds >= unit:
            return f"{milliseconds / unit:.3g} {name}"
    return f"{milliseconds / 1000:.3g} s"


def _kind(page: ReportPage, curves: MaturityCurves, kind: str) -> None:
    pooled = curves.of(kind)
    own = [one for one in curves.curves if one.kind == kind and one.segment is not None]
    page.section(
        kind,
        f"{pooled.reports:,} of {pooled.decisions:,} decisions have a report within {_horizon(pooled)}; "
        f"{pooled.positive:,} are positive, and {pooled.changed:,} were changed by a later revision.",
    )
    if pooled.late_share > LATE_LIMIT:
        page.verdict(
            f"{pooled.late_share:.1%} of the reports come in the last fifth of the horizon.",
            [
                "Reports after the horizon are likely, and no log of this length shows how many. Read a "
                "longer log before the end of the curve is used as the share of all reports."
            ],
            PART,
        )
    arrives = pooled.arrives
    page.tiles(
        [
            (f"{arrives.value:.3%}", f"of decisions get a report ({arrives.low:.3%} to {arrives.high:.3%})"),
            (f"{pooled.arrives_positive.value:.3%}", "of decisions get a positive report"),
            *(
                (age_text(at), f"until {float(share):.0%} of the reports are there")
                for share, at in pooled.quantiles_ms.items()
            ),
        ]
    )
    if not pooled.steps.at_ms:
        page.note("There is no report of this kind, so there is no curve.")
        return
    figures = [
        (plots.arrivals(pooled), "Share of decisions with a report by their age, with pointwise bounds.")
    ]
    names = list(dict.fromkeys(one.segment.name for one in own if one.segment is not None))
    for name in names or [""]:
        shown = sorted(
            (one for one in own if one.segment is not None and one.segment.name == name and not one.pooled),
            key=lambda one: -one.reports,
        )[: plots.MOST_SEGMENTS]
        caption = f"Maturity by {name}: the values with most reports." if name else "Maturity."
        figures.append((plots.maturities(pooled, shown), caption))
    page.plots(figures)
    if own:
        page.table(
            ("segment", "value", "decisions", "reports", "get a report", "bounds", "50 %", "95 %", "curve"),
            [_row(one) for one in own],
            texts=(0, 1, 8),
        )


def _row(one: MaturityCurve) -> tuple[str, ...]:
    name, value = ("", "") if one.segment is None else (one.segment.name, one.segment.value)
    ages = [
        age_text(one.quantiles_ms[share]) if share in one.quantiles_ms else "-" for share in ("0.5", "0.95")
    ]
    return (
        name,
        value,
        f"{one.decisions:,}",
        f"{one.reports:,}",
        f"{one.arrives.value:.3%}",
        f"{one.arrives.low:.3%} to {one.arrives.high:.3%}",
        *ages,
        "of all decisions" if one.pooled else "own",
    )


def _horizon(one: MaturityCurve) -> str:
    return age_text(one.horizon_ms)


def _day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d")
