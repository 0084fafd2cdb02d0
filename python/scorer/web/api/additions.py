"""REST operations on servers, and on checkpoints that are added while the platform runs. For admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from scorer.config.fields import NAME
from scorer.release.answers import CheckpointAdded, CheckpointView, ServerInfo
from scorer.release.requests import NewCheckpoint, NewServer, ServeCheckpoint
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import CheckpointPath

router = APIRouter(tags=["servers"])

ServerPath = Annotated[
    str, Path(alias="server", pattern=rf"^{NAME}$", examples=["scorer-2"], description="Name of the server.")
]
_IN_USE = refusals(conflict="The name or the address is in use.")
_DECLARED = refusals(conflict="platform.toml declares the server.")
_SERVED = refusals(conflict="Every reachable server has the checkpoint.")


@router.get("/servers")
def list_servers(by: By) -> list[ServerInfo]:
    """List the servers that the platform manages. For admins."""
    return list(by.service.additions.servers(by.actor))


@router.post("/servers", status_code=201, responses=_IN_USE)
def add_server(by: By, body: NewServer) -> ServerInfo:
    """Add a server, which must respond. For admins."""
    return by.service.additions.add_server(by.actor, body)


@router.delete("/servers/{server}", status_code=204, responses=_DECLARED)
def remove_server(by: By, server: ServerPath) -> Response:
    """Remove a server that was added; it keeps its lanes. For admins."""
    by.service.additions.remove_server(by.actor, server)
    return Response(status_code=204)


@router.post("/checkpoints", status_code=201, responses=_IN_USE)
def add_checkpoint(by: By, body: NewCheckpoint) -> CheckpointView:
    """Add a checkpoint that the platform manages. For admins."""
    by.service.additions.add_checkpoint(by.actor, body)
    return by.service.checkpoints.view(by.actor, body.name)


@router.post("/checkpoints/{checkpoint}/servers", responses=_SERVED)
def serve_checkpoint(by: By, checkpoint: CheckpointPath, body: ServeCheckpoint) -> list[CheckpointAdded]:
    """Add a checkpoint to the reachable servers that do not have it, without a restart. For admins."""
    return list(by.service.additions.serve_checkpoint(by.actor, checkpoint, body))
