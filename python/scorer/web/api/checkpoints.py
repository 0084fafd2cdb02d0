"""REST operations on checkpoints: lanes, sampling, rollback, and single decisions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from scorer.release.answers import CheckpointView, DecisionPage, Tried
from scorer.release.calendar import Free
from scorer.release.fields import Moment
from scorer.release.model import FreezeWindow, RecordedTable
from scorer.release.requests import DecisionFilter, Sampling, Try, WithReason
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import AtCheckpoint, CheckpointPath, Cursor, Limit

router = APIRouter(tags=["checkpoints"])

_FULL = refusals(conflict="No slot is free within a year.")
_FIRST = refusals(conflict="There are no earlier lanes.")

DecisionPath = Annotated[
    str,
    Path(
        alias="decision",
        min_length=1,
        max_length=200,
        pattern=r"^[!-.0-~]+$",
        description="Id of the decision.",
    ),
]


class RolledBackOut(BaseModel):
    """Time of a checkpoint's latest rollback; null: there was none."""

    checkpoint: str
    at: datetime | None


@router.get("/checkpoints")
def list_checkpoints(by: By) -> list[CheckpointView]:
    """List the checkpoints that the user may see, with recorded lanes and those of every server."""
    return list(by.service.checkpoints.list(by.actor))


@router.get("/checkpoints/{checkpoint}")
def get_checkpoint(by: By, checkpoint: CheckpointPath) -> CheckpointView:
    """Return a checkpoint with its recorded lanes and those of every server."""
    return by.service.checkpoints.view(by.actor, checkpoint)


@router.post("/checkpoints/{checkpoint}/try")
def try_checkpoint(by: By, checkpoint: CheckpointPath, body: Try) -> Tried:
    """Score one payment with the live or a stored bundle, without a call of a server or a log entry."""
    return by.service.trying.score(by.actor, checkpoint, body.features, reference=body.bundle)


@router.get("/checkpoints/{checkpoint}/tables")
def list_tables(by: By, checkpoint: CheckpointPath, limit: Limit = 100) -> list[RecordedTable]:
    """List the recorded lane tables of a checkpoint, newest first."""
    return list(by.service.checkpoints.history(by.actor, checkpoint, limit=limit))


@router.put("/checkpoints/{checkpoint}/sampling", responses=refusals(409, 423))
def set_sampling(by: By, checkpoint: CheckpointPath, body: Sampling) -> CheckpointView:
    """Set which requests the observe lanes receive, running ones included. For owners."""
    return by.service.checkpoints.set_sampling(by.actor, checkpoint, **dict(body))


@router.post("/checkpoints/{checkpoint}/rollback", responses=_FIRST)
def rollback_checkpoint(by: By, checkpoint: CheckpointPath, body: WithReason) -> RecordedTable:
    """Restore the previous answer lanes of a checkpoint; a release in progress ends rolled back."""
    return by.service.checkpoints.rollback(by.actor, checkpoint, reason=body.reason)


@router.get("/checkpoints/{checkpoint}/rollback")
def last_rollback(by: By, checkpoint: CheckpointPath) -> RolledBackOut:
    """Return when the checkpoint was rolled back last."""
    by.service.checkpoints.view(by.actor, checkpoint)
    return RolledBackOut(checkpoint=checkpoint, at=by.service.checkpoints.rolled_back_at(checkpoint))


@router.get("/checkpoints/{checkpoint}/next-free", tags=["calendar"], responses=_FULL)
def next_free(
    by: By,
    checkpoint: CheckpointPath,
    minutes: Annotated[
        float, Query(gt=0, le=100_000, allow_inf_nan=False, description="Length of the booking in minutes.")
    ] = 60.0,
    after: Annotated[
        Moment | None, Query(description="Earliest start, with its time zone; null: now.")
    ] = None,
) -> Free:
    """Return the earliest free shadow slot, outside freezes."""
    by.service.checkpoints.view(by.actor, checkpoint)
    return by.service.calendar.next_free(by.actor, checkpoint, timedelta(minutes=minutes), after=after)


@router.get("/checkpoints/{checkpoint}/frozen", tags=["calendar"])
def frozen(
    by: By,
    checkpoint: CheckpointPath,
    at: Annotated[Moment | None, Query(description="Time, with its time zone; null: now.")] = None,
) -> FreezeWindow | None:
    """Return the freeze window that forbids changes; null: changes are allowed."""
    by.service.checkpoints.view(by.actor, checkpoint)
    return by.service.calendar.frozen(checkpoint, at)


@router.get("/checkpoints/{checkpoint}/decisions", tags=["decisions"])
def recent_decisions(
    by: By,
    checkpoint: CheckpointPath,
    limit: Annotated[int, Query(ge=1, le=500, description="Largest number of decisions, up to 500.")] = 50,
) -> list[Mapping[str, Any]]:
    """Return the newest decisions of a checkpoint."""
    return list(by.service.decisions.recent(by.actor, checkpoint, limit=limit))


@router.post("/checkpoints/{checkpoint}/decisions/search", tags=["decisions"])
def search_decisions(
    by: By,
    checkpoint: CheckpointPath,
    body: DecisionFilter,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Largest number of decisions, up to 500.")] = 50,
) -> DecisionPage:
    """Search the decisions of a checkpoint, newest first, within a bound of records for each call."""
    return by.service.decisions.search(by.actor, checkpoint, body, cursor=cursor, limit=limit)


@router.get("/decisions/{decision}", tags=["decisions"])
def get_decision(by: By, decision: DecisionPath, checkpoint: AtCheckpoint = None) -> Mapping[str, Any]:
    """Return a decision with its features, observations, outcomes and eligible actions."""
    return by.service.decisions.find(by.actor, decision, checkpoint=checkpoint)
