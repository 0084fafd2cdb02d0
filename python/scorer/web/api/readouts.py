"""REST operations on reports and their figures."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from scorer.release.fields import Line, Moment
from scorer.release.readout import Figure, Readout
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import ChangePath
from scorer.web.downloads import csv_text

router = APIRouter(tags=["reports"])

FigurePath = Annotated[
    str,
    Path(
        alias="figure",
        pattern=r"^[a-z0-9-]{1,64}$",
        examples=["execution"],
        description="Name of the figure, for example execution, scores or flips.",
    ),
]


@router.get("/changes/{change}/readout", responses=refusals(conflict="Nothing has been observed yet."))
def get_readout(
    by: By,
    change: ChangePath,
    start: Annotated[
        Moment | None, Query(description="Start, with its time zone; null: the beginning.")
    ] = None,
    end: Annotated[Moment | None, Query(description="End, with its time zone; null: the end.")] = None,
    server: Annotated[Line | None, Query(description="Name of a server; null: all.")] = None,
) -> Readout:
    """Return the report, final or so far: gates, summary, figures, changed decisions."""
    return by.service.readouts.readout(by.actor, change, start=start, end=end, server=server)


@router.get("/changes/{change}/readout/figures/{figure}", responses=refusals(409))
def get_figure(by: By, change: ChangePath, figure: FigurePath) -> Figure:
    """Return one figure of a report with its numbers."""
    return by.service.readouts.figure(by.actor, change, figure)


@router.get(
    "/changes/{change}/readout/figures/{figure}/csv",
    response_class=Response,
    responses={
        **refusals(409),
        200: {"description": "Data of the figure.", "content": {"text/csv": {"schema": {"type": "string"}}}},
    },
)
def get_figure_csv(by: By, change: ChangePath, figure: FigurePath) -> Response:
    """Return the numbers of a figure as CSV."""
    found = by.service.readouts.figure(by.actor, change, figure)
    return Response(
        csv_text(found.columns, found.rows),
        media_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="{change}-{figure}.csv"'},
    )
