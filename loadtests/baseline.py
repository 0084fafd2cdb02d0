"""Ratios that were reached once, by processor, and how a new run compares with them.

A ratio to a peer in the same run differs far less between machines than a time does. It still depends on
the vector instructions and somewhat on the processor's generation, so a baseline counts in full on its own
processor and with a wider tolerance elsewhere. No machine is left unjudged.
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
# The part of a ratio that may be lost: for computation alone, and where sockets and schedulers take part.
TOLERANCE: Final = {"engine": 0.2}
TOLERANCE_OF_SERVERS: Final = 0.35
# How much more of what is left may be lost on another processor: with the same instructions, with others.
SAME_INSTRUCTIONS: Final = 0.3
OTHER_INSTRUCTIONS: Final = 0.7
# Figures without a peer that are comparable between runs: a ratio of two figures of our own.
RATIO_UNIT: Final = "×"


class Outcome(StrEnum):
    """What a figure is against its baseline."""

    HELD = "held"
    REGRESSED = "REGRESSED"
    MISSING = "NOT MEASURED"
    NEW = "no baseline"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one figure.

    Attributes:
        key: The figure.
        outcome: The verdict.
        worth: How good the figure is now, more is better; None: it was not measured.
        before: Its baseline.
        tolerance: The part of the baseline that may be lost.
    """

    key: str
    outcome: Outcome
    worth: float | None = None
    before: float | None = None
    tolerance: float | None = None


def worth(figure: Figure) -> float | None:
    """Return how good a figure is, more is better; None where it cannot be compared between runs."""
    if figure.plot is not None:
        return None
    if figure.ratio is not None:
        return figure.ratio
    if figure.unit != RATIO_UNIT or figure.ours <= 0:
        return None
    return figure.ours if figure.higher_is_better else 1 / figure.ours


def medians(figures: Iterable[Figure]) -> dict[str, float]:
    """Return the median worth of each figure over its measurements.

    The best measurement would let a real loss pass by repetition; the median does not.
    """
    found: dict[str, list[float]] = {}
    for figure in figures:
        value = worth(figure)
        if value is not None:
            found.setdefault(figure.key, []).append(value)
    return {key: median(values) for key, values in found.items()}


def broken_counts(figures: Iterable[Figure]) -> list[str]:
    """Return the counts, such as wrong answers, that miss their target; they do not vary between machines."""
    return [
        figure.key
        for figure in figures
        if figure.rounds is None and figure.unit == "" and figure.met is False
    ]


def load(path: Path = FILE) -> dict[str, Any]:
    """Return all baselines by processor; none where there is no file."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return kept


def choose(kept: dict[str, Any], machine: dict[str, Any]) -> tuple[str | None, float]:
    """Return the processor whose baseline a machine is held to, and how much more may be lost on this one.

    Returns:
        The name in the file, None where there is no baseline at all, and the share that may be lost besides.
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
    """Hold what was measured against a baseline, in the baseline's order.

    Args:
        measured: Worth by figure.
        kept: All baselines.
        machine: What was measured on.
        groups: The group of each figure.
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
