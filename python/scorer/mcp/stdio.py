"""The protocol over standard input and output: a proxy of a platform's REST for clients that start it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from mcp.server.stdio import stdio_server

from scorer.mcp.server import ToolBackend, tool_server

if TYPE_CHECKING:
    from scorer.release.agent_answers import AgentTool, AgentToolResult

AT_ONCE = 4
"""Calls that are sent to the platform at the same time; further ones wait for their turn."""


def serve(
    tools: Callable[[], Sequence[AgentTool]],
    call: Callable[[str, Mapping[str, Any], str], AgentToolResult],
) -> None:
    """Serve the protocol until standard input ends.

    Args:
        tools: Returns the tools of the user, and blocks meanwhile.
        call: Calls a tool with its name, its arguments and the name of the client, and blocks meanwhile.
    """
    anyio.run(_serve, tools, call)


async def _serve(
    tools: Callable[[], Sequence[AgentTool]],
    call: Callable[[str, Mapping[str, Any], str], AgentToolResult],
) -> None:
    room = anyio.CapacityLimiter(AT_ONCE)

    async def listed() -> Sequence[AgentTool]:
        return await anyio.to_thread.run_sync(tools, limiter=room)

    async def called(name: str, arguments: Mapping[str, Any], client: str) -> AgentToolResult:
        return await anyio.to_thread.run_sync(call, name, arguments, client, limiter=room)

    backend = ToolBackend(listed, called)
    server = tool_server(lambda _: backend)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
