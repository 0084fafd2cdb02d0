"""The `[gate]` section of learn.toml."""

from __future__ import annotations

from pydantic import Field

from scorer.learn.section import LearnSection


class GateSettings(LearnSection):
    """When a candidate replaces the live policy, takes a share, or waits."""

    margin: float = Field(
        default=0.005,
        ge=0,
        lt=1,
        description="Non-inferiority: the lower bound of (candidate - live) must be above minus this.",
    )
    alpha: float = Field(
        default=0.05, gt=0, lt=1, description="Error rate of every bound, however often read."
    )
    window_days: float = Field(default=7.0, gt=0, description="Length of the window that judges.")
    min_rows: int = Field(default=1_000, ge=2, description="Settled decisions in the window, at least.")
    min_effective: float = Field(
        default=500.0, ge=1, description="Effective sample size of the candidate's weights, at least."
    )
    bound_effective: float = Field(
        default=100.0, ge=1, description="With fewer, no bound chooses a share or accuses a segment."
    )
    min_support: float = Field(
        default=0.995, gt=0, le=1, description="The candidate's mass on actions that could have been logged."
    )
    min_joined: float = Field(
        default=0.9, ge=0, le=1, description="Share of mature decisions whose outcome is known, at least."
    )
    weight_errors: float = Field(
        default=5.0,
        gt=0,
        description="Mean weight is within so many standard errors of 1, or propensities are wrong.",
    )
    segments: tuple[str, ...] = Field(
        default=(),
        description="Columns of the context no value of which may be harmed; categories and flags.",
    )
    segment_margin: float = Field(
        default=0.01, ge=0, lt=1, description="A segment shown to lose more than this blocks."
    )
    segment_rows: int = Field(default=500, ge=500, description="Fewer decisions say nothing of a segment.")
    shares: tuple[float, ...] = Field(
        default=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
        description="Shares that a candidate may get in a mixture.",
    )
    require_lineage: bool = Field(
        default=True, description="Refuse a candidate that does not say until when it learned."
    )
