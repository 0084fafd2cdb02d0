"""The pages of a checkpoint's versions: the list, and the timeline."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import InvalidError, PlatformError
from scorer.release.model import Place
from scorer.release.version_answers import Timeline, VersionList
from scorer.web.pages.visit import Here, Visit

router = APIRouter()
_ROWS = 50
_FIRST = "-first"
_METRICS = 4
"""Metrics that the table has columns for; the timeline and REST have all."""

COLUMNS = (
    (("name", "Version"),),
    (("place", "Place"),),
    (("uploaded", "Uploaded"), ("by", "by")),
    (("live", "Last live"), ("live_time", "for")),
    (("changes", "Changes"),),
    (("verdict", "Verdict"),),
)
"""Columns of the table, each with the orders that its header offers."""
LAST = ((("rows", "Rows"), ("p99", "p99")),)


@router.get("/checkpoints/{name}/versions")
def versions(here: Here, name: str) -> Response:
    """Show the versions of a checkpoint, sorted, filtered and paged."""
    sort, error = here.ask("sort") or _FIRST, None
    try:
        place = _place(here.ask("place"))
        offset = int(here.ask_number("offset", 0, low=0, high=1_000_000))
        found = _list(here, name, sort, place, offset)
    except InvalidError as problem:
        error, sort, place = problem, _FIRST, None
        found = _list(here, name, sort, None, 0)
        offset = 0
    # Only metrics of the shown part have columns.
    metrics = [one for one in found.metrics if any(one in each.metrics for each in found.items)][:_METRICS]
    measured = tuple((f"metrics.{one}", one) for one in metrics)
    return here.page(
        "versions.html",
        error=error,
        found=found,
        metrics=metrics,
        columns=(*COLUMNS, *([measured] if measured else [])),
        numbers=LAST,
        sort=sort,
        place=place,
        places=list(Place),
        offset=offset,
        rows=_ROWS,
    )


def _place(text: str) -> Place | None:
    if text and text not in list(Place):
        raise InvalidError(f'"{text[:40]}" is not a place of a version; use one of {", ".join(Place)}')
    return Place(text) if text else None


def _list(here: Visit, name: str, sort: str, place: Place | None, offset: int) -> VersionList:
    return here.service.versions.list(here.actor, name, sort=sort, place=place, offset=offset, limit=_ROWS)


@router.get("/checkpoints/{name}/timeline")
def timeline(here: Here, name: str) -> Response:
    """Show a metric of all versions over time, and the parameters that changed from one to the next."""
    error: PlatformError | None = None
    found: Timeline
    try:
        found = here.service.versions.timeline(
            here.actor, name, metric=here.ask("metric") or None, by=here.ask("by") or None
        )
    except InvalidError as problem:
        error = problem
        found = here.service.versions.timeline(here.actor, name)
    names = sorted({each for one in found.entries for each in one.version.parameters})
    return here.page("timeline.html", error=error, found=found, names=names)
