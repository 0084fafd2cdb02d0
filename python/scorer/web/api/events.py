"""Events of change requests, by long polling or Server-Sent Events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, TypeAdapter
from starlette.types import Receive, Scope, Send

from scorer.release.model import ChangeEvent, ChangeState
from scorer.web.api.security import By, RestCaller
from scorer.web.api.values import ChangePath
from scorer.web.api.watch import Watch

router = APIRouter(tags=["changes"])

_MOST = 500
"""Limit on the events of one response."""
_BEAT_SECONDS = 15.0
_EVENT = TypeAdapter(ChangeEvent)

After = Annotated[
    int, Query(ge=0, le=2**53, description="Id of the last known event; 0: from the beginning.")
]


class EventsOut(BaseModel):
    """Events of a change request after a given event."""

    items: list[ChangeEvent]
    """Oldest first."""
    state: ChangeState
    is_final: bool = Field(description="Whether no events will follow.")
    next: int = Field(description="Value of `after` for the next call.")


async def _since(by: RestCaller, change: str, after: int) -> EventsOut:
    def read() -> EventsOut:
        state, events = by.service.changes.events(by.actor, change, after=after, limit=_MOST)
        # The rest of a long history follows in the next response.
        is_final = state.is_final and len(events) < _MOST
        found = list(events)
        return EventsOut(items=found, state=state, is_final=is_final, next=found[-1].id if found else after)

    return await run_in_threadpool(read)


@router.get("/changes/{change}/events")
async def list_events(
    by: By,
    change: ChangePath,
    request: Request,
    after: After = 0,
    wait: Annotated[
        float, Query(ge=0, le=60, allow_inf_nan=False, description="Seconds to wait, at most 60.")
    ] = 0.0,
) -> EventsOut:
    """Return the events after a known one. If there are none, wait for the next one."""
    watch: Watch = request.app.state.watch
    end = asyncio.get_running_loop().time() + wait
    found = await _since(by, change, after)
    if found.items or found.is_final or not wait:
        return found
    watch.check(by.actor.user)
    with watch.waiting(by.actor.user):
        while not (found.items or found.is_final):
            left = end - asyncio.get_running_loop().time()
            if left <= 0 or not await watch.changed(change, after, left):
                break
            found = await _since(by, change, after)
    return found


@router.get(
    "/changes/{change}/stream",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-Sent Events: `change` with the id of each event, then `end`.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def stream_events(
    by: By,
    change: ChangePath,
    request: Request,
    after: After = 0,
    last: Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,15}$")] = None,
) -> StreamingResponse:
    """Stream the same events until the change request is final.

    A stream ends after `[web] stream_minutes`. The client resumes it by `Last-Event-ID`, as browsers do, and
    its permissions are checked again.
    """
    watch: Watch = request.app.state.watch
    first = await _since(by, change, max(after, int(last or 0)))
    watch.check(by.actor.user)

    async def lines() -> AsyncIterator[str]:
        found = first
        end = asyncio.get_running_loop().time() + watch.stream_seconds
        while True:
            for event in found.items:
                data = _EVENT.dump_json(event).decode()
                yield f"event: change\nid: {event.id}\ndata: {data}\n\n"
            if found.is_final:
                yield f"event: end\ndata: {found.state}\n\n"
                return
            left = end - asyncio.get_running_loop().time()
            if left <= 0 or watch.is_over or await request.is_disconnected():
                return
            if await watch.changed(change, found.next, min(_BEAT_SECONDS, left)):
                found = await _since(by, change, found.next)
            else:
                found = found.model_copy(update={"items": []})
                # Proxies close connections without traffic.
                yield ": keep-alive\n\n"

    return _Stream(
        lines(),
        place=watch.waiting(by.actor.user),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


class _Stream(StreamingResponse):
    """A response that counts as a waiting client while it is being sent."""

    def __init__(
        self, content: AsyncIterator[str], *, place: AbstractContextManager[None], **given: Any
    ) -> None:
        super().__init__(content, **given)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)
