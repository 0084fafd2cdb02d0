"""Reasons why figures miss their targets or are worse than a peer's, read from reasons.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.figures import Figure

FILE: Final = Path(__file__).with_name("reasons.toml")
NONE: Final = "No reason has been found yet."


@dataclass(frozen=True)
class Reason:
    """Why some figures miss their targets.

    Attributes:
        figures: Regular expression of the keys, "name" or "name | peer", that it explains.
        why: The explanation with its evidence.
    """

    figures: str
    why: str

    def explains(self, figure: Figure) -> bool:
        """Return whether the reason explains a figure."""
        return re.fullmatch(self.figures, figure.key) is not None


def load(path: Path = FILE) -> list[Reason]:
    """Return the reasons in the order of the file."""
    return [Reason(**entry) for entry in tomllib.loads(path.read_text()).get("reason", [])]


def misses(figures: Iterable[Figure]) -> list[Figure]:
    """Return the settled figures that miss their target or, without a target, are worse than a peer's."""
    return [figure for figure in figures if figure.plot is None and figure.result in {"missed", "worse"}]


def section(figures: Iterable[Figure], reasons: list[Reason]) -> str:
    """Return the section of the page that lists each miss below the first reason that explains it.

    Args:
        figures: Lines that are not stale.
        reasons: The known reasons.
    """
    explained: dict[str, list[Figure]] = {}
    figures = list(figures)
    for figure in misses(figures):
        why = next((reason.why for reason in reasons if reason.explains(figure)), NONE)
        explained.setdefault(why, []).append(figure)
    parts = ["## What misses, and why"]
    if not figures:
        parts.append("No figure has been measured on the current code.")
    elif not explained:
        parts.append("No current figure misses its target or is worse than a peer's.")
    for why, members in sorted(explained.items(), key=lambda entry: entry[0] == NONE):
        parts.append("\n".join([why.strip(), "", *(f"* {_described(figure)}" for figure in members)]))
    return "\n\n".join(parts)


def _described(figure: Figure) -> str:
    beside = "" if figure.peer is None else f" beside {figure.peer}"
    value = f"{figure.ratio:,g}×" if figure.ratio is not None else f"{figure.ours:,g} {figure.unit}".strip()
    bound = "" if figure.target is None else f", target {figure.target:,g}"
    return f"{figure.group}: {figure.name}{beside}: {value}{bound} ({figure.result})"
