"""The list of change requests, and the form for a new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import Draft
from scorer.release.errors import InvalidError, PlatformError
from scorer.release.gates.defaults import default_gates
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, GateSpec, Role
from scorer.release.requests import Edit, Submit
from scorer.web.pages.visit import PAGE, Form, Here, Posted, Visit

D = TypeVar("D", bound=Draft)

router = APIRouter()


@router.get("/changes")
def changes(here: Here) -> Response:
    """Show change requests, newest first, filtered by text, project, checkpoint, state, kind or user."""
    state, kind = here.ask("state"), here.ask("kind")
    found = here.service.changes.list(
        here.actor,
        project=here.ask("project") or None,
        checkpoint=here.ask("checkpoint") or None,
        state=ChangeState(state) if state in list(ChangeState) else None,
        kind=ChangeKind(kind) if kind in list(ChangeKind) else None,
        user=here.ask("user") or None,
        reviewer=here.ask("reviewer") or None,
        text=here.ask("text")[:200] or None,
        archived=bool(here.ask("archived")),
        before=here.ask("before") or None,
        limit=PAGE + 1,
    )
    items, older = here.paged(found, lambda one: one.id)
    return here.page(
        "changes.html",
        changes=items,
        older=older,
        projects=here.projects(),
        states=list(ChangeState),
        kinds=list(ChangeKind),
        checkpoints=here.settings.checkpoints,
    )


@router.get("/changes/new")
def new(here: Here) -> Response:
    """Show the form for a new change request, with values from the query parameters."""
    return _form(here, dict(here.request.query_params))


@router.post("/changes")
def create(here: Here, form: Posted) -> Response:
    """Save a draft, and submit it if requested."""
    kept: ChangeRequest | None = None
    try:
        draft, booking = _draft(form, Draft), form.read(Submit)
        kept = here.service.changes.draft(here.actor, draft)
        if form.text("then") == "submit":
            here.service.changes.submit(here.actor, kept.id, **dict(booking))
            return here.go(f"/changes/{kept.id}", "submit")
    except PlatformError as error:
        if kept is not None:
            # The user requested a submission, so the draft of a failed one is deleted. A reload repeats
            # nothing.
            here.service.changes.delete(here.actor, kept.id)
        return _form(here, form.values(), error=error)
    return here.go(f"/changes/{kept.id}", "drafted")


@router.get("/changes/{change}/edit")
def edit(here: Here, change: str) -> Response:
    """Show the form for an existing draft."""
    return _form(here, _values(here.service.changes.summary(here.actor, change)), editing=change)


@router.post("/changes/{change}/edit")
def keep(here: Here, change: str, form: Posted) -> Response:
    """Save the edited draft of a change request."""
    try:
        draft = _draft(form, Edit)
        if draft.version is None:
            raise InvalidError("the form has no version; open the page again")
        here.service.changes.edit(here.actor, change, draft, version=draft.version)
    except PlatformError as error:
        return _form(here, form.values(), editing=change, error=error)
    return here.go(f"/changes/{change}", "edited")


def _form(
    here: Visit, values: Mapping[str, str], *, editing: str = "", error: PlatformError | None = None
) -> Response:
    projects = [one for one in here.projects() if here.is_at_least(Role.MODELER, one.name)]
    checkpoint = values.get("checkpoint") or next(iter(here.settings.checkpoints))
    return here.page(
        "change_new.html",
        error=error,
        editing=editing,
        form=values,
        projects=projects,
        checkpoint=checkpoint,
        checkpoints=here.settings.checkpoints,
        bundles=here.service.bundles.list(here.actor),
        gates={name: gates_of(here, name) for name in here.settings.checkpoints},
        passed=[
            one
            for one in here.service.changes.list(here.actor, state=ChangeState.DONE, limit=100)
            if one.kind is ChangeKind.TEST and one.verdict == "pass"
        ],
    )


def gates_of(here: Visit, checkpoint: str) -> tuple[GateSpec, ...]:
    """Return the default gates of a change request at a checkpoint."""
    settings = here.settings.checkpoints.get(checkpoint)
    if settings and settings.gates:
        return tuple(settings.gates)
    try:
        kind = here.service.checkpoints.kind(checkpoint)
    except PlatformError:
        kind = "score"
    return default_gates(kind)


def _draft(form: Form, kind: type[D]) -> D:
    return form.read(
        kind,
        stages=_stages(form.text("stages")),
        holdout=form.share("holdout"),
        gates=_gates(form.text("gates", most=20_000)),
        sample=form.share("sample"),
        pool={"pool": True, "server": False}.get(form.text("pool")),
    )


def _stages(text: str) -> list[dict[str, Any]]:
    """Parse stages such as `5 % 15 min pause, 25 % 15 min`."""
    stages: list[dict[str, Any]] = []
    for part in text.replace("%", " ").replace("min", " ").replace(";", ",").split(","):
        if not part.strip():
            continue
        pause = part.split()[-1] == "pause"
        try:
            share, minutes = map(float, part.replace("pause", " ").split())
        except ValueError:
            raise InvalidError(
                f'the stage "{part.strip()[:40]}" is not a share and minutes; write 5 % 15 min, 25 % 15 min, '
                "with the word pause after one that an approver ends"
            ) from None
        stages.append({"share": share / 100, "minutes": minutes, "pause": pause})
    return stages


def _gates(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        raise InvalidError(
            "the gates are not JSON; write a list such as "
            '[{"metric": "exec_p99_us", "against": "sla", "success": "<= 5000"}]'
        ) from None


def _values(change: ChangeRequest) -> dict[str, str]:
    where = {True: "pool", False: "server", None: ""}[change.pool]
    return {
        "project": change.project,
        "kind": change.kind.value,
        "checkpoint": change.checkpoint,
        "bundle": change.bundle,
        "title": change.title,
        "description": change.description,
        "minutes": f"{change.minutes:g}",
        "stages": ", ".join(
            f"{one.share * 100:g} % {one.minutes:g} min{' pause' * one.pause}" for one in change.stages
        ),
        "holdout": f"{change.holdout * 100:g}" if change.holdout else "",
        "gates": json.dumps([asdict(one) for one in change.gates], indent=1) if change.gates else "",
        "sample": f"{change.sample * 100:g}" if change.sample is not None else "",
        "pool": where,
        "version": str(change.version),
    }
