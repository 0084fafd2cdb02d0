"""REST operations on the versions of checkpoints, and comparisons."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scorer.release.fields import Line
from scorer.release.model import Place
from scorer.release.version_answers import BundleComparison, Timeline, VersionList
from scorer.web.api.security import By
from scorer.web.api.values import CheckpointPath, Limit

router = APIRouter(tags=["versions"])

_SIDE = "Digest, at least four digits of one, name@alias, or id of a change request."


@router.get("/checkpoints/{checkpoint}/versions")
def list_versions(
    by: By,
    checkpoint: CheckpointPath,
    sort: Annotated[
        Line,
        Query(
            description="Order: first, name, place, uploaded, by, live, live_time, changes, verdict, rows, "
            "p99 or metrics.NAME; with - before it descending."
        ),
    ] = "-first",
    place: Annotated[Place | None, Query(description="Place of the versions now; null: all.")] = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000, description="Number of versions to skip.")] = 0,
    limit: Limit = 100,
) -> VersionList:
    """List every bundle that was submitted, tested, released or live at a checkpoint."""
    return by.service.versions.list(by.actor, checkpoint, sort=sort, place=place, offset=offset, limit=limit)


@router.get("/checkpoints/{checkpoint}/timeline")
def get_timeline(
    by: By,
    checkpoint: CheckpointPath,
    metric: Annotated[Line | None, Query(description="Name of a metric; null: the main one.")] = None,
    group: Annotated[
        Line | None, Query(description="Parameter that groups the versions in the chart; null: the data.")
    ] = None,
) -> Timeline:
    """Return the versions of a checkpoint over time, with one metric and the parameters that changed."""
    return by.service.versions.timeline(by.actor, checkpoint, metric=metric, by=group)


@router.get("/compare")
def compare(
    by: By,
    left: Annotated[Line, Query(min_length=1, description=_SIDE)],
    right: Annotated[Line, Query(min_length=1, description=_SIDE)],
) -> BundleComparison:
    """Compare two bundles, two change requests, or one of each."""
    return by.service.comparisons.compare(by.actor, left, right)
