"""The page of the audit log."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import Verified
from scorer.release.errors import InvalidError, PlatformError
from scorer.web.pages.visit import PAGE, Form, Here, Posted, Visit

router = APIRouter()


@router.get("/audit")
def audit(here: Here) -> Response:
    """Show the audit log, newest first, filtered by project, action, user or object."""
    return _show(here)


@router.post("/audit/verify")
def verify(here: Here, form: Posted) -> Response:
    """Verify every hash, and optionally an earlier head that was kept elsewhere."""
    try:
        return _show(here, verified=here.service.audit.verify_for(here.actor, expect=_expected(form)))
    except PlatformError as error:
        return _show(here, error=error)


def _expected(form: Form) -> tuple[int, str] | None:
    text = form.text("expect", most=200)
    if not text:
        return None
    sequence, _, digest = text.partition(" ")
    if not sequence.isdigit() or not digest.strip():
        raise InvalidError("expected head: write its number and its hash, for example 128 3f9c…")
    return int(sequence), digest.strip()


def _show(here: Visit, *, verified: Verified | None = None, error: PlatformError | None = None) -> Response:
    before = here.ask("before")
    entries = here.service.audit.entries(
        here.actor,
        project=here.ask("project") or None,
        action=here.ask("action") or None,
        user=here.ask("user") or None,
        object=here.ask("object") or None,
        begin=here.ask_moment("begin"),
        end=here.ask_moment("end"),
        before=int(before) if before.isdecimal() and len(before) < 19 else None,
        limit=PAGE + 1,
    )
    items, older = here.paged(entries, lambda one: str(one.sequence))
    return here.page(
        "audit.html",
        error=error,
        verified=verified,
        entries=items,
        older=older,
        projects=here.projects(),
    )
