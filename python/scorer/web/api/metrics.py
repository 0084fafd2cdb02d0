"""REST operations on a checkpoint's metrics over time."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response

from scorer.figure import Figure
from scorer.release.answers import CheckpointMetrics
from scorer.release.fields import Line, Moment
from scorer.web.api.security import By
from scorer.web.api.values import CheckpointPath
from scorer.web.downloads import csv_text

router = APIRouter(tags=["checkpoints"])

SeriesPath = Annotated[
    str,
    Path(
        alias="figure",
        pattern=r"^[a-z-]{1,64}$",
        examples=["rate"],
        description="rate, decisions, outcomes, execution, data-load, fallbacks or drift.",
    ),
]
WindowQuery = Annotated[
    Literal["1h", "6h", "24h", "7d", "30d", "6mo"] | None,
    Query(description="Window that ends now; null: 24h. `start` takes precedence."),
]
StartQuery = Annotated[Moment | None, Query(description="Start, with its time zone; null: of `window`.")]
EndQuery = Annotated[Moment | None, Query(description="End, with its time zone; null: now.")]
ServerQuery = Annotated[Line | None, Query(description="Name of a server; null: all.")]
LaneQuery = Annotated[Line | None, Query(description="Name of a lane; null: all answer lanes.")]
VersionQuery = Annotated[
    str | None,
    Query(
        pattern=r"^(sha256:)?[0-9a-f]{4,64}$",
        description="Digest of a bundle, or at least its first four digits; null: all.",
    ),
]


@router.get("/checkpoints/{checkpoint}/metrics")
def get_metrics(
    by: By,
    checkpoint: CheckpointPath,
    window: WindowQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
    server: ServerQuery = None,
    lane: LaneQuery = None,
    version: VersionQuery = None,
) -> CheckpointMetrics:
    """Return a checkpoint's metrics over time: rate, decisions, outcomes, times, fallbacks, drift."""
    return by.service.metrics.metrics(
        by.actor,
        checkpoint,
        window=window,
        start=start,
        end=end,
        server=server or "",
        lane=lane or "",
        version=version or "",
    )


@router.get("/checkpoints/{checkpoint}/metrics/figures/{figure}")
def get_metrics_figure(
    by: By,
    checkpoint: CheckpointPath,
    figure: SeriesPath,
    window: WindowQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
    server: ServerQuery = None,
    lane: LaneQuery = None,
    version: VersionQuery = None,
) -> Figure:
    """Return one figure of a checkpoint's metrics with its numbers."""
    found = get_metrics(by, checkpoint, window, start, end, server, lane, version)
    return by.service.metrics.named(found, figure)


@router.get(
    "/checkpoints/{checkpoint}/metrics/figures/{figure}/csv",
    response_class=Response,
    responses={
        200: {"description": "Data of the figure.", "content": {"text/csv": {"schema": {"type": "string"}}}}
    },
)
def get_metrics_csv(
    by: By,
    checkpoint: CheckpointPath,
    figure: SeriesPath,
    window: WindowQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
    server: ServerQuery = None,
    lane: LaneQuery = None,
    version: VersionQuery = None,
) -> Response:
    """Return the numbers of a figure of a checkpoint's metrics as CSV."""
    found = get_metrics_figure(by, checkpoint, figure, window, start, end, server, lane, version)
    return Response(
        csv_text(found.columns, found.rows),
        media_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="{checkpoint}-{figure}.csv"'},
    )
