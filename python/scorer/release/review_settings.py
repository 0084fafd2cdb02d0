"""Settings of a checkpoint's review queue."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from scorer.config.fields import Section
from scorer.release.fields import PROJECT


class ReviewSettings(Section):
    """Which decisions become cases of the review queue, who decides them, and by when."""

    project: str | None = Field(
        default=None,
        pattern=PROJECT,
        description="Project whose members review the decisions. Default: there is no review queue.",
        examples=["fraud"],
    )
    label: str = Field(
        default="review",
        min_length=1,
        max_length=64,
        description="Label of a threshold band. A decision with it becomes a case.",
    )
    role: Literal["viewer", "modeler", "approver", "owner"] = Field(
        default="modeler", description="Lowest role in the project that claims and decides cases."
    )
    sla_minutes: float = Field(
        default=60.0,
        gt=0,
        le=100_000,
        description="Minutes from the decision until its case is due. Later, it is overdue.",
    )
    amount: str = Field(
        default="amount",
        max_length=200,
        description="Feature that lists show and filter as the amount; empty: none. A sensitive feature is "
        "not shown.",
    )
    outcome: str = Field(
        default="review",
        pattern=r"^[!-~]{1,64}$",
        description="Kind of the outcome that is reported for a decided case: 1 for decline, 0 for approve.",
    )
    source_id: Literal["case", "user"] = Field(
        default="case",
        description="Id of the reviewer in reported outcomes, which servers record in their logs: `case` is "
        "the number of the case (`case-17`), from which members find the user here; `user` is the user's "
        "name, if it has at most 64 characters.",
    )
    open_days: float = Field(
        default=30.0,
        gt=0,
        le=3650,
        description="Age of a decision in days at which its open case is closed without an outcome. An older "
        "decision does not become a case.",
    )
    keep_days: float = Field(
        default=400.0,
        gt=0,
        le=3650,
        description="Days after which a decided or closed case is deleted with its history.",
    )

    @field_validator("keep_days")
    @classmethod
    def _is_kept_as_long_as_open(cls, value: float, info: ValidationInfo) -> float:
        if value < info.data.get("open_days", 0.0):
            raise ValueError(f"{value:g} is less than open_days ({info.data['open_days']:g}); raise it")
        return value
