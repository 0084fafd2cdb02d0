"""The page of one change request: its state, gates and permitted operations."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import ChangeDetail
from scorer.release.backtest.job import from_document
from scorer.release.errors import InvalidError, PlatformError
from scorer.release.model import ChangeState
from scorer.release.requests import OPERATIONS, Finish
from scorer.web.pages.changes import gates_of
from scorer.web.pages.visit import Form, Here, Posted, Visit, one_of

router = APIRouter()


@router.get("/changes/{change}")
def page(here: Here, change: str) -> Response:
    """Show the page of one change request."""
    return show(here, change)


def show(
    here: Visit, change: str, *, error: PlatformError | None = None, form: Form | None = None
) -> Response:
    """Show the present state of a change request, with the error of a rejected operation."""
    detail = here.service.changes.get(here.actor, change)
    one = detail.change
    known = {gate.metric for gate in detail.gates}
    ahead = () if one.state.is_final else one.gates or gates_of(here, one.checkpoint)
    return here.page(
        "change.html",
        error=error,
        form=form.values() if form else {},
        detail=detail,
        change=one,
        planned=[gate for gate in ahead if gate.metric not in known],
        blocking=[gate for gate in detail.gates if gate.blocks],
        settings=here.settings.checkpoints.get(one.checkpoint),
        observed=_is_observed(detail),
        backtest_gates=from_document(detail.backtest).gates if detail.backtest else (),
        running=any(step.status == "running" for step in detail.steps),
    )


def _is_observed(detail: ChangeDetail) -> bool:
    """Whether there is something to report: the observation has begun, or the gates were evaluated."""
    begun = any(step.state is ChangeState.OBSERVING and step.began for step in detail.steps)
    return begun or bool(detail.gates)


@router.post("/changes/{change}/{action}")
def act(here: Here, change: str, action: str, form: Posted) -> Response:
    """Perform an operation and show its result."""
    kind = one_of("operation", action, {**OPERATIONS, "delete": Finish})
    try:
        if action == "rollback" and not form.on("sure"):
            raise InvalidError("a rollback takes effect immediately; tick the box to confirm it")
        request = form.read(kind)
        getattr(here.service.changes, action)(here.actor, change, **dict(request))
    except PlatformError as error:
        return show(here, change, error=error, form=form)
    return here.go("/changes" if action == "delete" else f"/changes/{change}", action)
