"""REST operations on versions compared over time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from scorer.release.fields import Line
from scorer.release.requests import NewWeekly
from scorer.release.weekly_answers import WeeklyComparison
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import CheckpointPath

router = APIRouter(tags=["versions"])

ComparisonPath = Annotated[
    str,
    Path(
        alias="comparison",
        pattern=r"^[0-9a-f]{16}$",
        examples=["0123456789abcdef"],
        description="Id of the comparison.",
    ),
]


@router.post("/checkpoints/{checkpoint}/comparisons", status_code=202, responses=refusals(409, 429))
def start_weekly_comparison(by: By, checkpoint: CheckpointPath, wanted: NewWeekly) -> WeeklyComparison:
    """Compare versions by weeks of matured labels, in the background, as served and on backtests.

    The same request within an hour returns the comparison that was started first.
    """
    return by.service.weekly.start(by.actor, checkpoint, wanted)


@router.get("/checkpoints/{checkpoint}/comparisons/{comparison}")
def get_weekly_comparison(
    by: By,
    checkpoint: CheckpointPath,
    comparison: ComparisonPath,
    metric: Annotated[Line | None, Query(description="Metric of the charts; null: the main one.")] = None,
    group: Annotated[
        Line | None,
        Query(
            description="What lines are drawn for: version, algorithm, data or parameter:NAME; null: version."
        ),
    ] = None,
) -> WeeklyComparison:
    """Return a comparison of versions with its state, and its result once it is done."""
    return by.service.weekly.get(by.actor, checkpoint, comparison, metric=metric or "", by=group or "version")
