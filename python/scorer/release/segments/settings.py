"""The features that rows are split by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from scorer.config.fields import Section


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """How rows are split, as plain values.

    Attributes:
        features: Categories and flags; empty: those with few values.
        bands: Numbers with the increasing limits of their bands.
        most: Largest number of segments of a feature; rows of all others are one segment.
        rows: Fewest rows of a segment that is judged.
        decides: Whether a segment that is clearly worse fails the change.
        groups: Features whose levels the group metrics compare.
        groups_decide: Whether the gates of groups decide.
    """

    features: tuple[str, ...] = ()
    bands: tuple[tuple[str, tuple[float, ...]], ...] = ()
    most: int = 12
    rows: int = 300
    decides: bool = False
    groups: tuple[str, ...] = ()
    groups_decide: bool = False

    @classmethod
    def restored(cls, found: Mapping[str, Any]) -> SegmentPlan:
        """Return the plan of a JSON document."""
        bands = tuple((str(name), tuple(map(float, limits))) for name, limits in found["bands"])
        named = {name: tuple(found.get(name, ())) for name in ("features", "groups")}
        return cls(**{**found, **named, "bands": bands})


NO_PLAN: Final = SegmentPlan()
"""Rows are split by flags and categories with few values."""


class SegmentSettings(Section):
    """Parts of the traffic that reports and backtests show one by one."""

    features: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default=[],
        max_length=8,
        description="Categories and flags that rows are split by. Default: the first eight of the bundle "
        "that have at most 12 values.",
        examples=[["country", "merchant"]],
    )
    bands: dict[str, Annotated[list[float], Field(min_length=1, max_length=11)]] = Field(
        default={},
        max_length=4,
        description="Numbers that rows are split by, with the increasing limits of their bands.",
        examples=[{"amount": [20.0, 100.0, 500.0]}],
    )
    most: int = Field(
        default=12,
        ge=1,
        le=50,
        description="Segments of a feature that are shown: those with the most rows. All others are shown as "
        "one segment.",
    )
    rows: int = Field(
        default=300, ge=50, le=1_000_000, description="Fewest rows of a segment that is compared with live."
    )
    decides: bool = Field(
        default=False,
        description="Whether a segment in which a bundle is clearly worse than live fails the change. "
        "Default: it is reported, and the approver decides.",
    )

    groups: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default=[],
        max_length=4,
        description="Features whose levels are compared by the group metrics (`group_selection_difference`, "
        "..). Rows are split by them as well. Default: none, and no group metric.",
        examples=[["country"]],
    )
    groups_decide: bool = Field(
        default=False,
        description="Whether a large difference between groups fails the change, if no gate of the "
        "checkpoint or change is about groups. Default: it is reported, and the approver decides.",
    )

    @field_validator("bands")
    @classmethod
    def _increase(cls, value: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, limits in value.items():
            if any(low >= high for low, high in pairwise(limits)):
                raise ValueError(f"limits of {name} are {limits}; write them in increasing order")
        return value

    @field_validator("features", "groups")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        twice = sorted({name for name in value if value.count(name) > 1})
        if twice:
            raise ValueError(f'"{twice[0]}" is named twice; name it once')
        return value

    def plan(self) -> SegmentPlan:
        """Return the same as plain values."""
        bands = tuple((name, tuple(limits)) for name, limits in self.bands.items())
        return SegmentPlan(
            tuple(self.features),
            bands,
            self.most,
            self.rows,
            self.decides,
            tuple(self.groups),
            self.groups_decide,
        )
