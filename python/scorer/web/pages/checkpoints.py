"""The pages of checkpoints and their lanes."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import InvalidError, PlatformError
from scorer.release.model import Role
from scorer.release.requests import Sampling, ServeCheckpoint, WithReason
from scorer.web.pages.visit import Form, Here, Posted, Visit

router = APIRouter()


@router.get("/checkpoints")
def checkpoints(here: Here) -> Response:
    """Show the list of all checkpoints."""
    return here.page("checkpoints.html", views=here.service.checkpoints.list(here.actor))


@router.get("/checkpoints/{name}")
def checkpoint(here: Here, name: str) -> Response:
    """Show the page of one checkpoint."""
    return _show(here, name)


def _show(
    here: Visit, name: str, *, form: Form | None = None, error: PlatformError | None = None
) -> Response:
    view = here.service.checkpoints.view(here.actor, name)
    roles = [here.role(project.name) for project in here.projects() if _covers(project.checkpoints, name)]
    order = list(Role)
    best = max((order.index(role) for role in roles if role), default=-1)
    return here.page(
        "checkpoint.html",
        error=error,
        page_path=f"/checkpoints/{name}",
        view=view,
        lacking=here.service.additions.lacking(name),
        history=here.service.checkpoints.history(here.actor, name, limit=50),
        freeze=here.service.calendar.frozen(name, here.now),
        changes=here.service.changes.list(here.actor, checkpoint=name, limit=20),
        names=_names(here),
        settings=here.settings.checkpoints.get(name),
        has_metrics=name in here.checkpoints(),
        has_adoption=bool(here.settings.checkpoints[name].adoption),
        may_sample=here.actor.admin or best >= order.index(Role.OWNER),
        may_roll_back=here.actor.admin or best >= order.index(Role.MODELER),
        form=form.values() if form else {},
    )


def _covers(checkpoints: tuple[str, ...], name: str) -> bool:
    return not checkpoints or name in checkpoints


def _names(here: Visit) -> dict[str, str]:
    """Return the names of bundles by digest."""
    return {one.digest: one.name for one in here.service.bundles.list(here.actor)}


@router.post("/checkpoints/{name}/serve")
def serve(here: Here, name: str, form: Posted) -> Response:
    """Add the checkpoint to the servers that do not have it."""
    try:
        found = here.service.additions.serve_checkpoint(here.actor, name, form.read(ServeCheckpoint))
        failed = [f"{one.server}: {one.error}" for one in found if one.error]
        if failed:
            raise InvalidError("; ".join(failed))
    except PlatformError as error:
        return _show(here, name, form=form, error=error)
    return here.go(f"/checkpoints/{name}", "served")


@router.post("/checkpoints/{name}/sampling")
def set_sampling(here: Here, name: str, form: Posted) -> Response:
    """Set the sampling of the observe lanes."""
    try:
        sampling = form.read(Sampling, sample=form.share("percent"), pool=form.on("pool"))
        here.service.checkpoints.set_sampling(here.actor, name, **dict(sampling))
    except PlatformError as error:
        return _show(here, name, form=form, error=error)
    return here.go(f"/checkpoints/{name}", "sampling")


@router.post("/checkpoints/{name}/rollback")
def rollback(here: Here, name: str, form: Posted) -> Response:
    """Restore the previous answer lanes."""
    try:
        if not form.on("sure"):
            raise InvalidError("a rollback takes effect immediately; tick the box to confirm it")
        here.service.checkpoints.rollback(here.actor, name, reason=form.read(WithReason).reason)
    except PlatformError as error:
        return _show(here, name, form=form, error=error)
    return here.go(f"/checkpoints/{name}", "rollback")
