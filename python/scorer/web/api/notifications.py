"""Where a project is told, and what was sent."""

from __future__ import annotations

from fastapi import APIRouter, Response

from scorer.release.answers import Channel, Delivery
from scorer.release.requests import NewChannel
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import Identity, Limit, ProjectPath

router = APIRouter(tags=["notifications"])


@router.get("/projects/{project}/channels")
def list_channels(by: By, project: ProjectPath) -> list[Channel]:
    """Where a project is told; secrets blanked."""
    return list(by.service.notifications.channels(by.actor, project))


@router.post("/projects/{project}/channels", status_code=201, responses=refusals(409))
def add_channel(by: By, project: ProjectPath, body: NewChannel) -> Channel:
    """Add a notification channel; for owners only."""
    return by.service.notifications.add_channel(by.actor, project, **dict(body))


@router.delete("/channels/{id}", status_code=204)
def remove_channel(by: By, channel: Identity) -> Response:
    """Remove a notification channel; for owners only."""
    by.service.notifications.remove_channel(by.actor, channel)
    return Response(status_code=204)


@router.post("/channels/{id}/test")
def test_channel(by: By, channel: Identity) -> Delivery:
    """Sends one message now and says what came of it."""
    return by.service.notifications.test_channel(by.actor, channel)


@router.get("/projects/{project}/deliveries")
def list_deliveries(by: By, project: ProjectPath, limit: Limit = 100) -> list[Delivery]:
    """What was sent, newest first."""
    return list(by.service.notifications.deliveries(by.actor, project, limit=limit))
