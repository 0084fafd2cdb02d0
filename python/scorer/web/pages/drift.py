"""The page of a checkpoint's drift: alerts, the quantities of a lane over time, and one of them."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.drift_answers import DriftHistory
from scorer.release.errors import NotFoundError, PlatformError
from scorer.web.pages.readout import CHART_ROWS, figure_file
from scorer.web.pages.visit import Here, Visit

router = APIRouter()
DAYS = (7, 30, 90)
_SHOWN = 20


@router.get("/checkpoints/{name}/drift")
def page(here: Here, name: str) -> Response:
    """Show the alerts of a checkpoint, and the drift of one lane by day."""
    found = here.service.drift.drift(here.actor, name)
    history: DriftHistory | None = None
    problem: PlatformError | None = None
    if found.lanes:
        try:
            history = _history(here, name)
        except PlatformError as error:
            problem = error
    own = next((one for one in found.lanes if history and one.lane == history.lane), None)
    return here.page(
        "drift.html",
        error=problem,
        name=name,
        drift=found,
        history=history,
        own=own,
        days=DAYS,
        chosen_days=_days(here),
        shown=_SHOWN,
        most=CHART_ROWS,
    )


@router.get("/checkpoints/{name}/drift/figures/{figure}.{form}")
def download(here: Here, name: str, figure: str, form: str) -> Response:
    """Return the numbers of a figure as CSV or JSON."""
    known = {one.name: one for one in _history(here, name).figures}
    if figure not in known:
        raise NotFoundError(f'there is no figure "{figure[:40]}" of drift; there are {", ".join(known)}')
    return figure_file(known[figure], f"{name}-drift-{figure}", form)


def _history(here: Visit, name: str) -> DriftHistory:
    return here.service.drift.history(
        here.actor, name, lane=here.ask("lane"), quantity=here.ask("quantity"), days=_days(here)
    )


def _days(here: Visit) -> int:
    return int(here.ask_number("days", 30, low=1, high=90))
