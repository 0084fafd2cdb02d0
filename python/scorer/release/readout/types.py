"""What a read-out is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scorer.release.model import GateResult, Outcome


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what a page draws and what is downloaded."""

    name: str
    """`execution`, `data-load`, `latency`, `scores`, `score-cdf`, `score-score`, `flips`, `drops`, ..."""
    title: str
    words: str
    """What it says, in a sentence or two."""
    plotly: Mapping[str, Any]
    """`{"data": [...], "layout": {...}}`."""
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    """The numbers behind it, for CSV and JSON and for whoever cannot see it."""


@dataclass(frozen=True, slots=True)
class Readout:
    """Everything that is known about one change's time in the shadow (or canary)."""

    change: str
    checkpoint: str
    bundle: str
    live_bundle: str
    start: datetime
    end: datetime
    rows: int
    is_final: bool
    verdict: Outcome | None
    gates: tuple[GateResult, ...]
    summary: Mapping[str, Any]
    """Times of live, shadow and A/A (p50, p99, p99.9); PSI, KL; flips; approve rates; drops; errors."""
    figures: tuple[Figure, ...]
    examples: Sequence[Mapping[str, Any]]
    """Decisions that flipped."""
