"""The page of analyses of adoption (Delta CV): choice of a task, progress, and the result."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.causal.page import CHECK_COLUMNS, EFFECT_COLUMNS, effect_row
from scorer.release.adoption_answers import AdoptionAnalysis
from scorer.release.errors import NotFoundError, PlatformError
from scorer.release.requests import NewAdoptionAnalysis
from scorer.web.pages.readout import CHART_ROWS, figure_file
from scorer.web.pages.visit import Here, Posted, Visit

router = APIRouter()


@router.get("/checkpoints/{name}/adoption")
def tasks(here: Here, name: str) -> Response:
    """Show the tasks of a checkpoint."""
    return _page(here, name, None, None)


@router.post("/checkpoints/{name}/adoption")
def start(here: Here, name: str, form: Posted) -> Response:
    """Start an analysis, and go to it."""
    try:
        found = here.service.adoption.start(here.actor, name, form.read(NewAdoptionAnalysis))
    except PlatformError as error:
        return _page(here, name, None, error)
    return here.go(f"/checkpoints/{name}/adoption/{found.id}")


@router.get("/checkpoints/{name}/adoption/{analysis}")
def show(here: Here, name: str, analysis: str) -> Response:
    """Show an analysis with its progress or its result."""
    return _page(here, name, here.service.adoption.get(here.actor, name, analysis), None)


@router.get("/checkpoints/{name}/adoption/{analysis}/figures/{figure}.{form}")
def download(here: Here, name: str, analysis: str, figure: str, form: str) -> Response:
    """Return the numbers of a figure as CSV or JSON."""
    result = here.service.adoption.get(here.actor, name, analysis).result
    known = {one.name: one for one in result.figures} if result is not None else {}
    if figure not in known:
        raise NotFoundError(
            f'there is no figure "{figure[:40]}" of this analysis; there are {", ".join(known) or "none yet"}'
        )
    return figure_file(known[figure], f"{name}-adoption-{figure}", form)


def _page(here: Visit, name: str, found: AdoptionAnalysis | None, error: PlatformError | None) -> Response:
    result = found.result if found is not None else None
    return here.page(
        "adoption.html",
        error=error,
        page_path=f"/checkpoints/{name}/adoption" + (f"/{found.id}" if found else ""),
        name=name,
        found=found,
        tasks=here.service.adoption.tasks(here.actor, name).items,
        effect_columns=EFFECT_COLUMNS,
        check_columns=CHECK_COLUMNS,
        effect_rows=[effect_row(one) for one in result.effects] if result is not None else [],
        most=CHART_ROWS,
    )
