"""`[labels]`: which outcomes make a label, how long to wait, and what decisions without one count as."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from scorer.learn.section import LearnSection
from scorer.log.proof import UNPROVEN_DESCRIPTION

Meaning = Literal["positive", "negative", "none"]


class LabelKind(LearnSection):
    """A kind of outcome, and what its values mean."""

    kind: str = Field(min_length=1, max_length=64)
    at_least: FiniteFloat = 0.5
    above: Meaning = "positive"
    below: Meaning = "negative"


class ExploredRule(LearnSection):
    """A rule that approves a random share of the decisions that would be declined."""

    rule: str = Field(min_length=1, max_length=200)
    share: FiniteFloat = Field(gt=0, le=1)


class LabelSettings(LearnSection):
    """How the outcomes of a decision become its label for the training of a score."""

    kinds: tuple[LabelKind, ...] = Field(
        default=(LabelKind(kind="chargeback"), LabelKind(kind="fraud")),
        min_length=1,
        description="Kinds of outcomes in the order of precedence: the first one that gives a label decides. "
        '"above" is what a value of "at_least" or more means, and "below" what a smaller one means: '
        '"positive", "negative" or "none".',
    )
    contradictions: Literal["first", "exclude"] = Field(
        default="first",
        description='A decision whose kinds give different labels: "first" takes that of the first kind, '
        '"exclude" leaves the decision out.',
    )
    wait_hours: FiniteFloat = Field(
        default=1080.0,
        ge=0,
        le=24 * 365,
        description="Age of a decision from which on the absence of a label means something. Not used with "
        '"maturity".',
    )
    maturity: FiniteFloat | None = Field(
        default=None,
        gt=0,
        le=1,
        examples=[0.95],
        description="Wait until the maturity curve has reached this share instead, for each segment.",
    )
    early: Literal["count", "wait"] = Field(
        default="wait",
        description='What a label of a younger decision is worth: "wait": it is in flight, so that early '
        'labels, most of which are positive, are not over-represented; "count": it counts at once.',
    )
    unlabelled: Literal["exclude", "negative", "weighted", "modelled"] = Field(
        default="negative",
        description='Decisions without a label after the wait: "exclude" leaves them out; "negative" counts '
        'them as negative; "weighted" as negative with the probability that no positive label still comes; '
        '"modelled" as both, with a probability that also depends on the features.',
    )
    declined: tuple[str, ...] = Field(
        default=("decline",),
        description="Decisions that end the payment. Without a label they are left out whatever their age, "
        "because no outcome can come, and maturity curves do not contain them.",
    )
    explored: tuple[ExploredRule, ...] = Field(
        default=(),
        examples=[[{"rule": "explore", "share": 0.01}]],
        description="Rules with a roll-out that approve a share of the decisions which would be declined. "
        "Such a decision has 1 / share times the weight, because it stands for those that were declined.",
    )
    amount: str | None = Field(
        default=None,
        examples=["amount"],
        description="Feature whose sum over the positive labels of explored decisions is their cost.",
    )
    segment: str | None = Field(
        default=None,
        examples=["country"],
        description="Feature that is a category or a flag, or lane, bundle or action: each of its values has "
        "its own maturity curve.",
    )
    horizon_days: FiniteFloat | None = Field(
        default=None,
        gt=0,
        le=3_650,
        examples=[120],
        description="Longest delay of a label; not set: the age that a tenth of the decisions have reached.",
    )
    least: int = Field(
        default=50, ge=1, description="Fewest labels with which a segment has a maturity curve of its own."
    )
    days: FiniteFloat | None = Field(
        default=None,
        gt=0,
        examples=[180],
        description="Only decisions of so many days before the moment; not set: all of them.",
    )
    unproven: Literal["exclude", "include"] = Field(default="exclude", description=UNPROVEN_DESCRIPTION)

    @model_validator(mode="after")
    def _kinds_differ(self) -> Self:
        names = [one.kind for one in self.kinds]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f'kinds: "{twice[0]}" is listed twice; list each kind once')
        if all("positive" not in (one.above, one.below) for one in self.kinds):
            raise ValueError("kinds: no value is positive, so every label would be negative")
        return self

    @property
    def needs_curves(self) -> bool:
        """Whether maturity curves are needed."""
        return self.maturity is not None or self.unlabelled in {"weighted", "modelled"}
