"""The report of the verdict on a candidate of a score checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scorer.learn.gate.verdict import Verdict, VerdictEvidence
from scorer.learn.report import plots
from scorer.learn.report.page import day, points
from scorer.report import GOOD, PART, STOP, Mark, ReportPage

_TONES = {"promote": GOOD, "mix": PART, "wait": STOP}
_STATES = {"safe": GOOD, "inconclusive": PART, "harmed": STOP}
_COLOURS = {"safe": "#15803d", "inconclusive": "#b45309", "harmed": "#b91c1c"}
_NAMES = {
    "auc": "AUC",
    "average_precision": "average precision",
    "card_precision": "card precision@100",
    "value": "value per payment",
    "value_share": "value, share of the turnover",
}


def score_page(verdict: Verdict) -> str:
    """Return one self-contained HTML page: the verdict first, then what it is based on."""
    one = verdict.evidence
    scores = one.scores or {}
    at = one.window
    page = ReportPage(
        f"{one.candidate.name}: verdict on the candidate",
        f"{at.decisions:,} labelled payments from {day(at.start_ms)} to {day(at.end_ms)} (UTC).",
    )
    page.verdict(verdict.headline + ".", one.reasons, _TONES[one.decision])
    page.tiles(
        [
            (f"{one.value.value:.3%}", "of the turnover is the value of the candidate"),
            (f"{one.live_value.value:.3%}", "of the turnover is the value of the live bundle"),
            (
                f"{scores['differences']['average_precision']['value']:+.4f}",
                "difference of the average precision",
            ),
            (f"{one.distance:.2%}", "of the payments get another decision"),
        ]
    )
    page.section("Gate", "Every condition, whether it is met, and its figure.")
    page.table(
        ("condition", "", "finding"),
        [
            (check.name, Mark("met", GOOD) if check.passed else Mark("not met", STOP), check.says)
            for check in one.checks
        ],
        texts=(0, 1, 2),
    )
    page.section(
        "Measures",
        f"With {100 * (1 - one.alpha):g} % intervals; differences are paired: both bundles scored the same "
        "payments. The value is the gain over approving every payment.",
    )
    page.table(("", "candidate", "live", "difference"), _measures(scores))
    _segments(page, one)
    page.section("Provenance")
    rows = [
        ("data", at.experience),
        ("candidate, as judged", one.candidate.digest),
        ("candidate trained until", _until(one.candidate.learned_until_ms)),
        ("live", one.live.digest),
        ("live trained until", _until(one.live.learned_until_ms)),
        ("to publish (same program and files, this evidence in its lineage)", verdict.bundle or "nothing"),
    ]
    rows += [(f"fraud.value.{name}", str(value)) for name, value in one.settings["fraud"]["value"].items()]
    rows += [(f"fraud.gate.{name}", str(value)) for name, value in one.settings["fraud"]["gate"].items()]
    page.table(("", ""), rows, texts=(0, 1))
    return page.text()


def _measures(scores: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = [
        (
            name,
            _shown(scores["candidate"][key]),
            _shown(scores["live"][key]),
            _shown(scores["differences"][key], sign=True),
        )
        for key, name in _NAMES.items()
    ]
    ratios = [f"{scores[which]['calibration']:.3f}" for which in ("candidate", "live")]
    return [*rows, ("mean score over share of positive labels", *ratios, "")]


def _shown(measure: Mapping[str, Any] | None, *, sign: bool = False) -> str:
    if measure is None:
        return "-"
    form = "+.4f" if sign else ".4f"
    if measure["low"] is None or measure["high"] is None:
        return format(measure["value"], form)
    return f"{measure['value']:{form}} [{measure['low']:{form}}, {measure['high']:{form}}]"


def _segments(page: ReportPage, one: VerdictEvidence) -> None:
    if not one.segments:
        return
    margin = one.margin * 100
    page.section(
        "Segments",
        f"Differences of the value in points of the segment's turnover. A segment blocks if it is shown to "
        f"lose value and its estimate is below {-margin:g}. The bounds hold for all segments together.",
    )
    bounded = [
        (
            f"{segment.column}: {segment.value}",
            segment.difference.value * 100,
            segment.difference.low * 100,
            segment.difference.high * 100,
            _COLOURS[segment.state],
        )
        for segment in one.segments
        if segment.difference.low is not None and segment.difference.high is not None
    ]
    if bounded:
        page.plots([(plots.forest(bounded, margin), "Difference by segment.")])
    page.table(
        ("segment", "", "payments", "difference, points"),
        [
            (
                f"{segment.column}: {segment.value}",
                Mark(segment.state, _STATES[segment.state]),
                f"{segment.difference.rows:,}",
                points(segment.difference),
            )
            for segment in one.segments
        ],
        texts=(0, 1),
    )


def _until(milliseconds: int | None) -> str:
    return "not recorded" if milliseconds is None else f"{day(milliseconds)} (UTC)"
