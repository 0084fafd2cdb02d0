"""REST operations on the review queue, for pages and for a case manager of one's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scorer.release.fields import Line, Moment, UserName
from scorer.release.model import CaseDelivery, CaseReason, CaseState
from scorer.release.requests import AssignCase, CaseFilter, CaseVersion, DecideCase, SetReasons
from scorer.release.review_answers import ReviewCase, ReviewCaseDetail
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import AtCheckpoint, Cursor, Identity, InProject, Limit, PageOut, ProjectPath

router = APIRouter(tags=["reviews"])

_TAKEN = refusals(conflict="The case is not open, was changed, or another user has claimed it.")
_OTHERS = refusals(
    conflict="The case is not open, or was changed.", not_allowed="Another user has claimed it."
)


@router.get("/reviews")
def list_reviews(
    by: By,
    project: InProject = None,
    checkpoint: AtCheckpoint = None,
    state: Annotated[CaseState | None, Query(description="open, decided or closed; null: all.")] = None,
    assignee: Annotated[UserName | None, Query(description="User who has claimed it; null: all.")] = None,
    unassigned: Annotated[bool, Query(description="Only cases that nobody has claimed.")] = False,
    overdue: Annotated[bool, Query(description="Only cases that are open and late.")] = False,
    delivery: Annotated[
        CaseDelivery | None,
        Query(description="Whether a server has recorded the outcome: none, waiting, delivered; null: all."),
    ] = None,
    code: Annotated[Line | None, Query(description="A reason code of the answer; null: all.")] = None,
    queue: Annotated[
        Line | None, Query(description="The queue that the answer's rules select; null: all.")
    ] = None,
    decision_id: Annotated[Line | None, Query(description="Id of the decision; null: all.")] = None,
    low: Annotated[float | None, Query(allow_inf_nan=False, description="Smallest score; null: all.")] = None,
    high: Annotated[float | None, Query(allow_inf_nan=False, description="Largest score; null: all.")] = None,
    amount_low: Annotated[
        float | None, Query(allow_inf_nan=False, description="Smallest amount; null: all.")
    ] = None,
    amount_high: Annotated[
        float | None, Query(allow_inf_nan=False, description="Largest amount; null: all.")
    ] = None,
    begin: Annotated[
        Moment | None, Query(description="Time of the first decision, with its time zone; null: all.")
    ] = None,
    end: Annotated[
        Moment | None, Query(description="Time after the last decision, with its time zone; null: now.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> PageOut[ReviewCase]:
    """Iterate over the cases of the user's projects: open ones most urgent first, others newest first."""
    asked = CaseFilter(
        project=project,
        checkpoint=checkpoint,
        state=state,
        assignee=assignee,
        unassigned=unassigned,
        overdue=overdue,
        delivery=delivery,
        code=code,
        queue=queue,
        decision_id=decision_id,
        low=low,
        high=high,
        amount_low=amount_low,
        amount_high=amount_high,
        begin=begin,
        end=end,
    )
    items, following = by.service.reviews.list(by.actor, asked, cursor=cursor, limit=limit)
    return PageOut(items=list(items), next=following)


@router.get("/reviews/{id}")
def get_review(by: By, case: Identity) -> ReviewCaseDetail:
    """Return a case with its history and the reasons that a decision can name."""
    return by.service.reviews.get(by.actor, case)


@router.post("/reviews/{id}/claim", responses=_TAKEN)
def claim_review(by: By, case: Identity, body: CaseVersion) -> ReviewCase:
    """Assign an open case to the caller. The same again has no effect."""
    return by.service.reviews.claim(by.actor, case, body)


@router.post("/reviews/{id}/release", responses=_OTHERS)
def release_review(by: By, case: Identity, body: CaseVersion) -> ReviewCase:
    """End the assignment of an open case. For its assignee and for owners."""
    return by.service.reviews.release(by.actor, case, body)


@router.post(
    "/reviews/{id}/assign",
    responses=refusals(
        conflict="The case is not open, or was changed.",
        not_allowed="Another user has claimed it.",
        invalid="The user may not review the case.",
    ),
)
def assign_review(by: By, case: Identity, body: AssignCase) -> ReviewCase:
    """Assign an open case to a user whose role allows the review."""
    return by.service.reviews.assign(by.actor, case, body)


@router.post(
    "/reviews/{id}/decide",
    responses=refusals(
        429,
        conflict="Another user has claimed the case, it was closed, or it was changed.",
        invalid="The reason is not one of the project for this decision.",
    ),
)
def decide_review(by: By, case: Identity, body: DecideCase) -> ReviewCase:
    """Decide a case, or correct the decision. A server gets the outcome. The same again has no effect."""
    return by.service.reviews.decide(by.actor, case, body)


@router.get("/projects/{project}/review-reasons")
def list_review_reasons(by: By, project: ProjectPath) -> list[CaseReason]:
    """List the reasons that reviewers of a project can give."""
    return list(by.service.reviews.reasons(by.actor, project))


@router.put(
    "/projects/{project}/review-reasons",
    responses=refusals(invalid="A code is given twice, or a decision would have no reason."),
)
def set_review_reasons(by: By, project: ProjectPath, body: SetReasons) -> list[CaseReason]:
    """Replace the reasons that reviewers of a project can give. For owners."""
    return list(by.service.reviews.set_reasons(by.actor, project, body))
