"""Pages of builds: a bundle from a model file."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.builds.receiving import Sent
from scorer.release.errors import PlatformError
from scorer.release.model import Role
from scorer.release.requests import NewBuild
from scorer.web.pages.visit import Here, Posted, PostedFiles, Visit

router = APIRouter()


@router.get("/builds")
def builds(here: Here) -> Response:
    """Show the builds of the visitor's projects."""
    return here.page("builds.html", builds=here.service.builds.list(here.actor))


@router.get("/builds/new")
def new(here: Here) -> Response:
    """Show the form for a new bundle, with values from the query parameters."""
    return _form(here, dict(here.request.query_params))


@router.post("/builds")
def start(here: Here, form: PostedFiles) -> Response:
    """Receive the files, and have the bundle built."""
    try:
        wanted = form.read(NewBuild)
        files = {field: Sent(str(one.filename), one.file) for field, one in form.files().items()}
        build = here.service.builds.start(here.actor, form.text("project", what="the project"), wanted, files)
    except PlatformError as error:
        return _form(here, form.values(), error=error)
    return here.go(f"/builds/{build.id}")


@router.get("/builds/{build}")
def build(here: Here, build: str) -> Response:
    """Show a build, with its progress or its result."""
    return _show(here, build)


@router.post("/builds/{build}/cancel")
def cancel(here: Here, build: str, form: Posted) -> Response:
    """Cancel a build that waits or runs."""
    try:
        here.service.builds.cancel(here.actor, build)
    except PlatformError as error:
        return _show(here, build, error=error)
    return here.go(f"/builds/{build}", "build-cancelled")


def _show(here: Visit, build: str, *, error: PlatformError | None = None) -> Response:
    return here.page(
        "build.html",
        error=error,
        page_path=f"/builds/{build}",
        build=here.service.builds.get(here.actor, build),
    )


def _form(here: Visit, values: Mapping[str, str], *, error: PlatformError | None = None) -> Response:
    checkpoints = here.settings.checkpoints
    chosen = values.get("checkpoint", next(iter(checkpoints)) if error is None else "")
    names = {name: one.alias.partition("@")[0] for name, one in checkpoints.items()}
    return here.page(
        "build_new.html",
        error=error,
        form=values,
        projects=[one for one in here.projects() if here.is_at_least(Role.MODELER, one.name)],
        checkpoint=chosen,
        names=names,
        settings=here.settings.builds,
        limit_mb=here.settings.platform.upload_mb,
    )
