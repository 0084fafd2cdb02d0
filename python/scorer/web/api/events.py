"""What happens to a change request, as it happens: long-polling, or Server-Sent Events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, TypeAdapter

from scorer.release.model import ChangeEvent, ChangeState
from scorer.web.api.security import By, RestCaller
from scorer.web.api.values import ChangePath

router = APIRouter(tags=["changes"])

_POLL_SECONDS = 0.25
_SLOWEST_POLL_SECONDS = 2.0
"""Where nothing happens, the database is read less and less often: an open page must cost next to nothing."""
_MOST = 500
"""Events of one answer."""
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
    is_final: bool = Field(description="Nothing follows: stop asking.")
    next: int = Field(description="`after` of the next call.")


async def _since(by: RestCaller, change: str, after: int) -> EventsOut:
    def read() -> EventsOut:
        state, events = by.service.changes.events(by.actor, change, after=after, limit=_MOST)
        # Of a long history the rest follows in the next answer.
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
    """Return the events after a known one, and wait for the next where there are none."""
    end = asyncio.get_running_loop().time() + wait
    pause = _POLL_SECONDS
    while True:
        found = await _since(by, change, after)
        left = end - asyncio.get_running_loop().time()
        if found.items or found.is_final or left <= 0 or _is_over(request):
            return found
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _SLOWEST_POLL_SECONDS)


@router.get(
    "/changes/{change}/stream",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-Sent Events: `change` for each event (its id is the event's), then `end`.",
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
    """Stream the same events until the change request is final. A client resumes by `Last-Event-ID`."""
    begin = max(after, int(last or 0))
    first = await _since(by, change, begin)

    async def lines() -> AsyncIterator[str]:
        found, silent, pause = first, 0.0, _POLL_SECONDS
        while True:
            for event in found.items:
                data = _EVENT.dump_json(event).decode()
                yield f"event: change\nid: {event.id}\ndata: {data}\n\n"
                silent, pause = 0.0, _POLL_SECONDS
            if found.is_final:
                yield f"event: end\ndata: {found.state}\n\n"
                return
            if _is_over(request) or await request.is_disconnected():
                return
            await asyncio.sleep(pause)
            silent += pause
            pause = min(pause * 1.5, _SLOWEST_POLL_SECONDS)
            if silent >= _BEAT_SECONDS:
                # Proxies close what says nothing.
                yield ": still here\n\n"
                silent = 0.0
            found = await _since(by, change, found.next)

    return StreamingResponse(
        lines(),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _is_over(request: Request) -> bool:
    """Whether the process is stopping: nobody must wait for somebody who waits."""
    return bool(request.app.state.platform.stopping)
