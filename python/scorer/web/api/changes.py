"""Change requests: draft, submit, follow, approve, release, roll back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from pydantic import Field

from scorer.release.changes import ChangeDetail, Draft
from scorer.release.errors import ConflictError, InvalidError
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, GateSpec, Stage
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import (
    Body,
    ChangePath,
    Cursor,
    Flag,
    IfMatch,
    Limit,
    Line,
    Moment,
    Name,
    Number,
    Page,
    Reason,
    Reference,
    Whole,
    Words,
    etag,
    version_of,
)

router = APIRouter(tags=["changes"])

_Minutes = Annotated[Number, Field(gt=0, le=100_000)]
_Count = Annotated[Whole, Field(ge=0, le=1_000_000_000)]
_Slot = Annotated[Whole, Field(ge=1, le=64)]
_Version = Annotated[Whole, Field(ge=0, le=2**53)]
_MOVES = refusals(409, 423, 429)
_ETAG: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"schema": {"type": "string"}, "description": "Its version."}}}
}

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{8,100}$",
        description="Anything unique, such as a UUID: the same request with the same key is done "
        "once, however "
        "often it is sent.",
    ),
]


class StageIn(Body):
    """One step of a canary."""

    share: Annotated[Number, Field(gt=0, lt=1)]
    """Of the answers."""
    minutes: _Minutes
    """How long at least, and until its gates pass."""


class GateIn(Body):
    """One line of the gates; docs/gates.md has the grammar."""

    metric: Line = Field(min_length=1, examples=["flip_rate"])
    success: Line = Field(min_length=1, examples=["<= 0.02 upper95"])
    against: Line = ""
    minus: Line = ""
    when: Line = ""
    min_rows: _Count = 0
    interval_seconds: _Count = 0
    count: _Count = 0
    failure_limit: _Count = 0
    inconclusive_limit: _Count = 0
    dry_run: Flag = False


class DraftIn(Body):
    """What somebody asks for."""

    project: Name = Field(examples=["fraud"])
    kind: ChangeKind
    checkpoint: Name = Field(examples=["fraud.checkout"])
    bundle: Reference
    title: Line = Field(min_length=1, examples=["Deeper trees"])
    description: Words = ""
    minutes: _Minutes = 60.0
    """How long in the shadow."""
    stages: list[StageIn] = Field(default=[], max_length=20)
    """Of a RELEASE; empty: the checkpoint's."""
    holdout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Share that stays with the bundle before, for comparison, until the change is done."""
    gates: list[GateIn] = Field(default=[], max_length=50)
    """Empty: the checkpoint's."""
    sample: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Null: the checkpoint's."""
    pool: Flag | None = None
    """In the shadow pool rather than in the live servers; null: the checkpoint's."""

    def draft(self) -> Draft:
        """As the service takes it."""
        fields = self.model_dump(exclude={"stages", "gates", "version"})
        return Draft(
            **fields,
            stages=tuple(Stage(stage.share, stage.minutes) for stage in self.stages),
            gates=tuple(GateSpec(**gate.model_dump()) for gate in self.gates),
        )


class EditIn(DraftIn):
    """A draft, again."""

    version: _Version | None = None
    """Of the draft that was read; or send it as If-Match."""


class SubmitIn(Body):
    """When."""

    start: Moment | None = None
    """Null: the next free slot."""
    slot: _Slot | None = None


class RebookIn(Body):
    """When instead."""

    start: Moment
    minutes: _Minutes | None = None
    slot: _Slot | None = None


class ApproveIn(Body):
    """What is said with it."""

    comment: Annotated[Words, Field(max_length=2000)] = ""
    version: _Version | None = None
    """Of the change that was looked at; or send it as If-Match."""


class ReasonIn(Body):
    """Why."""

    reason: Reason


class WaiveIn(Body):
    """Which gate does not stand in the way of this change, and why."""

    metric: Line = Field(min_length=1, examples=["covered_hours_of_week"])
    reason: Reason


@router.get("/changes")
def list_changes(
    by: By,
    project: Annotated[Name | None, Query()] = None,
    checkpoint: Annotated[Name | None, Query()] = None,
    state: ChangeState | None = None,
    user: Annotated[Line | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[ChangeRequest]:
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
    return Page(items=items, next=items[-1].id if len(found) > limit else None)


@router.post("/changes", status_code=201, responses=_MOVES)
def draft_change(by: By, body: DraftIn, response: Response, key: IdempotencyKey = None) -> ChangeRequest:
    """Modelers: a draft. Nothing is checked yet but that it makes sense."""
    change = by.service.changes.draft(by.actor, body.draft(), key=key)
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
    by: By, change: ChangePath, body: EditIn, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """A draft of one's own, based on a version: as If-Match or in the body."""
    version = _one_version(body.version, if_match)
    if version is None:
        raise InvalidError(
            f"{change}: say which version this is based on; send If-Match with the ETag of what "
            f"was read, or version"
        )
    return _tagged(response, by.service.changes.edit(by.actor, change, body.draft(), version=version))


@router.post("/changes/{change}/submit", responses=_MOVES)
def submit_change(by: By, change: ChangePath, body: SubmitIn, response: Response) -> ChangeRequest:
    """Books the shadow and begins the checks."""
    return _tagged(response, by.service.changes.submit(by.actor, change, start=body.start, slot=body.slot))


@router.post("/changes/{change}/rebook", responses=_MOVES)
def rebook_change(by: By, change: ChangePath, body: RebookIn, response: Response) -> ChangeRequest:
    """Moves its booking, before it is deployed."""
    changed = by.service.changes.rebook(
        by.actor, change, start=body.start, minutes=body.minutes, slot=body.slot
    )
    return _tagged(response, changed)


@router.post("/changes/{change}/finish", responses=_MOVES)
def finish_change(by: By, change: ChangePath, response: Response) -> ChangeRequest:
    """Ends the auditing now instead of at the end of its booking."""
    return _tagged(response, by.service.changes.finish(by.actor, change))


@router.post("/changes/{change}/approve", responses=_MOVES)
def approve_change(
    by: By, change: ChangePath, body: ApproveIn, response: Response, if_match: IfMatch = None
) -> ChangeRequest:
    """Approvers, never the submitter: releases a RELEASE whose gates passed."""
    changed = by.service.changes.approve(
        by.actor, change, version=_one_version(body.version, if_match), comment=body.comment
    )
    return _tagged(response, changed)


@router.post("/changes/{change}/reject", responses=_MOVES)
def reject_change(by: By, change: ChangePath, body: ReasonIn, response: Response) -> ChangeRequest:
    """Approvers: it ends here."""
    return _tagged(response, by.service.changes.reject(by.actor, change, reason=body.reason))


@router.post("/changes/{change}/waive", responses=_MOVES)
def waive_gate(by: By, change: ChangePath, body: WaiveIn, response: Response) -> ChangeRequest:
    """Approvers, never the submitter: one gate does not stand in the way of this change; audited."""
    changed = by.service.changes.waive(by.actor, change, metric=body.metric, reason=body.reason)
    return _tagged(response, changed)


@router.post("/changes/{change}/withdraw", responses=_MOVES)
def withdraw_change(by: By, change: ChangePath, body: ReasonIn, response: Response) -> ChangeRequest:
    """The submitter, or an owner: lanes taken away, slot given back."""
    return _tagged(response, by.service.changes.withdraw(by.actor, change, reason=body.reason))


@router.post("/changes/{change}/rollback", responses=_MOVES)
def rollback_change(by: By, change: ChangePath, body: ReasonIn, response: Response) -> ChangeRequest:
    """Back to what answered before this change, in one call."""
    return _tagged(response, by.service.changes.rollback(by.actor, change, reason=body.reason))


def _tagged(response: Response, change: ChangeRequest) -> ChangeRequest:
    response.headers["ETag"] = etag(change.version)
    return change


def _one_version(version: int | None, if_match: str | None) -> int | None:
    header = version_of(if_match)
    if None not in (version, header) and version != header:
        raise ConflictError(f"If-Match names version {header} and the body {version}; send one of them")
    return version if header is None else header
