"""REST operations on the drift of a checkpoint."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scorer.release.drift_answers import CheckpointDrift, DriftHistory
from scorer.release.fields import Line
from scorer.web.api.security import By
from scorer.web.api.values import CheckpointPath

router = APIRouter(tags=["checkpoints"])

DriftLaneQuery = Annotated[Line | None, Query(description="Name of a lane; null: that which answers most.")]
QuantityQuery = Annotated[
    Line | None,
    Query(
        description="Name of a quantity, such as feature:amount; null: the one nearest to its threshold.",
    ),
]
DaysQuery = Annotated[int, Query(ge=1, le=90, description="Number of days.")]


@router.get("/checkpoints/{checkpoint}/drift")
def get_drift(by: By, checkpoint: CheckpointPath) -> CheckpointDrift:
    """Return the latest look of each lane for drift, and the alerts of the checkpoint."""
    return by.service.drift.drift(by.actor, checkpoint)


@router.get("/checkpoints/{checkpoint}/drift/history")
def get_drift_history(
    by: By,
    checkpoint: CheckpointPath,
    lane: DriftLaneQuery = None,
    quantity: QuantityQuery = None,
    days: DaysQuery = 30,
) -> DriftHistory:
    """Return the drift of a lane's quantities on each of the last days, as figures with numbers."""
    return by.service.drift.history(by.actor, checkpoint, lane=lane or "", quantity=quantity or "", days=days)
