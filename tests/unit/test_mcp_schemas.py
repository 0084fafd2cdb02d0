"""Schemas of the tools for function calling: the shapes of OpenAI, the AI SDK and the protocol."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from scorer.mcp.schemas import FORMATS, tool_schemas
from scorer.release.agent_answers import AgentTool
from scorer.release.agents.catalogue import TOOLS

LISTED = [
    AgentTool(
        one.name, one.title, one.description, one.product, one.role.value, one.drafts, one.schema(), ["fraud"]
    )
    for one in TOOLS.values()
]
DRAFT = {
    "project": "fraud",
    "checkpoint": "fraud.checkout",
    "bundle": "sha256:5a1f",
    "title": "x",
    "findings": [{"tool": "live_metrics", "finding": "It fell.", "figures": {"rate": 0.5}}],
}


def parameters(form: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of the arguments by tool."""
    found = tool_schemas(LISTED, form)
    if form == "openai":
        return {one["function"]["name"]: one["function"]["parameters"] for one in found}
    if form == "vercel":
        return {name: found[name]["inputSchema"] for name in found}
    return {one["name"]: one["inputSchema"] for one in found}


def test_the_list_of_openai_has_functions_with_a_type_each() -> None:
    found = tool_schemas(LISTED, "openai")
    assert [one["type"] for one in found] == ["function"] * len(TOOLS)
    assert all(set(one["function"]) == {"name", "description", "parameters"} for one in found)
    assert all(len(one["function"]["description"]) <= 1024 for one in found), "the limit of the API"


def test_the_object_of_the_ai_sdk_has_a_tool_by_name() -> None:
    found = tool_schemas(LISTED, "vercel")
    assert list(found) == list(TOOLS)
    assert all(set(one) == {"description", "inputSchema"} for one in found.values())


def test_the_list_of_the_protocol_marks_tools_that_only_read() -> None:
    hints = {one["name"]: one["annotations"]["readOnlyHint"] for one in tool_schemas(LISTED, "mcp")}
    assert {name for name, reads in hints.items() if not reads} == {"draft_change", "edit_draft"}


@pytest.mark.parametrize("form", FORMATS)
def test_schemas_accept_what_the_tools_accept(form: str) -> None:
    for name, schema in parameters(form).items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object", name
        if form != "mcp":
            assert "$ref" not in json.dumps(schema), name
            assert "$defs" not in schema, name
    schema = parameters(form)["draft_change"]
    TOOLS["draft_change"].arguments.model_validate(DRAFT)
    jsonschema.validate(DRAFT, schema)
    for wrong in ({**DRAFT, "kind": "overlay"}, {**DRAFT, "submit": True}, {"project": "fraud"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
        with pytest.raises(ValueError, match=r"validation error"):
            TOOLS["draft_change"].arguments.model_validate(wrong)


def test_an_unknown_form_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match='"yaml" is no form'):
        tool_schemas(LISTED, "yaml")
