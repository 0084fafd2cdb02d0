"""`[comparison]`: how versions of a checkpoint are compared over time."""

from __future__ import annotations

from typing import Final

from pydantic import Field, FiniteFloat

from scorer.learn.section import LearnSection

MOST_VERSIONS: Final = 12
MOST_WEEKS: Final = 104


class Cost(LearnSection):
    """Money for one decision: a fixed sum and a share of the amount."""

    fixed: FiniteFloat = 0.0
    share: FiniteFloat = 0.0


class CostMatrix(LearnSection):
    """What a decision costs, by what was decided and by its label. Negative values are gains."""

    missed: Cost = Field(
        default=Cost(share=1.0), description="A positive decision that the version lets through."
    )
    stopped: Cost = Field(
        default=Cost(), description="A positive decision that the version does not let through."
    )
    refused: Cost = Field(
        default=Cost(),
        examples=[{"fixed": 5.0, "share": 0.02}],
        description="A negative decision that the version does not let through: work and lost margin.",
    )
    passed: Cost = Field(default=Cost(), description="A negative decision that the version lets through.")
    reward: Cost = Field(
        default=Cost(share=1.0), description="Gain of one rewarded decision of an action checkpoint."
    )


class ComparisonSettings(LearnSection):
    """Limits and values of a comparison of versions over time."""

    weeks: int = Field(
        default=26, ge=1, le=MOST_WEEKS, description="Number of weeks, of which the current one is the last."
    )
    least_maturity: FiniteFloat = Field(
        default=0.95,
        gt=0,
        le=1,
        description="A week is settled if no decision of it waits for its label by the label policy, and the "
        "maturity curve has reached this share on average over its decisions.",
    )
    positives: int = Field(
        default=5, ge=1, le=1_000_000, description="Fewest positive labels of a week for AUC and the like."
    )
    rows: int = Field(
        default=1_000_000,
        ge=1_000,
        le=20_000_000,
        description="Decisions that are held in memory, some 50 bytes each and 9 for each version. Of more "
        "decisions, a part of the negative ones is used, with a larger weight.",
    )
    approve: str = Field(
        default="approve",
        max_length=200,
        description="Decision of a score checkpoint that lets a payment through.",
    )
    amount: str = Field(
        default="amount", max_length=200, description="Feature that value is computed from; empty: none."
    )
    costs: CostMatrix = Field(
        default=CostMatrix(), description="The cost matrix, in the currency of the amount."
    )
