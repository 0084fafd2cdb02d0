"""Ratios that were reached once, by kind of machine, and what a new run is against them.

Ratios to a peer in the same run differ far less between machines than times do, but they differ: with the
vector instructions, by which baselines are kept apart, and somewhat with the processor's make.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from loadtests.figures import Figure

FILE: Final = Path(__file__).with_name("baseline.json")
# The part of a ratio that may be lost.
TOLERANCE: Final = 0.25
# The same on a processor that has the instructions of the baseline's, but is another.
TOLERANCE_ELSEWHERE: Final = 0.5
# Figures without a peer that are comparable between runs: a ratio of two times of our own.
RATIO_UNIT: Final = "×"


class Outcome(StrEnum):
    """What a figure is against its baseline."""

    HELD = "held"
    REGRESSED = "REGRESSED"
    MISSING = "NOT MEASURED"
    NEW = "no baseline"


@dataclass(frozen=True)
class Verdict:
    """One figure's.

    Attributes:
        worth: How good it is now, more is better; None: it was not measured.
        before: What the baseline says.
    """

    key: str
    outcome: Outcome
    worth: float | None = None
    before: float | None = None

    @property
    def share(self) -> float | None:
        """`worth` as a part of `before`."""
        return None if self.worth is None or self.before is None else self.worth / self.before


def worth(figure: Figure) -> float | None:
    """How good a figure is, more is better; None where it cannot be compared between runs."""
    if figure.plot is not None:
        return None
    if figure.ratio is not None:
        return figure.ratio
    if figure.unit != RATIO_UNIT or figure.ours <= 0:
        return None
    return figure.ours if figure.higher_is_better else 1 / figure.ours


def best(figures: Iterable[Figure]) -> dict[str, float]:
    """The best that each figure was, of however many measurements there are."""
    found: dict[str, float] = {}
    for figure in figures:
        value = worth(figure)
        if value is not None:
            found[figure.key] = max(value, found.get(figure.key, value))
    return found


def load(path: Path = FILE) -> dict[str, Any]:
    """All baselines, by level of instructions; none where there is no file."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return kept


def judge(measured: dict[str, float], kept: dict[str, Any], machine: dict[str, Any]) -> list[Verdict]:
    """Holds what was measured against the baseline of this kind of machine, in the baseline's order."""
    baseline = kept.get(machine["isa"], {"cpu": machine["cpu"], "figures": {}})
    tolerance = TOLERANCE if baseline["cpu"] == machine["cpu"] else TOLERANCE_ELSEWHERE
    before: dict[str, float] = baseline["figures"]
    verdicts = []
    for key in [*before, *(key for key in measured if key not in before)]:
        now, then = measured.get(key), before.get(key)
        if then is None:
            outcome = Outcome.NEW
        elif now is None:
            outcome = Outcome.MISSING
        else:
            outcome = Outcome.HELD if now >= then * (1 - tolerance) else Outcome.REGRESSED
        verdicts.append(Verdict(key, outcome, now, then))
    return verdicts


def updated(kept: dict[str, Any], machine: dict[str, Any], runs: list[dict[str, float]]) -> dict[str, Any]:
    """All baselines, this machine's taken from several runs: of each figure the middle one."""
    middle = {}
    for key in runs[0]:
        values = sorted(run[key] for run in runs if key in run)
        middle[key] = float(f"{values[len(values) // 2]:.4g}")
    return kept | {machine["isa"]: {"cpu": machine["cpu"], "figures": middle}}


def save(kept: dict[str, Any], path: Path = FILE) -> None:
    """Writes all baselines."""
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False, sort_keys=True) + "\n")
