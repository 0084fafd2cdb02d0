"""The Model Context Protocol, by the official client, over both transports against a real platform."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_world import ACTION, FRAUD, STRICTER, AgentWorld, agent_world

from scorer.release.agents.catalogue import TOOLS
from scorer.release.agents.results import NOTE

pytest.importorskip("mcp")

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

TRANSPORTS = ("http", "stdio")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[AgentWorld]:
    with agent_world(tmp_path_factory.mktemp("agents"), built_bundles) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(world: AgentWorld) -> Iterator[str]:
    with world.served() as address:
        yield address


@asynccontextmanager
async def connected(
    transport: str, url: str, token: str, *, mode: str = "auto"
) -> AsyncIterator[Client]:
    if transport == "stdio":
        environment = {**os.environ, "SCORER_PLATFORM_URL": url, "SCORER_PLATFORM_TOKEN": token}
        process = StdioServerParameters(
            command=sys.executable, args=["-m", "scorer.cli", "mcp"], env=environment
        )
        async with Client(process, mode=mode) as client:
            yield client
        return
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/api/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine with a bound on its time."""

    async def bounded() -> Any:
        async with asyncio.timeout(90):
            return await work()

    return asyncio.run(bounded())


def arguments(world: AgentWorld, name: str) -> dict[str, Any]:
    """Return arguments with which a tool has a result."""
    made = world.service.changes
    if name == "edit_draft":
        from scorer.release.answers import Draft
        from scorer.release.model import ChangeKind

        draft = Draft(
            project="fraud", kind=ChangeKind.TEST, checkpoint=FRAUD, bundle=world.candidate, title="x"
        )
        change = made.draft(world.actor("robot"), draft)
        return {
            "change": change.id, "version": change.version, "checkpoint": FRAUD, "bundle": world.candidate,
            "title": "Edited",
        }  # fmt: skip
    return {
        "describe_bundle": {"bundle": world.live},
        "list_versions": {"checkpoint": FRAUD},
        "compare_versions": {"left": world.live, "right": world.candidate},
        "compare_over_time": {"checkpoint": FRAUD, "versions": [world.live]},
        "score_what_if": {"checkpoint": FRAUD, "features": {"amount": 20}},
        "find_decisions": {"checkpoint": ACTION, "outcome": "negative"},
        "explain_decision": {"decision_id": "a-7"},
        "outcomes_by_feature": {"checkpoint": ACTION, "feature": "hour"},
        "live_metrics": {"checkpoint": FRAUD},
        "drift_status": {"checkpoint": FRAUD},
        "read_report": {"change": world.draft().id} if name == "read_report" else {},
        "backtest_rules": {"checkpoint": FRAUD, "rules": STRICTER},
        "draft_change": {
            "project": "fraud", "checkpoint": FRAUD, "bundle": world.candidate, "title": "Drafted",
        },
    }.get(name, {})  # fmt: skip


@pytest.fixture(autouse=True)
def _no_drafts_are_left(world: AgentWorld) -> Iterator[None]:
    yield
    for change in world.service.changes.list(world.actor("admin"), limit=100):
        if change.state == "draft":
            world.service.changes.delete(world.actor("owner"), change.id)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_official_client_lists_and_calls_every_tool(world: AgentWorld, url: str, transport: str) -> None:
    async def work() -> None:
        async with connected(transport, url, world.tokens["robot"]) as client:
            listed = (await client.list_tools()).tools
            assert [one.name for one in listed] == list(TOOLS)
            for one in listed:
                tool = TOOLS[one.name]
                assert (one.title, one.description) == (tool.title, tool.description)
                assert one.input_schema == tool.schema()
                assert one.annotations is not None
                assert one.annotations.read_only_hint is not tool.drafts
                result = await client.call_tool(one.name, arguments(world, one.name))
                assert not result.is_error, (one.name, result.content)
                found = result.structured_content
                assert (found["tool"], found["note"], found["cut"]) == (one.name, NOTE, found["cut"])
                assert json.loads(result.content[0].text) == found

    run(work)
    recorded = world.service.agents.calls(world.actor("admin"), user="robot", limit=len(TOOLS))
    assert {one.tool for one in recorded} == TOOLS.keys()
    assert {one.result for one in recorded} <= {"done", "cut"}
    assert all(one.client for one in recorded), "the client's own name is recorded"
    assert {one.token for one in recorded} == {world.actor("robot").token}
