"""`[join]`: when an outcome counts, and for which decisions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from scorer.learn.section import LearnSection
from scorer.log.proof import UNPROVEN_DESCRIPTION
from scorer.log.source.interface import MOST_ROWS

DEFAULT_FAMILY = "default"


class Family(LearnSection):
    """Actions whose outcomes take alike long."""

    name: str = Field(min_length=1)
    factors: dict[str, str | tuple[str, ...]] = Field(min_length=1)
    hours: FiniteFloat = Field(gt=0, le=24 * 365)
    early: Literal["count", "wait"] = "count"


class JoinSettings(LearnSection):
    """How decisions are joined with their outcomes."""

    outcome: str = Field(
        default="authorised", min_length=1, description="Kind of the outcome that is the reward."
    )
    threshold: FiniteFloat = Field(
        default=0.5, description="The reward is 1 where the outcome's value is at least this, else 0."
    )
    hours: FiniteFloat = Field(
        default=24.0,
        gt=0,
        le=24 * 365,
        description="Maturity window of actions that no family names: until it has passed a decision without "
        "outcome is in flight, after that its outcome is missing; it is a decline in neither case.",
    )
    early: Literal["count", "wait"] = Field(
        default="count",
        description='What an outcome inside the window is worth: "count": settled at once, a later revision '
        'corrects it; "wait": in flight until the window has passed, so that fast outcomes are not '
        "over-represented among the latest decisions.",
    )
    unproven: Literal["exclude", "include"] = Field(default="exclude", description=UNPROVEN_DESCRIPTION)
    days: FiniteFloat | None = Field(
        default=None,
        gt=0,
        examples=[56],
        description="Only decisions of so many days before the moment of the join; not set: all of them.",
    )
    rows: int = Field(
        default=MOST_ROWS,
        ge=1,
        le=65_536,
        description="Records of a log that are in memory at a time while it is read.",
    )
    families: tuple[Family, ...] = Field(
        default=(Family(name="challenge", factors={"three_ds": "challenge"}, hours=72.0),),
        description="Maturity windows per action family: the first whose factors all match counts.",
    )
