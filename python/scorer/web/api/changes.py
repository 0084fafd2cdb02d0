"""Change requests: draft, submit, follow, approve, release, roll back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from scorer.release.answers import ChangeDetail, Draft
from scorer.release.errors import ConflictError, InvalidError
from scorer.release.fields import Line, Name
from scorer.release.model import ChangeRequest, ChangeState
from scorer.release.requests import Approve, Edit, Finish, Rebook, Request, Submit, Waive, WithReason
from scorer.web.api.problems import refusals
from scorer.web.api.security import By, RestCaller
from scorer.web.api.values import ChangePath, Cursor, IfMatch, Limit, PageOut, etag, version_of

router = APIRouter(tags=["changes"])

_MOVES = refusals(409, 423, 429)
_ETAG: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"schema": {"type": "string"}, "description": "Its version."}}}
}

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{8,100}$",
        description="Anything unique, such as a UUID. A request with the same key is done once.",
    ),
]


@router.get("/changes")
def list_changes(
    by: By,
    project: Annotated[Name | None, Query()] = None,
    checkpoint: Annotated[Name | None, Query()] = None,
    state: ChangeState | None = None,
    user: Annotated[Line | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> PageOut[ChangeRequest]:
    """Newest first: those of one's projects."""
    found = by.service.changes.list(
        by.actor,
        project=project,
        checkpoint=checkpoint,
        state=state,
        user=user,
        limit=limit + 1,
        before=cursor,
    )
    items = list(found[:limit])
    return PageOut(items=items, next=items[-1].id if len(found) > limit else None)


@router.post("/changes", status_code=201, responses=_MOVES)
def draft_change(by: By, body: Draft, response: Response, key: IdempotencyKey = None) -> ChangeRequest:
    """Modelers: a draft. Nothing is checked yet but that it makes sense."""
    change = by.service.changes.draft(by.actor, body, key=key)
    response.headers["Location"] = f"/api/v1/changes/{change.id}"
    return _tagged(response, change)


@router.get("/changes/{change}", responses=_ETAG)
def get_change(by: By, change: ChangePath, response: Response) -> ChangeDetail:
    """Everything about one: steps, events, gates, booking, and what one may do now."""
    detail = by.service.changes.get(by.actor, change)
    response.headers["ETag"] = etag(detail.change.version)
    return detail


@router.put("/changes/{change}", responses=_MOVES)
def edit_change(
    by: By, change: ChangePath, body: Edit, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """A draft of one's own, based on a version: as If-Match or in the body."""
    version = _one_version(body.version, if_match)
    if version is None:
        raise InvalidError(
            f"{change}: say which version this is based on; send If-Match with the ETag of what "
            f"was read, or version"
        )
    return _tagged(response, by.service.changes.edit(by.actor, change, body, version=version))


@router.delete("/changes/{change}", status_code=204, responses=refusals(409))
def delete_change(by: By, change: ChangePath) -> Response:
    """Its authors and owners: remove a draft for good."""
    by.service.changes.delete(by.actor, change)
    return Response(status_code=204)


@router.post("/changes/{change}/submit", responses=_MOVES)
def submit_change(by: By, change: ChangePath, body: Submit, response: Response) -> ChangeRequest:
    """Modelers: books the shadow slot and starts the checks."""
    return _operate(by, response, "submit", change, body)


@router.post("/changes/{change}/rebook", responses=_MOVES)
def rebook_change(by: By, change: ChangePath, body: Rebook, response: Response) -> ChangeRequest:
    """Moves the booking before the change is deployed."""
    return _operate(by, response, "rebook", change, body)


@router.post("/changes/{change}/finish", responses=_MOVES)
def finish_change(by: By, change: ChangePath, response: Response) -> ChangeRequest:
    """Ends the observation now instead of at the end of its booking."""
    return _operate(by, response, "finish", change, Finish())


@router.post("/changes/{change}/approve", responses=_MOVES)
def approve_change(
    by: By, change: ChangePath, body: Approve, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """Approvers, never the submitter: releases a RELEASE whose gates passed."""
    reviewed = body.model_copy(update={"version": _one_version(body.version, if_match)})
    return _operate(by, response, "approve", change, reviewed)


@router.post("/changes/{change}/reject", responses=_MOVES)
def reject_change(by: By, change: ChangePath, body: WithReason, response: Response) -> ChangeRequest:
    """Approvers: ends the change request."""
    return _operate(by, response, "reject", change, body)


@router.post("/changes/{change}/waive", responses=_MOVES)
def waive_gate(by: By, change: ChangePath, body: Waive, response: Response) -> ChangeRequest:
    """Approvers, never the submitter: waives one failed gate for this change; audited."""
    return _operate(by, response, "waive", change, body)


@router.post("/changes/{change}/withdraw", responses=_MOVES)
def withdraw_change(by: By, change: ChangePath, body: WithReason, response: Response) -> ChangeRequest:
    """The submitter or an owner: removes its lanes and frees its slot."""
    return _operate(by, response, "withdraw", change, body)


@router.post("/changes/{change}/rollback", responses=_MOVES)
def rollback_change(by: By, change: ChangePath, body: WithReason, response: Response) -> ChangeRequest:
    """Restores the lanes before this change in one call."""
    return _operate(by, response, "rollback", change, body)


def _operate(by: RestCaller, response: Response, name: str, change: str, request: Request) -> ChangeRequest:
    changed: ChangeRequest = getattr(by.service.changes, name)(by.actor, change, **dict(request))
    return _tagged(response, changed)


def _tagged(response: Response, change: ChangeRequest) -> ChangeRequest:
    response.headers["ETag"] = etag(change.version)
    return change


def _one_version(version: int | None, if_match: str | None) -> int | None:
    header = version_of(if_match)
    if None not in (version, header) and version != header:
        raise ConflictError(f"If-Match names version {header} and the body {version}; send one of them")
    return version if header is None else header
