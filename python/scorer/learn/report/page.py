"""The report of one verdict."""

from __future__ import annotations

from datetime import UTC, datetime

from scorer.learn.gate.verdict import JudgedBundle, SegmentVerdict, ValueInterval, Verdict, VerdictEvidence
from scorer.learn.report import plots
from scorer.report import GOOD, PART, STOP, Mark, ReportPage

_TONES = {"promote": GOOD, "mix": PART, "wait": STOP}
_STATES = {"safe": GOOD, "inconclusive": PART, "harmed": STOP}
_MOST_PLOTTED = 24


def gate_page(verdict: Verdict) -> str:
    """One self-contained HTML page: the verdict in words first, then all that it rests on."""
    one = verdict.evidence
    page = ReportPage(f"{one.candidate.name}: may the candidate go live?", _lead(one))
    page.verdict(verdict.headline + ".", one.reasons, _TONES[one.decision])
    page.tiles(
        [
            (f"{one.value.value:.2%}", "value of the candidate (doubly robust)"),
            (f"{one.live_value.value:.2%}", "value of the live policy"),
            (f"{one.difference.value * 100:+.2f}", f"points apart, {_range(one.difference)} at any time"),
            (f"{one.effective_rows:,.0f}", "decisions the weights are worth"),
            (f"{one.support:.2%}", "of the candidate within what was logged"),
            (f"{one.share * 100:g} %", "of the traffic for the candidate"),
        ]
    )
    page.section("Gate", "Every condition, whether it is met, and the figure that says so.")
    page.table(
        ("condition", "", "finding"),
        [
            (check.name, Mark("met", GOOD) if check.passed else Mark("not met", STOP), check.says)
            for check in one.checks
        ],
        texts=(0, 1, 2),
    )
    _caps(page, one)
    _segments(page, one)
    _figures(page, verdict)
    _provenance(page, verdict)
    return page.text()


def points(interval: ValueInterval) -> str:
    """A difference in percentage points with its interval."""
    text = f"{interval.value * 100:+.2f}"
    if interval.low is None or interval.high is None:
        return f"{text} points"
    return f"{text} [{interval.low * 100:+.2f}, {interval.high * 100:+.2f}]"


def _range(interval: ValueInterval) -> str:
    if interval.low is None or interval.high is None:
        return "no interval yet"
    return f"{interval.low * 100:+.2f} to {interval.high * 100:+.2f}"


def _lead(one: VerdictEvidence) -> str:
    at = one.window
    if not at.decisions:
        return "No decision is mature that neither policy learned from."
    return (
        f"{at.settled:,} settled of {at.decisions:,} decisions, {day(at.start_ms)} to {day(at.end_ms)} (UTC)."
    )


def _caps(page: ReportPage, one: VerdictEvidence) -> None:
    page.section(
        "Caps",
        "Use per decision by each policy's own probabilities; the upper bound is held to limit and band.",
    )
    page.table(
        ("attribute", "limit", "band", "live", "candidate", "upper bound"),
        [
            (
                cap.attribute,
                f"{cap.limit:.4g}",
                f"{cap.band:.0%}",
                f"{cap.live.value:.4g}",
                f"{cap.candidate.value:.4g}",
                "-" if cap.candidate.high is None else f"{cap.candidate.high:.4g}",
            )
            for cap in one.caps
        ],
    )


def _segments(page: ReportPage, one: VerdictEvidence) -> None:
    gate = one.settings["gate"]
    page.section(
        "Segments",
        f"A segment blocks if it is shown to lose more than {gate['segment_margin'] * 100:g} points; the"
        " bounds hold for all of them together. Inconclusive ones do not block.",
    )
    order = {"harmed": 0, "inconclusive": 1, "safe": 2}
    ranked = sorted(one.segments, key=lambda segment: (order[segment.state], segment.difference.value))
    page.table(
        ("segment", "", "decisions", "difference, points"),
        [
            (
                f"{segment.column}: {segment.value}",
                Mark(segment.state, _STATES[segment.state]),
                f"{segment.difference.rows:,}",
                points(segment.difference),
            )
            for segment in ranked
        ],
        texts=(0, 1),
    )


def _bounded(segments: tuple[SegmentVerdict, ...]) -> list[tuple[str, float, float, float, str]]:
    colours = {"safe": "#15803d", "inconclusive": "#b45309", "harmed": "#b91c1c"}
    return [
        (
            f"{one.column}: {one.value}",
            one.difference.value * 100,
            one.difference.low * 100,
            one.difference.high * 100,
            colours[one.state],
        )
        for one in segments
        if one.difference.low is not None and one.difference.high is not None
    ][:_MOST_PLOTTED]


def _figures(page: ReportPage, verdict: Verdict) -> None:
    one, figures = verdict.evidence, verdict.figures
    if not figures:
        return
    page.section("What the candidate would do")
    drawn = [
        (plots.days(figures["days"]), "Value by day of the window, doubly robust, ± 2 standard errors."),
        (
            plots.shares(figures["arms"], "action"),
            "Shares of actions: those with the most under either policy.",
        ),
    ]
    if figures["factors"]:
        drawn.insert(1, (plots.shares(figures["factors"], "level"), "Shares of factor levels."))
    if bounded := _bounded(one.segments):
        caption = "Difference by segment with intervals that hold together."
        drawn.append((plots.forest(bounded, one.settings["gate"]["segment_margin"] * 100), caption))
    page.plots(drawn)
    page.section("What it rests on")
    zero = figures["weights"].get("zero", 0)
    page.plots(
        [
            (
                plots.calibration(figures["calibration"]),
                "The candidate's oracle on the actions that were taken, none of which taught it.",
            ),
            (
                plots.powers(figures["propensities"], "logged propensity of the action taken"),
                "Small propensities are where large weights come from.",
            ),
            (
                plots.powers(figures["weights"], "weight of a decision"),
                f"Mean {one.mean_weight:.3f} (1 if propensities fit), largest {one.largest_weight:,.1f},"
                f" worth {one.effective_rows:,.0f} of {one.window.settled:,}; {zero:,} weigh nothing.",
            ),
        ]
    )
    page.section("Outcomes by action family", "Outcomes that go missing by action would bias every estimate.")
    page.table(
        ("family", "mature decisions", "with outcome", "missing", "joined"),
        [
            (
                row["family"],
                f"{row['decisions']:,}",
                f"{row['settled']:,}",
                f"{row['missing']:,}",
                f"{row['settled'] / row['decisions']:.1%}",
            )
            for row in figures["joins"]
        ],
    )


def _provenance(page: ReportPage, verdict: Verdict) -> None:
    one = verdict.evidence
    page.section("Provenance")
    rows = [
        ("experience", one.window.experience),
        ("candidate, as judged", one.candidate.digest),
        ("candidate learned until", _until(one.candidate)),
        ("live", one.live.digest),
        ("live learned until", _until(one.live)),
        ("served by", _served(one)),
        ("the policies differ on", f"{one.distance:.1%} of the mass"),
        ("to publish (same program and files, this evidence in its lineage)", verdict.bundle or "nothing"),
    ]
    rows += [(f"gate.{name}", str(value)) for name, value in one.settings["gate"].items()]
    page.table(("", ""), rows, texts=(0, 1))


def _served(one: VerdictEvidence) -> str:
    if one.lanes is None:
        return "the live policy (or others), each decision with its own propensity"
    return f"two lanes, {one.lanes:.2%} by the candidate; propensities of both together"


def _until(judged: JudgedBundle) -> str:
    return "not recorded" if judged.learned_until_ms is None else f"{day(judged.learned_until_ms)} (UTC)"


def day(milliseconds: int) -> str:
    """A moment, to the minute."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")
