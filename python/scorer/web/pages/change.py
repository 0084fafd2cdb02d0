"""One change request: where it is, what its gates say, who may do what now."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import InvalidError, PlatformError
from scorer.web.pages.changes import gates_of, when_and_where
from scorer.web.pages.visit import Form, Here, Posted, Visit, moment, one_of

router = APIRouter()


@router.get("/changes/{change}")
def page(here: Here, change: str) -> Response:
    """The page."""
    return show(here, change)


def show(
    here: Visit, change: str, *, error: PlatformError | None = None, form: Form | None = None
) -> Response:
    """It, as it is now; with what was refused, if something was."""
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
    )


@router.post("/changes/{change}/{action}")
def act(here: Here, change: str, action: str, form: Posted) -> Response:
    """Does what was asked, and shows what came of it."""
    do = one_of("operation", action, _ACTIONS)
    try:
        do(here, change, form)
    except PlatformError as error:
        return show(here, change, error=error, form=form)
    return here.go(f"/changes/{change}", action)


def _submit(here: Visit, change: str, form: Form) -> None:
    start, slot = when_and_where(form)
    here.service.changes.submit(here.actor, change, start=start, slot=slot)


def _rebook(here: Visit, change: str, form: Form) -> None:
    here.service.changes.rebook(
        here.actor,
        change,
        start=form.moment("start", what="the start") or moment("", "the start"),
        minutes=form.number("minutes", what="the length", default=0.0) or None,
        slot=form.integer("slot", what="the slot") if form.text("slot") else None,
    )


def _finish(here: Visit, change: str, form: Form) -> None:
    here.service.changes.finish(here.actor, change)


def _approve(here: Visit, change: str, form: Form) -> None:
    version = form.integer("version", what="the version")
    comment = form.text("reason")
    here.service.changes.approve(here.actor, change, version=version, comment=comment)


def _reject(here: Visit, change: str, form: Form) -> None:
    here.service.changes.reject(here.actor, change, reason=_reason(form))


def _waive(here: Visit, change: str, form: Form) -> None:
    metric = form.text("metric", what="the gate")
    here.service.changes.waive(here.actor, change, metric=metric, reason=_reason(form))


def _withdraw(here: Visit, change: str, form: Form) -> None:
    here.service.changes.withdraw(here.actor, change, reason=_reason(form))


def _rollback(here: Visit, change: str, form: Form) -> None:
    if not form.on("sure"):
        raise InvalidError("a rollback takes effect at once; tick the box that says so, and send it again")
    here.service.changes.rollback(here.actor, change, reason=_reason(form))


def _reason(form: Form) -> str:
    return form.text("reason", what="the reason", most=2000)


_ACTIONS = {
    "submit": _submit,
    "rebook": _rebook,
    "finish": _finish,
    "approve": _approve,
    "reject": _reject,
    "waive": _waive,
    "withdraw": _withdraw,
    "rollback": _rollback,
}
