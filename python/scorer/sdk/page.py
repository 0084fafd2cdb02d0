"""A shadow report as one self-contained HTML page."""

from __future__ import annotations

from scorer.report import GOOD, PART, STOP, Mark, ReportPage
from scorer.sdk.results import Readout, SegmentReport

_TONES = {"pass": GOOD, "fail": STOP}


def _segments(page: ReportPage, report: SegmentReport) -> None:
    """Add the table of the segments, those that are worse named above it."""
    worse = "".join(f" Worth a look: {one}." for one in report.worse)
    page.section(f"Segments ({report.stage})", f"{report.words}{worse}")
    names = list(dict.fromkeys(name for one in report.segments for name in one.measures))
    sides = [(label, side) for label in report.labels for side in ("live", "candidate")]
    rows = []
    for one in report.segments:
        values = [one.measures.get(name) for name in names]
        shares = [getattr(one, side).get(label, 0.0) if one.judged else None for label, side in sides]
        bounds = [None if value is None else value.value for value in values]
        state = "worse" if one.worse else "" if one.judged else "too few rows"
        mark = Mark(state, STOP if one.worse else PART)
        swapped = (one.swapped_in, one.swapped_out)
        rows.append((f"{one.feature} {one.level}", mark, f"{one.rows:,}", *shares, *swapped, *bounds))
    columns = [f"{label}, {side}" for label, side in sides]
    page.table(("segment", "", "rows", *columns, "swapped in", "swapped out", *names), rows, texts=(0, 1))


def render(readout: Readout) -> str:
    """Return the page with the verdict, every gate, every figure with its numbers, and example decisions."""
    page = ReportPage(
        f"{readout.change}: report of {readout.checkpoint}",
        f"{readout.rows:,} rows, {readout.start:%Y-%m-%d %H:%M} to {readout.end:%Y-%m-%d %H:%M} UTC",
    )
    verdict = str(readout.verdict or "no verdict yet")
    state = "final" if readout.is_final else "so far"
    blocking = [f"{gate.metric}: {gate.words}" for gate in readout.gates if gate.blocks]
    page.verdict(f"{verdict} ({state})", blocking, _TONES.get(verdict, PART))
    page.table(("", ""), [("shadow", readout.bundle), ("live", readout.live_bundle)], texts=(0, 1))
    page.section("Gates")
    page.table(
        ("gate", "outcome", "wanted", "value", "rows", "in words"),
        [
            (
                gate.metric,
                Mark(str(gate.outcome), _TONES.get(str(gate.outcome), PART)),
                gate.success,
                gate.value,
                f"{gate.rows:,}",
                gate.words + (f" Waived by {gate.waived_by}: {gate.waived_why}" if gate.waived_by else ""),
            )
            for gate in readout.gates
        ],
        texts=(0, 1, 2, 5),
    )
    for report in (readout.segments, readout.canary):
        if report is not None:
            _segments(page, report)
    page.section("Summary")
    page.table(("", ""), list(readout.summary.items()), texts=(0, 1))
    for figure in readout.figures:
        page.plotly(figure.name, figure.title, figure.words, figure.plotly, figure.columns, figure.rows)
    if readout.examples:
        page.section("Decisions that changed", "Decisions that differ from the live model's, largest first.")
        columns = tuple(dict.fromkeys(key for example in readout.examples for key in example))
        rows = [[example.get(key) for key in columns] for example in readout.examples]
        page.table(columns, rows, texts=range(len(columns)))
    return page.text()
