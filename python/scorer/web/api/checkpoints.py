"""Checkpoints and what is there: lanes, sampling, one-call rollback, single decisions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from scorer.release.answers import CheckpointView
from scorer.release.calendar import Free
from scorer.release.fields import Moment, Name
from scorer.release.model import FreezeWindow, RecordedTable
from scorer.release.requests import Sampling, WithReason
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import CheckpointPath, Limit

router = APIRouter(tags=["checkpoints"])

DecisionPath = Annotated[str, Path(alias="decision", min_length=1, max_length=200, pattern=r"^[!-.0-~]+$")]


class RolledBackOut(BaseModel):
    """When a checkpoint was rolled back last."""

    checkpoint: str
    at: datetime | None


@router.get("/checkpoints")
def list_checkpoints(by: By) -> list[CheckpointView]:
    """Every one that one may see, with its lanes as recorded and as every server says."""
    return list(by.service.checkpoints.list(by.actor))


@router.get("/checkpoints/{checkpoint}")
def get_checkpoint(by: By, checkpoint: CheckpointPath) -> CheckpointView:
    """Return one checkpoint with its lanes and servers."""
    return by.service.checkpoints.view(by.actor, checkpoint)


@router.get("/checkpoints/{checkpoint}/tables")
def list_tables(by: By, checkpoint: CheckpointPath, limit: Limit = 100) -> list[RecordedTable]:
    """Its recorded lane tables, newest first."""
    return list(by.service.checkpoints.history(by.actor, checkpoint, limit=limit))


@router.put("/checkpoints/{checkpoint}/sampling", responses=refusals(409, 423))
def set_sampling(by: By, checkpoint: CheckpointPath, body: Sampling) -> CheckpointView:
    """Owners: what the shadow is fed with from now on, running lanes included."""
    return by.service.checkpoints.set_sampling(by.actor, checkpoint, **dict(body))


@router.post("/checkpoints/{checkpoint}/rollback", responses=refusals(409))
def rollback_checkpoint(by: By, checkpoint: CheckpointPath, body: WithReason) -> RecordedTable:
    """One call, always: the answer lanes before these; a release under way ends rolled back."""
    return by.service.checkpoints.rollback(by.actor, checkpoint, reason=body.reason)


@router.get("/checkpoints/{checkpoint}/rollback")
def last_rollback(by: By, checkpoint: CheckpointPath) -> RolledBackOut:
    """When that was done last."""
    by.service.checkpoints.view(by.actor, checkpoint)
    return RolledBackOut(checkpoint=checkpoint, at=by.service.checkpoints.rolled_back_at(checkpoint))


@router.get("/checkpoints/{checkpoint}/next-free", tags=["calendar"], responses=refusals(409))
def next_free(
    by: By,
    checkpoint: CheckpointPath,
    minutes: Annotated[float, Query(gt=0, le=100_000, allow_inf_nan=False)] = 60.0,
    after: Annotated[Moment | None, Query()] = None,
) -> Free:
    """The earliest shadow slot that is free for so long, outside freezes."""
    by.service.checkpoints.view(by.actor, checkpoint)
    return by.service.calendar.next_free(by.actor, checkpoint, timedelta(minutes=minutes), after=after)


@router.get("/checkpoints/{checkpoint}/frozen", tags=["calendar"])
def frozen(
    by: By, checkpoint: CheckpointPath, at: Annotated[Moment | None, Query()] = None
) -> FreezeWindow | None:
    """The window that forbids a change of what answers at that moment (now); null: allowed."""
    by.service.checkpoints.view(by.actor, checkpoint)
    return by.service.calendar.frozen(checkpoint, at)


@router.get("/checkpoints/{checkpoint}/decisions", tags=["decisions"])
def recent_decisions(
    by: By, checkpoint: CheckpointPath, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> list[Mapping[str, Any]]:
    """List the newest decisions of a checkpoint."""
    return list(by.service.decisions.recent(by.actor, checkpoint, limit=limit))


@router.get("/decisions/{decision}", tags=["decisions"])
def get_decision(
    by: By, decision: DecisionPath, checkpoint: Annotated[Name | None, Query()] = None
) -> Mapping[str, Any]:
    """One decision: features, what every shadow said, what became of it."""
    return by.service.decisions.find(by.actor, decision, checkpoint=checkpoint)
