"""REST operations on the tools of agents."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from scorer.release.agent_answers import AgentAccess, AgentCall, AgentTool, AgentToolResult
from scorer.release.fields import Line, Moment
from scorer.release.requests import AllowTools, CallTool
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import ByUser, InProject, Limit, PageOut, ProjectPath

router = APIRouter(tags=["agents"])

ToolPath = Annotated[
    str,
    Path(
        alias="tool",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        examples=["list_checkpoints"],
        description="Name of the tool.",
    ),
]
OfTool = Annotated[Line | None, Query(description="Name of the tool; null: all.")]
WithResult = Annotated[
    Line | None, Query(description="`done`, `cut`, or a kind of rejection such as not-found; null: all.")
]
FromMoment = Annotated[
    Moment | None, Query(description="Time of the first call, with its time zone; null: all.")
]
ToMoment = Annotated[
    Moment | None, Query(description="Time after the last call, with its time zone; null: now.")
]


@router.get("/agents/tools")
def list_agent_tools(by: By) -> list[AgentTool]:
    """Return the tools that the caller may use, with the schemas of their arguments."""
    return list(by.service.agents.list(by.actor))


@router.post("/agents/tools/{tool}", responses=refusals(409, 423, 504))
def call_agent_tool(by: By, tool: ToolPath, body: CallTool) -> AgentToolResult:
    """Call a tool with at most the role `agent`. The call is recorded in the audit log."""
    return by.service.agents.call(by.actor, tool, body.arguments, client=body.client)


@router.get("/agents/calls")
def list_agent_calls(
    by: By,
    project: InProject = None,
    user: ByUser = None,
    tool: OfTool = None,
    result: WithResult = None,
    begin: FromMoment = None,
    end: ToMoment = None,
    cursor: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Limit = 100,
) -> PageOut[AgentCall]:
    """Iterate over the calls of agents in the user's projects, newest first."""
    found = by.service.agents.calls(
        by.actor,
        project=project,
        user=user,
        tool=tool,
        result=result,
        begin=begin,
        end=end,
        before=cursor,
        limit=limit + 1,
    )
    items = list(found[:limit])
    return PageOut(items=items, next=str(items[-1].sequence) if len(found) > limit else None)


@router.get("/projects/{project}/agents")
def get_agent_access(by: By, project: ProjectPath) -> AgentAccess:
    """Return the tools that agents may use in a project."""
    return by.service.agents.access(by.actor, project)


@router.put("/projects/{project}/agents")
def set_agent_access(by: By, project: ProjectPath, body: AllowTools) -> AgentAccess:
    """Set the tools that agents may use in a project, in place of the present ones. For owners."""
    return by.service.agents.allow(by.actor, project, body.tools)
