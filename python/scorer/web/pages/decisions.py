"""The decision explorer: the newest decisions, and single decisions in detail."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import NotFoundError
from scorer.web.pages.traffic import decided_at, moment
from scorer.web.pages.visit import Here

router = APIRouter()


@router.get("/decisions")
def decisions(here: Here) -> Response:
    """Find a decision by its id, or show the newest ones of a checkpoint."""
    if wanted := here.ask("id"):
        try:
            here.service.decisions.find(here.actor, wanted)
        except NotFoundError as error:
            return _recent(here, error=error)
        return here.go(f"/decisions/{quote(wanted, safe='')}")
    return _recent(here)


def _recent(here: Here, *, error: NotFoundError | None = None) -> Response:
    checkpoint = here.ask("checkpoint") or next(iter(here.checkpoints()), "")
    return here.page(
        "decisions.html",
        error=error,
        checkpoint=checkpoint,
        checkpoints=here.checkpoints(),
        rows=here.service.decisions.recent(here.actor, checkpoint, limit=50) if checkpoint else (),
        decided_at=decided_at,
    )


@router.get("/decisions/{decision_id:path}")
def decision(here: Here, decision_id: str) -> Response:
    """Show one decision with its observations and outcomes."""
    checkpoint = here.ask("checkpoint") or None
    found = here.service.decisions.find(here.actor, decision_id, checkpoint=checkpoint)
    return here.page(
        "decision.html",
        wanted=decision_id,
        decision=found["decision"],
        observations=found.get("observations", ()),
        outcomes=found.get("outcomes", ()),
        features=found.get("features", ()),
        choices=found.get("choices", ()),
        conflicts=found.get("conflicts", ()),
        also=found.get("also", ()),
        at=decided_at(found["decision"]),
        moment=moment,
        at_of=decided_at,
    )
