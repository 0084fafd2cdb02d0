"""Schemas of the tools for function calling, from the same definitions as the protocol's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scorer.release.agent_answers import AgentTool

FORMATS = ("openai", "vercel", "mcp")


def tool_schemas(tools: Sequence[AgentTool], form: str) -> list[dict[str, Any]] | dict[str, Any]:
    """Return the schemas of tools in a form.

    Args:
        tools: The tools.
        form: `openai`: the list of `tools` of Chat Completions, whose entries are functions; `vercel`: an
            object by tool name for the AI SDK, whose function `jsonSchema` wraps each `inputSchema`; `mcp`:
            the list that `tools/list` returns.

    Raises:
        ValueError: There is no such form.
    """
    if form == "openai":
        return [
            {
                "type": "function",
                "function": {
                    "name": one.name,
                    "description": one.description,
                    "parameters": _inlined(one.input_schema),
                },
            }
            for one in tools
        ]
    if form == "vercel":
        return {
            one.name: {"description": one.description, "inputSchema": _inlined(one.input_schema)}
            for one in tools
        }
    if form == "mcp":
        return [
            {
                "name": one.name,
                "title": one.title,
                "description": one.description,
                "inputSchema": dict(one.input_schema),
                "annotations": {
                    "readOnlyHint": not one.drafts,
                    "destructiveHint": False,
                    "idempotentHint": not one.drafts,
                    "openWorldHint": False,
                },
            }
            for one in tools
        ]
    raise ValueError(f'"{form}" is no form; choose one of {", ".join(FORMATS)}')


def _inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without references, which not every client of function calling resolves."""
    definitions = schema.get("$defs", {})

    def walk(value: Any) -> Any:
        if isinstance(value, Mapping):
            reference = value.get("$ref")
            if isinstance(reference, str):
                rest = {key: one for key, one in value.items() if key != "$ref"}
                return {**walk(definitions[reference.removeprefix("#/$defs/")]), **walk(rest)}
            return {key: walk(one) for key, one in value.items() if key != "$defs"}
        return [walk(one) for one in value] if isinstance(value, list) else value

    found: dict[str, Any] = walk(schema)
    return found
