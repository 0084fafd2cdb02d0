"""Pages of the review queue: the list of cases, and one case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import InvalidError, NotFoundError, PlatformError, UnreachableError
from scorer.release.model import CaseDelivery, CaseReason, CaseState, Role
from scorer.release.requests import (
    AssignCase,
    CaseFilter,
    CaseVersion,
    DecideCase,
    SetReasons,
    read_form,
)
from scorer.release.review_answers import ReviewCase
from scorer.web.pages.visit import PAGE, Form, Here, Posted, Visit

router = APIRouter()


@router.get("/reviews")
def reviews(here: Here) -> Response:
    """Show the cases that match the filter; without one, the open ones."""
    asked = {name: here.ask(name)[:200] for name in CaseFilter.model_fields if here.ask(name)}
    if not asked and not here.request.query_params:
        asked = {"state": CaseState.OPEN.value}
    error: PlatformError | None = None
    found: Sequence[ReviewCase] = ()
    following: str | None = None
    try:
        found, following = here.service.reviews.list(
            here.actor, read_form(CaseFilter, asked), cursor=here.ask("before") or None, limit=PAGE
        )
    except InvalidError as refused:
        error = refused
    queues = {name: one.review for name, one in here.settings.checkpoints.items() if one.review.project}
    mine = {one.name for one in here.projects()}
    own = [name for name, queue in queues.items() if queue.project in mine]
    return here.page(
        "reviews.html",
        error=error,
        cases=found,
        following=following or "",
        asked=asked,
        checkpoints=own,
        counts=[one for one in here.service.reviews.counts() if one.checkpoint in own],
        states=list(CaseState),
        deliveries=list(CaseDelivery),
    )


@router.get("/reviews/{case}")
def review(here: Here, case: int) -> Response:
    """Show one case with the record of its decision."""
    return _show(here, case)


def _show(
    here: Visit, case: int, *, error: PlatformError | None = None, form: Form | None = None
) -> Response:
    detail = here.service.reviews.get(here.actor, case)
    decision: Mapping[str, Any] = {}
    missing = ""
    try:
        decision = here.service.decisions.find(
            here.actor, detail.case.decision_id, checkpoint=detail.case.checkpoint
        )
    except (NotFoundError, UnreachableError) as gone:
        # Retention or an erasure can have removed the record; the case is shown without it.
        missing = str(gone)
    return here.page(
        "review.html",
        error=error,
        page_path=f"/reviews/{case}",
        detail=detail,
        case=detail.case,
        features=decision.get("features", ()),
        reasons=decision.get("decision", {}).get("feature_reasons", ()),
        missing=missing,
        following=here.service.reviews.next(
            here.actor, detail.case.project, after=case, queue=detail.case.queue
        ),
        reviewers=[
            one.user
            for one in here.service.access.members(here.actor, detail.case.project)
            if _may_review(one.role, here.service.reviews.role(detail.case.checkpoint))
        ],
        is_mine=detail.case.assignee == here.actor.user,
        may_correct=detail.may_manage or detail.case.decided_by == here.actor.user,
        form=form.values() if form else {},
    )


def _may_review(role: Role, least: Role) -> bool:
    order = list(Role)
    return order.index(role) >= order.index(least)


@router.post("/reviews/{case}/claim")
def claim(here: Here, case: int, form: Posted) -> Response:
    """Assign the case to the visitor."""
    try:
        here.service.reviews.claim(here.actor, case, form.read(CaseVersion))
    except PlatformError as error:
        return _show(here, case, error=error)
    return here.go(f"/reviews/{case}", "review-claimed")


@router.post("/reviews/{case}/release")
def release(here: Here, case: int, form: Posted) -> Response:
    """End the assignment of the case."""
    try:
        here.service.reviews.release(here.actor, case, form.read(CaseVersion))
    except PlatformError as error:
        return _show(here, case, error=error)
    return here.go(f"/reviews/{case}", "review-released")


@router.post("/reviews/{case}/assign")
def assign(here: Here, case: int, form: Posted) -> Response:
    """Assign the case to another user."""
    try:
        here.service.reviews.assign(here.actor, case, form.read(AssignCase))
    except PlatformError as error:
        return _show(here, case, error=error, form=form)
    return here.go(f"/reviews/{case}", "review-assigned")


@router.post("/reviews/{case}/decide")
def decide(here: Here, case: int, form: Posted) -> Response:
    """Decide the case, or correct the decision."""
    try:
        here.service.reviews.decide(here.actor, case, form.read(DecideCase))
    except PlatformError as error:
        return _show(here, case, error=error, form=form)
    return here.go(f"/reviews/{case}", "review-decided")


@router.post("/projects/{name}/review-reasons")
def set_reasons(here: Here, name: str, form: Posted) -> Response:
    """Replace the reasons that reviewers of a project can give."""
    try:
        lines = [_reason(line) for line in form.text("reasons", most=20_000).splitlines() if line.strip()]
        here.service.reviews.set_reasons(here.actor, name, read_form(SetReasons, {"reasons": lines}))
    except PlatformError as error:
        return here.go(f"/projects/{name}", error=error)
    return here.go(f"/projects/{name}", "review-reasons")


def _reason(line: str) -> dict[str, str | None]:
    """Read a line such as `confirmed_fraud decline Confirmed fraud`; `any` stands for either decision."""
    code, _, rest = line.strip().partition(" ")
    decision, _, text = rest.strip().partition(" ")
    return {"code": code, "decision": None if decision == "any" else decision, "text": text.strip()}


def reason_line(reason: CaseReason) -> str:
    """Return a reason as a line of the form; see `set_reasons`."""
    return f"{reason.code} {reason.decision or 'any'} {reason.text}"
