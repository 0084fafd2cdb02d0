"""The page of versions compared over time: choice of versions, progress, and the result."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.learn.comparison.figures import TITLES
from scorer.learn.comparison.settings import MOST_VERSIONS, MOST_WEEKS
from scorer.release.errors import NotFoundError, PlatformError
from scorer.release.requests import NewWeekly
from scorer.release.weekly_answers import WeeklyComparison
from scorer.web.pages.readout import CHART_ROWS, figure_file
from scorer.web.pages.visit import Here, Posted, Visit

router = APIRouter()
_LISTED = 100


@router.get("/checkpoints/{name}/comparison")
def choose(here: Here, name: str) -> Response:
    """Show the versions of a checkpoint for choice."""
    return _page(here, name, None, None)


@router.post("/checkpoints/{name}/comparison")
def start(here: Here, name: str, form: Posted) -> Response:
    """Start a comparison, and go to it."""
    try:
        # The page lists the newest version first.
        wanted = form.read(NewWeekly, versions=form.chosen("versions")[::-1])
        found = here.service.weekly.start(here.actor, name, wanted)
    except PlatformError as error:
        return _page(here, name, None, error)
    return here.go(f"/checkpoints/{name}/comparison/{found.id}")


@router.get("/checkpoints/{name}/comparison/{comparison}")
def show(here: Here, name: str, comparison: str) -> Response:
    """Show a comparison with its progress or its result."""
    return _page(here, name, _found(here, name, comparison), None)


@router.get("/checkpoints/{name}/comparison/{comparison}/figures/{figure}.{form}")
def download(here: Here, name: str, comparison: str, figure: str, form: str) -> Response:
    """Return the numbers of a figure as CSV or JSON."""
    result = _found(here, name, comparison).result
    known = {one.name: one for one in result.figures} if result is not None else {}
    if figure not in known:
        raise NotFoundError(
            f'there is no figure "{figure[:40]}" of this comparison; there are '
            f"{', '.join(known) or 'none yet'}"
        )
    return figure_file(known[figure], f"{name}-comparison-{figure}", form)


def _found(here: Visit, name: str, comparison: str) -> WeeklyComparison:
    return here.service.weekly.get(
        here.actor, name, comparison, metric=here.ask("metric"), by=here.ask("group") or "version"
    )


def _page(here: Visit, name: str, found: WeeklyComparison | None, error: PlatformError | None) -> Response:
    return here.page(
        "weekly.html",
        error=error,
        page_path=f"/checkpoints/{name}/comparison" + (f"/{found.id}" if found else ""),
        name=name,
        found=found,
        versions=here.service.versions.list(here.actor, name, limit=_LISTED).items,
        chosen=found.versions if found else (),
        weeks=here.settings.checkpoints[name].comparison.weeks,
        titles=TITLES,
        most_versions=MOST_VERSIONS,
        most_weeks=MOST_WEEKS,
        most=CHART_ROWS,
    )
