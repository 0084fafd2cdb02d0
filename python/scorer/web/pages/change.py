"""The page of one change request: its state, gates and permitted operations."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import ChangeDetail
from scorer.release.backtest.job import from_document
from scorer.release.changes import EDITS, comments
from scorer.release.errors import InvalidError, PlatformError
from scorer.release.model import ChangeRequest, ChangeState, Role
from scorer.release.requests import OPERATIONS, Finish
from scorer.web.pages.changes import gates_of
from scorer.web.pages.visit import Form, Here, Posted, Visit, one_of

router = APIRouter()

_NOUNS = {"rollback": "rollback", "promote": "promotion"}


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
    checkpoint = here.settings.checkpoints.get(one.checkpoint)
    known = {gate.metric for gate in detail.gates}
    ahead = () if one.state.is_final else one.gates or gates_of(here, one.checkpoint)
    values = {
        "form": form.values() if form else {},
        "detail": detail,
        "change": one,
        "planned": [gate for gate in ahead if gate.metric not in known],
        "blocking": [gate for gate in detail.gates if gate.blocks],
        "settings": checkpoint,
        "stages": one.stages or (checkpoint.stages if checkpoint else ()),
        "observed": _is_observed(detail),
        "backtest_gates": from_document(detail.backtest).gates if detail.backtest else (),
        "comments": comments(detail.events),
        "edits": [event for event in detail.events if event.details.get(EDITS)],
        "approvers": _approvers(here, one) if "request_review" in detail.allowed else (),
        "offered": set(detail.allowed) - {"comment"},
        "may_release": here.may("modeler", one.project),
        "is_author": here.actor.user in (one.submitted_by, one.created_by),
    }
    rights = detail.allowed, values["may_release"], values["is_author"]
    return here.page(
        "change.html",
        error=error,
        page_path=f"/changes/{change}",
        form=values["form"],
        main=here.web.fragments.get("change_main.html", (change, rights), here.csrf, values),
        detail=detail,
        change=one,
        running=any(step.status == "running" for step in detail.steps),
    )


def _approvers(here: Visit, change: ChangeRequest) -> list[str]:
    """Members of the project who may be asked for a review."""
    roles = (Role.APPROVER, Role.OWNER)
    members = here.service.access.members(here.actor, change.project)
    authors = (change.created_by, change.submitted_by)
    return [one.user for one in members if one.role in roles and one.user not in authors]


def _is_observed(detail: ChangeDetail) -> bool:
    """Whether there is something to report: the observation has begun, or the gates were evaluated."""
    begun = any(step.state is ChangeState.OBSERVING and step.began for step in detail.steps)
    return begun or bool(detail.gates)


@router.post("/changes/{change}/{action}")
def act(here: Here, change: str, action: str, form: Posted) -> Response:
    """Perform an operation and show its result."""
    kind = one_of("operation", action, {**OPERATIONS, "delete": Finish})
    try:
        if action in ("rollback", "promote") and not form.on("sure"):
            raise InvalidError(f"a {_NOUNS[action]} takes effect immediately; tick the box to confirm it")
        here.service.operation(action)(here.actor, change, **dict(form.read(kind)))
    except PlatformError as error:
        return show(here, change, error=error, form=form)
    return here.go("/changes" if action == "delete" else f"/changes/{change}", action)
