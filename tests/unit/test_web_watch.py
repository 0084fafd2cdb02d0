"""Tests of waiting for events: one poll for all clients, and a limit on waiting clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack

import pytest

from scorer.release.errors import QuotaError
from scorer.release.web_settings import WebSettings
from scorer.web.api.watch import Watch
from scorer.web.counters import WebCounters


class Events:
    """Newest events by change request, and the recorded requests."""

    def __init__(self) -> None:
        self.newest = {"cr-1": 7, "cr-2": 3}
        self.asked: list[list[str]] = []

    def __call__(self, changes: list[str]) -> Mapping[str, int]:
        self.asked.append(changes)
        return {change: self.newest[change] for change in changes if change in self.newest}


def watch(events: Events, **limits: int) -> tuple[Watch, WebCounters]:
    counters = WebCounters()
    return Watch(events, lambda: False, WebSettings(**limits), counters), counters  # type: ignore[arg-type]


def test_all_waiting_requests_share_one_poll() -> None:
    async def main() -> None:
        events = Events()
        hub, _ = watch(events)
        waiting = [
            asyncio.create_task(hub.changed(f"cr-{number % 2 + 1}", (7, 3)[number % 2], 20))
            for number in range(100)
        ]
        await asyncio.sleep(0.6)
        assert not any(task.done() for task in waiting)
        assert len(events.asked) == hub.polls <= 4
        assert events.asked[-1] == ["cr-1", "cr-2"]
        events.newest["cr-2"] = 4
        done, _ = await asyncio.wait(waiting[1::2], timeout=20)
        assert {task.result() for task in done} == {True} and len(done) == 50
        assert not any(task.done() for task in waiting[::2])
        events.newest["cr-1"] = 8
        assert all(await asyncio.gather(*waiting))
        polls = hub.polls
        await asyncio.sleep(0.6)
        assert hub.polls <= polls + 1  # no request waits any longer

    asyncio.run(main())


def test_an_existing_event_is_returned_without_waiting() -> None:
    async def main() -> None:
        hub, _ = watch(Events())
        assert await hub.changed("cr-1", 6, 20)
        assert not await hub.changed("cr-1", 7, 0.05)

    asyncio.run(main())


def test_waiting_requests_are_limited_per_user_and_in_total() -> None:
    hub, counters = watch(Events(), streams=3, streams_per_user=2)
    with ExitStack() as stack:
        for user in ("ann", "ann", "bob"):
            hub.check(user)
            stack.enter_context(hub.waiting(user))
        with pytest.raises(QuotaError, match="ann has 2 requests that wait for events"):
            hub.check("ann")
        with pytest.raises(QuotaError, match="too many clients"):
            hub.check("bob")
        assert counters.streams == 3
    hub.check("ann")
    assert counters.streams == 0
    assert counters.value("requests_refused", "streams_per_user") == 1
    assert 'scorer_platform_requests_refused_total{reason="streams"} 1' in counters.lines()
