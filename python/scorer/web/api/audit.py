"""REST operations on the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scorer.release.answers import Verified
from scorer.release.errors import InvalidError, NotAllowedError
from scorer.release.fields import Line, Name
from scorer.release.model import AuditEntry
from scorer.web.api.security import By
from scorer.web.api.values import Limit, PageOut

router = APIRouter(tags=["audit"])


@router.get("/audit")
def list_audit(
    by: By,
    project: Annotated[Name | None, Query()] = None,
    action: Annotated[Line | None, Query()] = None,
    user: Annotated[Line | None, Query()] = None,
    object: Annotated[Line | None, Query()] = None,  # noqa: A002 - as the entry has it
    cursor: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Limit = 100,
) -> PageOut[AuditEntry]:
    """Newest first: the entries of the projects that one may see."""
    found = by.service.audit.entries(
        by.actor,
        project=project,
        action=action,
        user=user,
        object=object,
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
    """Admins: checks every hash, and that the log still holds a sequence and hash written down elsewhere."""
    if not by.actor.admin:
        raise NotAllowedError("the whole audit log is checked by admins; ask one")
    if (sequence is None) != (hash is None):
        raise InvalidError("what was written down is a sequence and its hash; send both or neither")
    expect = None if sequence is None or hash is None else (sequence, hash)
    return by.service.audit.verify(expect=expect)
