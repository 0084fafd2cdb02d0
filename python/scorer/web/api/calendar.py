"""REST operations on the calendar of bookings and freezes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from scorer.release.calendar import CalendarPage
from scorer.release.fields import Moment
from scorer.release.model import Freeze
from scorer.release.requests import NewFreeze
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import AtCheckpoint, Identity

router = APIRouter(tags=["calendar"])


@router.get("/calendar", responses=refusals(invalid="The period is empty or longer than a year."))
def get_calendar(
    by: By,
    start: Annotated[Moment, Query(description="Start, with its time zone.")],
    end: Annotated[Moment, Query(description="End, with its time zone; at most a year later.")],
    checkpoint: AtCheckpoint = None,
) -> CalendarPage:
    """Return slots, bookings and freezes between two times."""
    return by.service.calendar.page(by.actor, start, end, checkpoint=checkpoint)


@router.get("/freezes")
def list_freezes(by: By) -> list[Freeze]:
    """Return all freezes of the calendar."""
    return list(by.service.calendar.freezes(by.actor))


@router.post(
    "/freezes",
    status_code=201,
    responses=refusals(409, invalid="The cron line or the time zone cannot be read."),
)
def add_freeze(by: By, body: NewFreeze) -> Freeze:
    """Add a freeze. For admins."""
    return by.service.calendar.add_freeze(by.actor, body)


@router.delete("/freezes/{id}", status_code=204)
def remove_freeze(by: By, freeze: Identity) -> Response:
    """Remove a freeze. For admins."""
    by.service.calendar.remove_freeze(by.actor, freeze)
    return Response(status_code=204)
