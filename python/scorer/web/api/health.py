"""Health and metrics of the platform, without a token, for probes."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from scorer.web.api.problems import refusals

router = APIRouter(tags=["health"])


class HealthOut(BaseModel):
    """The platform and its database respond."""

    status: Literal["ok"] = "ok"
    version: str
    leads: bool = Field(description="Whether this process is the leader, which advances change requests.")


@router.get("/health", responses=refusals(503))
def health(request: Request) -> HealthOut:
    """Return the version of the platform, and whether this process is the leader."""
    from sqlalchemy import text

    from scorer import bridge

    platform = request.app.state.platform
    with platform.store.read() as connection:
        connection.execute(text("SELECT 1"))
    return HealthOut(version=bridge.__version__, leads=platform.leads)


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request) -> PlainTextResponse:
    """Return the platform's metrics in the Prometheus text format."""
    state = request.app.state
    lines = [*state.platform.metrics(), *state.counters.lines()]
    return PlainTextResponse("".join(f"{line}\n" for line in lines), media_type="text/plain; version=0.0.4")
