"""`[ab]`: the confidence of a comparison, and what counts as harm."""

from __future__ import annotations

from pydantic import Field

from scorer.learn.section import LearnSection


class AbSettings(LearnSection):
    """Comparing lanes by the outcomes of their decisions."""

    alpha: float = Field(
        default=0.05,
        gt=0,
        lt=0.5,
        description="False alarms at most, over all readings together and all variants together.",
    )
    margin: float = Field(
        default=0.002,
        ge=0,
        lt=1,
        description='"not worse" means: the difference is above minus this, in points of the reward.',
    )
    harm: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Harm means: the difference is below minus this. The command then ends with exit code 3.",
    )
    hours: float | None = Field(
        default=None,
        gt=0,
        le=24 * 365,
        examples=[1.0],
        description="Read each decision as it was known so long after it was made: harm then shows after "
        "hours, not after the longest maturity window. Outcomes that come later count as missing. Not set: "
        "every outcome is waited for.",
    )
    shoppers: int = Field(
        default=500,
        ge=100,
        description="No verdict before each lane has seen so many shoppers: the sequence is asymptotic.",
    )
    tuned_decisions: int = Field(
        default=100_000,
        ge=1000,
        description="Where the sequence is narrowest. It holds at every size; this is no horizon.",
    )
    ratio_alpha: float = Field(
        default=0.01, gt=0, lt=0.5, description="False alarms of the sample-ratio check, over all readings."
    )
