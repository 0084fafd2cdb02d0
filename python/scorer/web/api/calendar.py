"""The calendar of the shadow: bookings, freezes."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from scorer.release.calendar import Page as CalendarPage
from scorer.release.model import Freeze
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import Body, Identity, Line, Moment, Name, Whole

router = APIRouter(tags=["calendar"])


class FreezeIn(Body):
    """When nothing may be changed (`deny`), or the only times when it may (`allow`); a deny wins."""

    name: Line = Field(min_length=1, examples=["weekend"])
    kind: Literal["deny", "allow"]
    cron: Line = Field(min_length=9, examples=["0 18 * * 5"])
    """Five fields: when a window begins."""
    timezone: Line = Field(min_length=1, examples=["Europe/Stockholm"])
    minutes: Annotated[Whole, Field(ge=1, le=527_040)]
    """How long a window is."""
    checkpoints: list[Annotated[str, Field(pattern=r"^[a-z0-9.*?_\[\]!-]{1,64}$")]] = Field(
        default=["*"], min_length=1, max_length=100
    )
    """Patterns as of a shell."""
    reason: Line = ""


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
    """All of them."""
    return list(by.service.calendar.freezes(by.actor))


@router.post("/freezes", status_code=201, responses=refusals(409))
def add_freeze(by: By, body: FreezeIn) -> Freeze:
    """Admins: a new one, in force from now on."""
    return by.service.calendar.add_freeze(by.actor, **body.model_dump())


@router.delete("/freezes/{id}", status_code=204)
def remove_freeze(by: By, freeze: Identity) -> Response:
    """Admins: no more."""
    by.service.calendar.remove_freeze(by.actor, freeze)
    return Response(status_code=204)
