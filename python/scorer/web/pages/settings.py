"""The page of settings: the effective configuration, and servers and checkpoints to add. For admins."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.effective import effective
from scorer.release.errors import InvalidError, PlatformError
from scorer.release.requests import NewCheckpoint, NewServer
from scorer.web.pages.visit import Form, Here, Posted, Visit

router = APIRouter()


@router.get("/settings")
def settings(here: Here) -> Response:
    """Show the effective configuration, the servers and the checkpoints."""
    return _show(here)


@router.post("/settings/servers")
def add_server(here: Here, form: Posted) -> Response:
    """Add a server, which must respond."""
    try:
        here.service.additions.add_server(here.actor, form.read(NewServer))
    except PlatformError as error:
        return _show(here, error=error, form=form)
    return here.go("/settings", "server")


@router.post("/settings/servers/{server}/remove")
def remove_server(here: Here, server: str, form: Posted) -> Response:
    """Remove a server that was added."""
    try:
        here.service.additions.remove_server(here.actor, server)
    except PlatformError as error:
        return _show(here, error=error)
    return here.go("/settings", "server-removed")


@router.post("/settings/checkpoints")
def add_checkpoint(here: Here, form: Posted) -> Response:
    """Add a checkpoint that the platform manages."""
    try:
        new = form.read(
            NewCheckpoint,
            name=form.text("checkpoint", what="the name"),
            sample=form.share("percent"),
            pool=form.on("pool"),
            gates=_gates(form.text("gates", most=20_000)),
        )
        here.service.additions.add_checkpoint(here.actor, new)
    except PlatformError as error:
        return _show(here, error=error, form=form)
    return here.go(f"/checkpoints/{new.name}", "checkpoint")


def _show(here: Visit, *, error: PlatformError | None = None, form: Form | None = None) -> Response:
    additions = here.service.additions
    return here.page(
        "settings.html",
        error=error,
        servers=additions.servers(here.actor),
        checkpoints={name: additions.is_declared(name) for name in here.settings.checkpoints},
        settings=effective(here.settings),
        form=form.values() if form else {},
    )


def _gates(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        raise InvalidError("the gates are not JSON; write a list in the format of docs/gates.md") from None
