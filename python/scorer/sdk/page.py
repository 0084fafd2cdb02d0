"""A shadow report as one self-contained HTML page."""

from __future__ import annotations

from scorer.report import GOOD, PART, STOP, Mark, ReportPage
from scorer.sdk.results import Readout

_TONES = {"pass": GOOD, "fail": STOP}


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
