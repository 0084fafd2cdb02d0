"""REST operations on analyses of adoption (Delta CV)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from scorer.release.adoption_answers import AdoptionAnalysis, AdoptionTasks
from scorer.release.requests import NewAdoptionAnalysis
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import CheckpointPath

router = APIRouter(tags=["checkpoints"])

AnalysisPath = Annotated[
    str,
    Path(
        alias="analysis",
        pattern=r"^[0-9a-f]{16}$",
        examples=["0123456789abcdef"],
        description="Id of the analysis.",
    ),
]


@router.get("/checkpoints/{checkpoint}/adoption")
def list_adoption_tasks(by: By, checkpoint: CheckpointPath) -> AdoptionTasks:
    """Return the analyses of adoption that can be started, each with its newest result."""
    return by.service.adoption.tasks(by.actor, checkpoint)


@router.post("/checkpoints/{checkpoint}/adoption", status_code=202, responses=refusals(429))
def start_adoption_analysis(
    by: By, checkpoint: CheckpointPath, wanted: NewAdoptionAnalysis
) -> AdoptionAnalysis:
    """Estimate in the background what adoption is worth, against matched units that never adopted.

    The same request returns the stored result until the tables or settings change.
    """
    return by.service.adoption.start(by.actor, checkpoint, wanted)


@router.get("/checkpoints/{checkpoint}/adoption/{analysis}")
def get_adoption_analysis(by: By, checkpoint: CheckpointPath, analysis: AnalysisPath) -> AdoptionAnalysis:
    """Return an analysis of adoption with its state, and its result once it is done."""
    return by.service.adoption.get(by.actor, checkpoint, analysis)
