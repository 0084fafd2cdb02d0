"""REST operations on the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scorer.release.answers import Verified
from scorer.release.errors import InvalidError
from scorer.release.fields import Line, Moment
from scorer.release.model import AuditEntry
from scorer.web.api.security import By
from scorer.web.api.values import ByUser, InProject, Limit, PageOut

router = APIRouter(tags=["audit"])


@router.get("/audit")
def list_audit(
    by: By,
    project: InProject = None,
    action: Annotated[Line | None, Query(description="For example change.approve; null: all.")] = None,
    user: ByUser = None,
    object: Annotated[  # noqa: A002 - as the entry has it
        Line | None, Query(description="For example cr-000017; null: all.")
    ] = None,
    begin: Annotated[
        Moment | None, Query(description="Time of the first entry, with its time zone; null: all.")
    ] = None,
    end: Annotated[
        Moment | None, Query(description="Time after the last entry, with its time zone; null: now.")
    ] = None,
    cursor: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Limit = 100,
) -> PageOut[AuditEntry]:
    """Iterate over the audit log of the user's projects, newest first."""
    found = by.service.audit.entries(
        by.actor,
        project=project,
        action=action,
        user=user,
        object=object,
        begin=begin,
        end=end,
        before=cursor,
        limit=limit + 1,
    )
    items = list(found[:limit])
    return PageOut(items=items, next=str(items[-1].sequence) if len(found) > limit else None)


@router.get("/audit/verify")
def verify_audit(
    by: By,
    sequence: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    hash: Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")] = None,  # noqa: A002 - as the entry has it
) -> Verified:
    """Verify every hash, and that the log still has a sequence and hash stored elsewhere. For admins."""
    if (sequence is None) != (hash is None):
        raise InvalidError("sequence and hash belong together; send both or neither")
    expect = None if sequence is None or hash is None else (sequence, hash)
    return by.service.audit.verify_for(by.actor, expect=expect)
