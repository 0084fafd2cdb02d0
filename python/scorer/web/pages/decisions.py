"""The decision explorer: the newest decisions, and single decisions in detail."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import DecisionPage
from scorer.release.errors import InvalidError, NotFoundError, PlatformError
from scorer.release.requests import DecisionFilter, read_form
from scorer.web.pages.traffic import decided_at, moment
from scorer.web.pages.visit import PAGE, Here, Visit

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


def _recent(here: Visit, *, error: PlatformError | None = None) -> Response:
    checkpoint = here.ask("checkpoint") or next(iter(here.checkpoints()), "")
    asked = {name: here.ask(name)[:200] for name in DecisionFilter.model_fields if here.ask(name)}
    found = DecisionPage((), None, None)
    if checkpoint:
        try:
            found = here.service.decisions.search(
                here.actor,
                checkpoint,
                read_form(DecisionFilter, asked),
                cursor=here.ask("before") or None,
                limit=PAGE,
            )
        except InvalidError as refused:
            error = refused
    return here.page(
        "decisions.html",
        error=error,
        checkpoint=checkpoint,
        checkpoints=here.checkpoints(),
        rows=found.items,
        older=found.next or "",
        searched_to=found.searched_to,
        asked=asked,
        is_score=bool(checkpoint) and here.service.checkpoints.kind(checkpoint) == "score",
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
        case=here.service.reviews.of_decision(
            here.actor, found["decision"]["checkpoint"], found["decision"]["decision_id"]
        ),
        at=decided_at(found["decision"]),
        moment=moment,
        at_of=decided_at,
    )
