"""REST operations on change requests."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Response

from scorer.release.answers import ChangeDetail, Draft
from scorer.release.errors import ConflictError, InvalidError
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState
from scorer.release.requests import (
    Approve,
    Archive,
    Comment,
    Edit,
    Finish,
    OfVersion,
    Rebook,
    Request,
    RequestReview,
    Skip,
    Submit,
    Waive,
    WithReason,
)
from scorer.web.api.problems import refusals
from scorer.web.api.security import By, RestCaller
from scorer.web.api.values import (
    AtCheckpoint,
    ByUser,
    ChangePath,
    Containing,
    Cursor,
    IfMatch,
    InProject,
    Limit,
    PageOut,
    etag,
    version_of,
)

router = APIRouter(tags=["changes"])

V = TypeVar("V", Approve, Archive, OfVersion, Skip)

_MOVES = refusals(409, 423, 429)
_ETAG: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {"ETag": {"schema": {"type": "string"}, "description": "Version of the change request."}}
    }
}

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{8,100}$",
        description="Unique text, such as a UUID. Requests with the same key are executed once.",
    ),
]


@router.get("/changes")
def list_changes(
    by: By,
    project: InProject = None,
    checkpoint: AtCheckpoint = None,
    state: Annotated[ChangeState | None, Query(description="State; null: all.")] = None,
    kind: Annotated[ChangeKind | None, Query(description="Kind; null: all.")] = None,
    user: ByUser = None,
    reviewer: Annotated[
        str | None, Query(max_length=100, description="User who was asked for a review; null: all.")
    ] = None,
    text: Containing = None,
    archived: Annotated[
        bool, Query(description="Whether archived change requests are listed instead of the others.")
    ] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> PageOut[ChangeRequest]:
    """Iterate over change requests, newest first."""
    found = by.service.changes.list(
        by.actor,
        project=project,
        checkpoint=checkpoint,
        state=state,
        kind=kind,
        user=user,
        reviewer=reviewer,
        text=text,
        archived=archived,
        limit=limit + 1,
        before=cursor,
    )
    items = list(found[:limit])
    return PageOut(items=items, next=items[-1].id if len(found) > limit else None)


@router.post("/changes", status_code=201, responses=_MOVES)
def draft_change(by: By, body: Draft, response: Response, key: IdempotencyKey = None) -> ChangeRequest:
    """Create a draft of a change request. For modelers."""
    change = by.service.changes.draft(by.actor, body, key=key)
    response.headers["Location"] = f"/api/v1/changes/{change.id}"
    return _tagged(response, change)


@router.get("/changes/{change}", responses=_ETAG)
def get_change(by: By, change: ChangePath, response: Response) -> ChangeDetail:
    """Return a change request with its steps, events, gates, booking and allowed operations."""
    detail = by.service.changes.get(by.actor, change)
    response.headers["ETag"] = etag(detail.change.version)
    return detail


@router.put("/changes/{change}", responses=_MOVES)
def edit_change(
    by: By, change: ChangePath, body: Edit, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """Replace a draft, based on the version in If-Match or in the body."""
    version = _one_version(body.version, if_match)
    if version is None:
        raise InvalidError(
            f"{change}: the version that the edit is based on is missing; send If-Match with the ETag that "
            "was read, or version"
        )
    return _tagged(response, by.service.changes.edit(by.actor, change, body, version=version))


@router.delete("/changes/{change}", status_code=204, responses=refusals(409))
def delete_change(by: By, change: ChangePath) -> Response:
    """Delete a draft permanently. For its authors and owners."""
    by.service.changes.delete(by.actor, change)
    return Response(status_code=204)


@router.post(
    "/changes/{change}/submit",
    responses=refusals(
        423,
        conflict="The slot is taken; the message names the next free one.",
        invalid="The start is past, or a RELEASE has no passed TEST.",
        quota="The project's slot time of the week is used up.",
    ),
)
def submit_change(by: By, change: ChangePath, body: Submit, response: Response) -> ChangeRequest:
    """Submit a draft: book its shadow slot and start the checks. For modelers."""
    return _operate(by, response, "submit", change, body)


@router.post("/changes/{change}/rebook", responses=_MOVES)
def rebook_change(by: By, change: ChangePath, body: Rebook, response: Response) -> ChangeRequest:
    """Move the booking of a change request that is not deployed yet."""
    return _operate(by, response, "rebook", change, body)


@router.post("/changes/{change}/finish", responses=_MOVES)
def finish_change(by: By, change: ChangePath, response: Response) -> ChangeRequest:
    """End the observation now instead of at the end of its booking."""
    return _operate(by, response, "finish", change, Finish())


@router.post(
    "/changes/{change}/approve",
    responses=refusals(409, 423, 429, not_allowed="The caller is not an approver, or submitted the change."),
)
def approve_change(
    by: By, change: ChangePath, body: Approve, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """Approve a RELEASE whose gates passed. For approvers other than the submitter."""
    return _operate(by, response, "approve", change, _guarded(body, if_match))


@router.post("/changes/{change}/reject", responses=_MOVES)
def reject_change(by: By, change: ChangePath, body: WithReason, response: Response) -> ChangeRequest:
    """Reject a change request. For approvers."""
    return _operate(by, response, "reject", change, body)


@router.post("/changes/{change}/waive", responses=_MOVES)
def waive_gate(by: By, change: ChangePath, body: Waive, response: Response) -> ChangeRequest:
    """Waive a failed gate of a change request. For approvers other than the submitter."""
    return _operate(by, response, "waive", change, body)


@router.post(
    "/changes/{change}/withdraw",
    responses=refusals(409, 423, 429, not_allowed="The caller is neither the submitter nor an owner."),
)
def withdraw_change(by: By, change: ChangePath, body: WithReason, response: Response) -> ChangeRequest:
    """Withdraw a change request: its lanes are removed and its slot is freed."""
    return _operate(by, response, "withdraw", change, body)


@router.post("/changes/{change}/rollback", responses=_MOVES)
def rollback_change(by: By, change: ChangePath, body: WithReason, response: Response) -> ChangeRequest:
    """Restore the lanes that were active before a release, also during a freeze."""
    return _operate(by, response, "rollback", change, body)


@router.post("/changes/{change}/pause", responses=_MOVES)
def pause_release(
    by: By, change: ChangePath, body: OfVersion, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """Pause the current stage of a release. Gates are still evaluated; a failed gate rolls it back."""
    return _operate(by, response, "pause", change, _guarded(body, if_match))


@router.post("/changes/{change}/resume", responses=_MOVES)
def resume_release(
    by: By, change: ChangePath, body: OfVersion, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """End a pause. The stage ends when its time is over and its gates pass."""
    return _operate(by, response, "resume", change, _guarded(body, if_match))


@router.post("/changes/{change}/promote", responses=_MOVES)
def promote_release(
    by: By, change: ChangePath, body: OfVersion, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """End the current stage of a release now. For approvers other than the submitter."""
    return _operate(by, response, "promote", change, _guarded(body, if_match))


@router.post("/changes/{change}/skip", responses=_MOVES)
def skip_stage(
    by: By, change: ChangePath, body: Skip, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """Skip a stage of a release that has not started. For approvers other than the submitter."""
    return _operate(by, response, "skip", change, _guarded(body, if_match))


@router.post("/changes/{change}/comments", responses=_MOVES)
def comment_change(by: By, change: ChangePath, body: Comment, response: Response) -> ChangeRequest:
    """Append a comment, which is an event of the change request. For modelers."""
    return _operate(by, response, "comment", change, body)


@router.put("/changes/{change}/reviewers", responses=_MOVES)
def request_review(by: By, change: ChangePath, body: RequestReview, response: Response) -> ChangeRequest:
    """Ask approvers for a review and notify the project's channels."""
    return _operate(by, response, "request_review", change, body)


@router.post("/changes/{change}/archive", responses=_MOVES)
def archive_change(
    by: By, change: ChangePath, body: Archive, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """Hide an ended change request from lists. Nothing is deleted."""
    return _operate(by, response, "archive", change, _guarded(body, if_match))


@router.post("/changes/{change}/unarchive", responses=_MOVES)
def unarchive_change(
    by: By, change: ChangePath, body: Archive, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """Show an archived change request in lists again."""
    return _operate(by, response, "unarchive", change, _guarded(body, if_match))


def _operate(by: RestCaller, response: Response, name: str, change: str, request: Request) -> ChangeRequest:
    return _tagged(response, by.service.operation(name)(by.actor, change, **dict(request)))


def _guarded(body: V, if_match: str | None) -> V:
    """Return the request with the version of the header."""
    return body.model_copy(update={"version": _one_version(body.version, if_match)})


def _tagged(response: Response, change: ChangeRequest) -> ChangeRequest:
    response.headers["ETag"] = etag(change.version)
    return change


def _one_version(version: int | None, if_match: str | None) -> int | None:
    header = version_of(if_match)
    if None not in (version, header) and version != header:
        raise ConflictError(f"If-Match names version {header} and the body {version}; send one of them")
    return version if header is None else header
