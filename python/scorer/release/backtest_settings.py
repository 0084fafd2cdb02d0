"""Settings of the backtest that precedes a checkpoint's shadow."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scorer.config.fields import Section
from scorer.release.gates.grammar import BacktestGates


class BacktestSettings(Section):
    """Which decisions of the log judge a candidate before it takes a shadow slot."""

    enabled: bool = Field(default=True, description="Whether a TEST begins with a backtest.")
    weeks: float = Field(
        default=4.0, gt=0, le=52, description="Length of the window: the last decisions that have matured."
    )
    labels: Literal["used", "required"] = Field(
        default="used",
        description='What happens where too few outcomes are known: "used" goes on to the shadow, "required" '
        "rejects the TEST.",
    )
    positives: int = Field(
        default=30, ge=2, le=1_000_000, description="Fewest rows of each class that a score is judged by."
    )
    rows: int = Field(
        default=1_000_000,
        ge=1_000,
        le=20_000_000,
        description="Decisions that are held in memory, some 100 bytes each; of more, every second (fourth, "
        "...) one is used.",
    )
    minutes: float = Field(
        default=30.0,
        gt=0,
        le=1_440,
        description="How long logs are read; after that, the decisions read so far are judged.",
    )
    amount: str = Field(
        default="amount", max_length=200, description="The feature that value is measured by; empty: none."
    )
    gates: BacktestGates = Field(
        default=(),
        description="What stops a candidate. None: the standard gates (docs/gates.md).",
        examples=[[{"metric": "backtest_recall_review", "success": ">= -10% lower95"}]],
    )
