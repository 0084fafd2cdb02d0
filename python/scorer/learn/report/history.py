"""The report over generations: every verdict of a directory of runs."""

from __future__ import annotations

from pathlib import Path

from scorer.learn.errors import DataError
from scorer.learn.gate.verdict import Verdict, read_verdict
from scorer.learn.report import plots
from scorer.learn.report.page import day, points
from scorer.report import GOOD, PART, STOP, Mark, ReportPage

_TONES = {"promote": GOOD, "mix": PART, "wait": STOP}


def read_runs(directory: Path) -> list[tuple[str, Verdict]]:
    """(name of the run, its verdict), in order of the windows that judged.

    Raises:
        DataError: there is no run, or a verdict cannot be read.
    """
    found = sorted(path.parent for path in directory.glob("**/verdict.json"))
    if not found:
        raise DataError(f'"{directory}" holds no verdict.json; give the directory of what the gate wrote')
    runs = [(str(path.relative_to(directory)) or path.name, read_verdict(path)) for path in found]
    runs = [(directory.name if name == "." else name, verdict) for name, verdict in runs]
    return sorted(runs, key=lambda run: (run[1].evidence.window.end_ms, run[0]))


def history_page(runs: list[tuple[str, Verdict]]) -> str:
    """One page: value per generation, what was decided and why, and the latest in detail below."""
    name, latest = runs[-1]
    one = latest.evidence
    decided = [verdict.evidence.decision for _, verdict in runs]
    page = ReportPage(
        f"{one.candidate.name}: generations",
        f"{len(runs)} verdicts: {decided.count('promote')} promoted, {decided.count('mix')} mixed in,"
        f" {decided.count('wait')} waiting.",
    )
    page.verdict(f"Latest ({name}). {latest.headline}.", one.reasons, _TONES[one.decision])
    page.section(
        "Value per generation",
        "Each candidate on its own window, with an anytime-valid interval, beside what was live.",
    )
    rows = [_row(run, verdict) for run, verdict in runs]
    page.plots(
        [
            (plots.generations(rows), "Value, estimated off policy, doubly robust."),
            (
                plots.differences(rows, one.margin * 100),
                "Against what was live. A candidate is promoted once its interval is above the dashed line.",
            ),
        ]
    )
    page.table(
        (
            "run",
            "verdict",
            "window until (UTC)",
            "decisions",
            "value",
            "live",
            "difference, points",
            "worth",
            "support",
            "why not",
        ),
        [
            (
                run,
                Mark(_decision(verdict), _TONES[verdict.evidence.decision]),
                day(verdict.evidence.window.end_ms) if verdict.evidence.window.decisions else "-",
                f"{verdict.evidence.window.settled:,}",
                f"{verdict.evidence.value.value:.2%}",
                f"{verdict.evidence.live_value.value:.2%}",
                points(verdict.evidence.difference),
                f"{verdict.evidence.effective_rows:,.0f}",
                f"{verdict.evidence.support:.1%}",
                ", ".join(check.name for check in verdict.evidence.checks if not check.passed) or "-",
            )
            for run, verdict in runs
        ],
        texts=(0, 1, 2, 9),
    )
    attributes = list(dict.fromkeys(cap.attribute for _, verdict in runs for cap in verdict.evidence.caps))
    if attributes:
        page.section("Caps per generation", "Use per decision, candidate (limit).")
        page.table(("run", *attributes), [(run, *_used(verdict, attributes)) for run, verdict in runs])
    return page.text()


def _row(run: str, verdict: Verdict) -> dict[str, object]:
    one = verdict.evidence
    return {
        "run": run,
        "decision": one.decision,
        "value": one.value.value,
        "low": one.value.low,
        "high": one.value.high,
        "live": one.live_value.value,
        "difference": one.difference.value,
        "difference_low": one.difference.low,
        "difference_high": one.difference.high,
    }


def _used(verdict: Verdict, attributes: list[str]) -> list[str]:
    caps = {cap.attribute: cap for cap in verdict.evidence.caps}
    return [
        f"{caps[name].candidate.value:.4g} ({caps[name].limit:.4g})" if name in caps else "-"
        for name in attributes
    ]


def _decision(verdict: Verdict) -> str:
    share = verdict.evidence.share
    return f"mix {share * 100:g} %" if verdict.evidence.decision == "mix" else verdict.evidence.decision
