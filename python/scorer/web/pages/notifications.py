"""The page of a project's notification channels and deliveries."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import Delivery
from scorer.release.errors import PlatformError
from scorer.release.model import Role, Severity
from scorer.release.requests import NewChannel
from scorer.web.pages.visit import PAGE, Here, Posted, Visit

router = APIRouter()
_STATES = ("waiting", "sent", "given up")


@router.get("/notifications")
def notifications(here: Here) -> Response:
    """Show the channels and deliveries of a project."""
    return _show(here)


def _show(here: Visit, *, error: PlatformError | None = None, tested: Delivery | None = None) -> Response:
    projects = here.projects()
    project = here.ask("project") or (projects[0].name if projects else "")
    state, before = here.ask("state"), here.ask("before")
    deliveries, older = here.paged(
        here.service.notifications.deliveries(
            here.actor,
            project,
            state=state if state in _STATES else None,
            text=here.ask("text")[:200] or None,
            before=int(before) if before.isdecimal() and len(before) < 19 else None,
            limit=PAGE + 1,
        )
        if project
        else (),
        lambda one: str(one.id),
    )
    return here.page(
        "notifications.html",
        error=error,
        tested=tested,
        project=project,
        projects=projects,
        channels=here.service.notifications.channels(here.actor, project) if project else (),
        deliveries=deliveries,
        older=older,
        states=_STATES,
        severities=list(Severity),
        checkpoints=here.settings.checkpoints,
        may_change=bool(project) and here.is_at_least(Role.OWNER, project),
    )


@router.post("/notifications")
def add(here: Here, form: Posted) -> Response:
    """Add a notification channel to a project."""
    try:
        project = form.text("project", what="the project")
        here.service.notifications.add_channel(here.actor, project, **dict(form.read(NewChannel)))
    except PlatformError as error:
        return _show(here, error=error)
    return here.go("/notifications", "channel", parameters={"project": project})


@router.post("/notifications/{channel}/test")
def test(here: Here, channel: int, form: Posted) -> Response:
    """Send a test message to a channel."""
    try:
        return _show(here, tested=here.service.notifications.test_channel(here.actor, channel))
    except PlatformError as error:
        return _show(here, error=error)


@router.post("/notifications/{channel}/remove")
def remove(here: Here, channel: int, form: Posted) -> Response:
    """Remove a notification channel from a project."""
    try:
        here.service.notifications.remove_channel(here.actor, channel)
    except PlatformError as error:
        return _show(here, error=error)
    return here.go("/notifications", "channel-removed", parameters={"project": here.ask("project")})
