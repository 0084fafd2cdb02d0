"""The calendar of the shadow: bookings, freezes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from scorer.release.calendar import CalendarPage
from scorer.release.fields import Moment, Name
from scorer.release.model import Freeze
from scorer.release.requests import NewFreeze
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import Identity

router = APIRouter(tags=["calendar"])


@router.get("/calendar")
def get_calendar(
    by: By,
    start: Annotated[Moment, Query()],
    end: Annotated[Moment, Query()],
    checkpoint: Annotated[Name | None, Query()] = None,
) -> CalendarPage:
    """Everything between two moments: slots, bookings, freezes; at most a year."""
    return by.service.calendar.page(by.actor, start, end, checkpoint=checkpoint)


@router.get("/freezes")
def list_freezes(by: By) -> list[Freeze]:
    """List all freezes of the calendar."""
    return list(by.service.calendar.freezes(by.actor))


@router.post("/freezes", status_code=201, responses=refusals(409))
def add_freeze(by: By, body: NewFreeze) -> Freeze:
    """Admins: a new one, in force from now on."""
    return by.service.calendar.add_freeze(by.actor, **dict(body))


@router.delete("/freezes/{id}", status_code=204)
def remove_freeze(by: By, freeze: Identity) -> Response:
    """Remove a freeze; for administrators only."""
    by.service.calendar.remove_freeze(by.actor, freeze)
    return Response(status_code=204)
