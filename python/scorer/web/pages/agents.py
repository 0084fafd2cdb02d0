"""The page of agents: what they did, and which tools they may use in a project."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.agents.catalogue import PRODUCTS, TOOLS
from scorer.release.errors import PlatformError
from scorer.release.model import Role
from scorer.web.pages.visit import PAGE, Form, Here, Posted, Visit

router = APIRouter()
RESULTS = (
    "done", "cut", "invalid", "not-found", "not-allowed", "conflict", "frozen", "quota", "timed-out",
    "unreachable", "internal",
)  # fmt: skip
"""Results of calls that the filter offers."""


@router.get("/agents")
def agents(here: Here) -> Response:
    """Show the calls of agents, filtered by project, user, tool, result or time, and a project's tools."""
    return _show(here)


@router.post("/agents/{name}/tools")
def allow(here: Here, name: str, form: Posted) -> Response:
    """Set the tools that agents may use in a project; for owners."""
    try:
        here.service.agents.allow(here.actor, name, _chosen(form))
    except PlatformError as error:
        return _show(here, project=name, error=error)
    return here.go("/agents", "agent-tools", parameters={"project": name})


def _chosen(form: Form) -> list[str]:
    return [tool for tool in TOOLS if form.text(f"tool-{tool}")]


def _show(here: Visit, *, project: str = "", error: PlatformError | None = None) -> Response:
    projects = here.projects()
    names = [one.name for one in projects]
    chosen = project or here.ask("project")
    before = here.ask("before")
    calls, older = here.paged(
        here.service.agents.calls(
            here.actor,
            project=chosen or None,
            user=here.ask("user") or None,
            tool=here.ask("tool") or None,
            result=here.ask("result") or None,
            begin=here.ask_moment("begin"),
            end=here.ask_moment("end"),
            before=int(before) if before.isdecimal() and len(before) < 19 else None,
            limit=PAGE + 1,
        ),
        lambda one: str(one.sequence),
    )
    shown = chosen if chosen in names else names[0] if len(names) == 1 else ""
    return here.page(
        "agents.html",
        error=error,
        page_path="/agents",
        calls=calls,
        older=older,
        projects=projects,
        tools=TOOLS,
        results=RESULTS,
        products=PRODUCTS,
        access=here.service.agents.access(here.actor, shown) if shown else None,
        may_change=bool(shown) and here.is_at_least(Role.OWNER, shown),
        enabled=here.settings.agents.enabled,
    )
