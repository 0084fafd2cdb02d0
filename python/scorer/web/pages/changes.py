"""Change requests: the list, and the form for a new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.changes import Draft
from scorer.release.errors import InvalidError, PlatformError
from scorer.release.gates.defaults import default_gates
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, GateSpec, Role, Stage
from scorer.web.pages.visit import Form, Here, Posted, Visit

router = APIRouter()


@router.get("/changes")
def changes(here: Here) -> Response:
    """Newest first, by project, checkpoint, state, user."""
    state = here.ask("state")
    return here.page(
        "changes.html",
        changes=here.service.changes.list(
            here.actor,
            project=here.ask("project") or None,
            checkpoint=here.ask("checkpoint") or None,
            state=ChangeState(state) if state in list(ChangeState) else None,
            user=here.ask("user") or None,
            limit=200,
        ),
        projects=here.projects(),
        states=list(ChangeState),
        checkpoints=here.settings.checkpoints,
    )


@router.get("/changes/new")
def new(here: Here) -> Response:
    """The form, filled in with what the address says."""
    return _form(here, dict(here.request.query_params))


@router.post("/changes")
def create(here: Here, form: Posted) -> Response:
    """Keeps the draft; submits it too where asked."""
    kept: ChangeRequest | None = None
    try:
        draft = read_draft(form)
        start, slot = when_and_where(form)
        kept = here.service.changes.draft(here.actor, draft)
        if form.text("then") == "submit":
            here.service.changes.submit(here.actor, kept.id, start=start, slot=slot)
            return here.go(f"/changes/{kept.id}", "submit")
    except PlatformError as error:
        if kept is None:
            return _form(here, form.values(), error=error)
        # The draft is there: going back to an empty form would make a second one.
        from scorer.web.pages.change import show

        return show(here, kept.id, error=error, form=form)
    return here.go(f"/changes/{kept.id}", "drafted")


@router.get("/changes/{change}/edit")
def edit(here: Here, change: str) -> Response:
    """The form again, for a draft."""
    return _form(here, _values(here.service.changes.get(here.actor, change).change), editing=change)


@router.post("/changes/{change}/edit")
def keep(here: Here, change: str, form: Posted) -> Response:
    """Changes a draft."""
    try:
        version = form.integer("version", what="the version")
        here.service.changes.edit(here.actor, change, read_draft(form), version=version)
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
    """What a change must pass there, unless it says otherwise."""
    settings = here.settings.checkpoints.get(checkpoint)
    if settings and settings.gates:
        return tuple(settings.gates)
    try:
        kind = here.service.checkpoints.view(here.actor, checkpoint).kind
    except PlatformError:
        kind = "score"
    return default_gates(kind)


def read_draft(form: Form) -> Draft:
    """What the form asks for. Raises InvalidError."""
    kind = form.text("kind", what="the kind")
    if kind not in list(ChangeKind):
        raise InvalidError(f'the kind "{kind[:20]}" is neither TEST nor RELEASE; choose one')
    pool = form.text("pool")
    sample = form.text("sample")
    return Draft(
        project=form.text("project", what="the project"),
        kind=ChangeKind(kind),
        checkpoint=form.text("checkpoint", what="the checkpoint"),
        bundle=form.text("bundle", what="the bundle", most=200),
        title=form.text("title", what="the title", most=200),
        description=form.text("description", most=10_000),
        minutes=form.number("minutes", what="the time in the shadow"),
        stages=_stages(form.text("stages")),
        holdout=form.number("holdout", what="the holdout", default=0.0) / 100,
        gates=_gates(form.text("gates", most=20_000)),
        sample=form.number("sample", what="the share of requests") / 100 if sample else None,
        pool={"pool": True, "server": False}.get(pool),
    )


def when_and_where(form: Form) -> tuple[datetime | None, int | None]:
    """Start and slot; None: the next free one."""
    slot = form.integer("slot", what="the slot") if form.text("slot") else None
    return form.moment("start", what="the start"), slot


def _stages(text: str) -> tuple[Stage, ...]:
    """Reads `5 % 15 min, 25 % 15 min`."""
    stages = []
    for part in text.replace("%", " ").replace("min", " ").replace(";", ",").split(","):
        if not part.strip():
            continue
        try:
            share, minutes = map(float, part.split())
        except ValueError:
            raise InvalidError(
                f'the stage "{part.strip()[:40]}" is not a share and minutes; write 5 % 15 min, 25 % 15 min'
            ) from None
        stages.append(Stage(share / 100, minutes))
    return tuple(stages)


def _gates(text: str) -> tuple[GateSpec, ...]:
    if not text:
        return ()
    form = 'write a JSON list such as [{"metric": "exec_p99_us", "against": "sla", "success": "<= 5000"}]'
    try:
        lines: Any = json.loads(text)
        return tuple(GateSpec(**line) for line in lines)
    except (ValueError, TypeError, RecursionError):
        raise InvalidError(f"the gates cannot be read; {form}") from None


def _values(change: ChangeRequest) -> dict[str, str]:
    from dataclasses import asdict

    where = {True: "pool", False: "server", None: ""}[change.pool]
    return {
        "project": change.project,
        "kind": change.kind.value,
        "checkpoint": change.checkpoint,
        "bundle": change.bundle,
        "title": change.title,
        "description": change.description,
        "minutes": f"{change.minutes:g}",
        "stages": ", ".join(f"{one.share * 100:g} % {one.minutes:g} min" for one in change.stages),
        "holdout": f"{change.holdout * 100:g}" if change.holdout else "",
        "gates": json.dumps([asdict(one) for one in change.gates], indent=1) if change.gates else "",
        "sample": f"{change.sample * 100:g}" if change.sample is not None else "",
        "pool": where,
        "version": str(change.version),
    }
