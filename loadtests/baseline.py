"""Baseline ratios by processor, and the comparison of a new run with them.

A ratio to a peer in the same run differs far less between machines than a time does. It still depends on
the vector instructions and somewhat on the processor's generation, so a baseline applies with its normal
tolerance on its own processor and with a wider one elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any, Final

from loadtests.figures import Figure

FILE: Final = Path(__file__).with_name("baseline.json")
# Share of a ratio that may be lost: for pure computation, and for measurements with sockets and schedulers.
TOLERANCE: Final = {"engine": 0.2}
TOLERANCE_OF_SERVERS: Final = 0.35
# Share of the rest that may be lost in addition on another processor, with the same or other instructions.
SAME_INSTRUCTIONS: Final = 0.3
OTHER_INSTRUCTIONS: Final = 0.7
# Unit of figures without a peer that can be compared between runs: ratios of two of our figures.
RATIO_UNIT: Final = "×"


class Outcome(StrEnum):
    """Result of the comparison of a figure with its baseline."""

    HELD = "held"
    REGRESSED = "REGRESSED"
    MISSING = "NOT MEASURED"
    NEW = "no baseline"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one figure.

    Attributes:
        key: Key of the figure.
        outcome: Result of the comparison.
        worth: Value of the figure, higher is better; None: it was not measured.
        before: Baseline of the figure.
        tolerance: Share of the baseline that may be lost.
    """

    key: str
    outcome: Outcome
    worth: float | None = None
    before: float | None = None
    tolerance: float | None = None


def worth(figure: Figure) -> float | None:
    """Return the value of a figure, higher is better; None if it cannot be compared between runs."""
    if figure.plot is not None:
        return None
    if figure.ratio is not None:
        return figure.ratio
    if figure.unit != RATIO_UNIT or figure.ours <= 0:
        return None
    return figure.ours if figure.higher_is_better else 1 / figure.ours


def medians(figures: Iterable[Figure]) -> dict[str, float]:
    """Return the median value of each figure over its measurements.

    With the best measurement instead, repetitions could hide a real loss.
    """
    found: dict[str, list[float]] = {}
    for figure in figures:
        value = worth(figure)
        if value is not None:
            found.setdefault(figure.key, []).append(value)
    return {key: median(values) for key, values in found.items()}


def broken_counts(figures: Iterable[Figure]) -> list[str]:
    """Return the counts that miss their target. Counts do not depend on the machine."""
    return [
        figure.key
        for figure in figures
        if figure.rounds is None and figure.unit == "" and figure.met is False
    ]


def load(path: Path = FILE) -> dict[str, Any]:
    """Return all baselines by processor; empty without a file."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return kept


def choose(kept: dict[str, Any], machine: dict[str, Any]) -> tuple[str | None, float]:
    """Return the processor whose baseline applies to a machine, and the additional tolerance.

    Returns:
        The name in the file, None without any baseline, and the share that may be lost in addition.
    """
    if machine["cpu"] in kept:
        return machine["cpu"], 0.0
    for name, baseline in kept.items():
        if baseline["isa"] == machine["isa"]:
            return name, SAME_INSTRUCTIONS
    return next(iter(kept), None), OTHER_INSTRUCTIONS


def judge(
    measured: dict[str, float], kept: dict[str, Any], machine: dict[str, Any], groups: dict[str, str]
) -> list[Verdict]:
    """Compare measured values with a baseline, in the order of the baseline.

    Args:
        measured: Values by figure.
        kept: All baselines.
        machine: Description of the machine.
        groups: Group of each figure.
    """
    name, more = choose(kept, machine)
    before: dict[str, float] = kept[name]["figures"] if name else {}
    verdicts = []
    for key in [*before, *(key for key in measured if key not in before)]:
        now, then = measured.get(key), before.get(key)
        own = TOLERANCE.get(groups.get(key, ""), TOLERANCE_OF_SERVERS)
        tolerance = 1 - (1 - own) * (1 - more)
        if then is None:
            outcome = Outcome.NEW
        elif now is None:
            outcome = Outcome.MISSING
        else:
            outcome = Outcome.HELD if now >= then * (1 - tolerance) else Outcome.REGRESSED
        verdicts.append(Verdict(key, outcome, now, then, tolerance))
    return verdicts


def updated(kept: dict[str, Any], machine: dict[str, Any], runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return all baselines with this machine's replaced by the medians of several runs."""
    figures = {}
    for key in runs[0]:
        figures[key] = float(f"{median(run[key] for run in runs if key in run):.4g}")
    return kept | {machine["cpu"]: {"isa": machine["isa"], "figures": figures}}


def save(kept: dict[str, Any], path: Path = FILE) -> None:
    """Write all baselines."""
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False, sort_keys=True) + "\n")
