"""``scorer mcp``: tools of a platform for agents."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.platform_options import Json, Project, Url, at, connected, plain

if TYPE_CHECKING:
    from scorer.release.agent_answers import AgentTool, AgentToolResult

app = typer.Typer(
    help="Tools of a platform for agents. Without a command: serve them on standard input and output.",
    invoke_without_command=True,
    **TYPER_OPTIONS,
)


@app.callback()
def serve(context: typer.Context, url: Url = None) -> None:
    """Tools of a platform for agents.

    Without a command, serve the Model Context Protocol on standard input and output, for a client that starts
    this process. The token is $SCORER_PLATFORM_TOKEN, or the one stored by `scorer login`. Give an agent a
    token of its own with the role agent.
    """
    if context.invoked_subcommand is not None:
        return
    from scorer.mcp import stdio

    with connected(url) as platform:

        def call(name: str, arguments: Mapping[str, Any], client: str) -> AgentToolResult:
            return platform.call_tool(name, dict(arguments), client=client)

        stdio.serve(platform.agent_tools, call)


@app.command()
def tools(url: Url = None, json: Json = False) -> None:
    """List the tools that you may use."""
    found = _tools(url)
    if json:
        print_json(plain(found))
        return
    print_table(
        ("tool", "product", "role", "projects", "title"),
        [(one.name, one.product, one.role, " ".join(one.projects), one.title) for one in found],
        empty="no tool is allowed in your projects; an owner allows them with `scorer mcp allow`",
    )


@app.command()
def schema(
    form: Annotated[
        str, typer.Option("--format", metavar="openai|vercel|mcp", help="Form of the schemas.")
    ] = "mcp",
    url: Url = None,
) -> None:
    """Print the schemas of your tools for function calling, as JSON."""
    from scorer.mcp.schemas import FORMATS, tool_schemas

    if form not in FORMATS:
        raise typer.BadParameter(f'"{form}" is not one of {", ".join(FORMATS)}')
    typer.echo(jsonlib.dumps(tool_schemas(_tools(url), form), indent=2, ensure_ascii=False))


@app.command("call")
def call_(
    tool: str,
    arguments: Annotated[str, typer.Argument(metavar="[JSON]", help="Arguments as a JSON object.")] = "{}",
    url: Url = None,
) -> None:
    """Call a tool, and print its result as JSON."""
    try:
        given = jsonlib.loads(arguments)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise typer.BadParameter('arguments: write a JSON object such as {"checkpoint": "fraud.checkout"}')
    with connected(url) as platform:
        print_json(plain(platform.call_tool(tool, given, client="scorer mcp call")))


@app.command()
def calls(
    project: Project = None,
    user: Annotated[str | None, typer.Option("--user", help="Calls of this user.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="Calls of this tool.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Number of calls.")] = 50,
    url: Url = None,
    json: Json = False,
) -> None:
    """List what agents did, newest first."""
    from itertools import islice

    with connected(url) as platform:
        found = list(islice(platform.agent_calls(project=project, user=user, tool=tool), limit))
    if json:
        print_json(plain(found))
        return
    rows = [
        (
            at(one.at),
            one.user,
            one.tool,
            one.project or "-",
            one.result,
            f"{one.milliseconds:.0f} ms",
            one.draft or "-",
        )
        for one in found
    ]
    print_table(("at", "user", "tool", "project", "result", "took", "draft"), rows, empty="no calls")


@app.command()
def allow(
    project: str,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TOOL]...", help="Tools in place of those allowed now.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Allow every tool.")] = False,
    none: Annotated[bool, typer.Option("--none", help="Allow no tool.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show or set the tools that agents may use in a project; for owners."""
    if every + none + bool(names) > 1:
        raise typer.BadParameter("name tools, or use one of --all and --none")
    with connected(url) as platform:
        found = platform.agent_access(project)
        if every or none or names:
            known = [name for tools in found.products.values() for name in tools]
            found = platform.allow_tools(project, known if every else list(names or ()))
    if json:
        print_json(plain(found))
        return
    rows = [
        (name, product, "allowed" if allowed else "-")
        for product, tools in found.products.items()
        for name, allowed in tools.items()
    ]
    print_table(("tool", "product", "agents"), rows, empty="no tools")


def _tools(url: str | None) -> Sequence[AgentTool]:
    with connected(url) as platform:
        return platform.agent_tools()
