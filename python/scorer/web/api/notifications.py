"""Notification channels of a project, and the messages that were sent."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from scorer.release.answers import Channel, Delivery
from scorer.release.requests import NewChannel
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import Containing, Identity, Limit, ProjectPath

router = APIRouter(tags=["notifications"])

_NEW = refusals(409, invalid="The address cannot be used.")


@router.get("/projects/{project}/channels")
def list_channels(by: By, project: ProjectPath) -> list[Channel]:
    """List the notification channels of a project, with secrets masked."""
    return list(by.service.notifications.channels(by.actor, project))


@router.post("/projects/{project}/channels", status_code=201, responses=_NEW)
def add_channel(by: By, project: ProjectPath, body: NewChannel) -> Channel:
    """Add a notification channel. For owners."""
    return by.service.notifications.add_channel(by.actor, project, **dict(body))


@router.delete("/channels/{id}", status_code=204)
def remove_channel(by: By, channel: Identity) -> Response:
    """Remove a notification channel. For owners."""
    by.service.notifications.remove_channel(by.actor, channel)
    return Response(status_code=204)


@router.post("/channels/{id}/test")
def test_channel(by: By, channel: Identity) -> Delivery:
    """Send a test message now and return the result of its delivery."""
    return by.service.notifications.test_channel(by.actor, channel)


@router.get("/projects/{project}/deliveries")
def list_deliveries(
    by: By,
    project: ProjectPath,
    state: Annotated[
        Literal["waiting", "sent", "given up"] | None, Query(description="State; null: all.")
    ] = None,
    text: Containing = None,
    before: Annotated[
        int | None, Query(ge=1, le=2**53, description="Only messages with a lower id; null: the newest.")
    ] = None,
    limit: Limit = 100,
) -> list[Delivery]:
    """List the messages of a project, newest first."""
    found = by.service.notifications.deliveries(
        by.actor, project, state=state, text=text, before=before, limit=limit
    )
    return list(found)
