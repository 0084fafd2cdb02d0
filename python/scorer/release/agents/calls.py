"""Calls of tools: permissions, limits, the audit entry of each call, and the list of calls."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from scorer.errors import ScorerError
from scorer.release.access.roles import as_agent, rank, unknown_project
from scorer.release.agent_answers import AgentAccess, AgentCall, AgentTool, AgentToolResult
from scorer.release.agents import cards, results
from scorer.release.agents.catalogue import PRODUCTS, TOOLS
from scorer.release.agents.limits import CallCounters, CallLimits
from scorer.release.agents.tools import Tool, ToolCall
from scorer.release.errors import InvalidError, NotAllowedError, NotFoundError, ThrottledError
from scorer.release.fields import violations
from scorer.release.model import AuditEntry
from scorer.release.problems import kind_of

if TYPE_CHECKING:
    from scorer.release.audit import Audit
    from scorer.release.model import Actor, Project
    from scorer.release.service import Service
    from scorer.release.settings import PlatformFile
    from scorer.release.store import Store

ACTION: Final = "agent.call"
_EXCERPT: Final = 300
_REASON: Final = 300
_CLIENT: Final = 80
_TEXT: Final = 60
"""Characters of an excerpt of arguments, of a reason, of a client's name, and of a text in an excerpt."""
_PAGES: Final = 20
"""Pages of the audit log that one page of filtered calls reads."""


class AgentTools:
    """Lists the tools that a caller may use, calls them and lists their calls.

    A tool runs with at most the role `agent`, in the projects whose owners allow it. The service layer
    therefore rejects what no agent may do, and finds no objects of other projects, whatever the tool does.

    Args:
        settings: The platform's settings.
        store: The database.
        audit: Receives an entry for each call.
        tools: The tools by name.
    """

    def __init__(
        self, settings: PlatformFile, store: Store, audit: Audit, *, tools: Mapping[str, Tool] = TOOLS
    ) -> None:
        self._settings, self._store, self._audit, self._tools = settings, store, audit, tools
        self._limits = CallLimits(settings.agents)
        self.counters = CallCounters()
        self._service: Service | None = None

    def use(self, service: Service) -> None:
        """Set the service layer, which this object is part of."""
        self._service = service

    @property
    def _operations(self) -> Service:
        assert self._service is not None  # noqa: S101 - set when the platform is opened
        return self._service

    # --- permissions ---

    def access(self, actor: Actor, project: str) -> AgentAccess:
        """Return the tools that agents may use in a project."""
        return self._access(self._operations.access.project(actor, project))

    def allow(self, actor: Actor, project: str, tools: Sequence[str]) -> AgentAccess:
        """Set the tools that agents may use in a project, in place of the present ones; for owners.

        Args:
            actor: The calling user.
            project: Name of the project.
            tools: Names of tools; empty: none.

        Raises:
            InvalidError: There is no tool of a name.
        """
        if unknown := sorted(set(tools) - self._tools.keys()):
            raise InvalidError(
                f'tools: there is no tool "{unknown[0][:100]}"; choose among {", ".join(self._tools)}'
            )
        return self._access(self._operations.access.set_agent_tools(actor, project, tools))

    def _access(self, project: Project) -> AgentAccess:
        return AgentAccess(
            project.name,
            tuple(name for name in self._tools if name in project.agent_tools),
            {
                product: {
                    name: name in project.agent_tools
                    for name, tool in self._tools.items()
                    if tool.product == product
                }
                for product in PRODUCTS
            },
        )

    def list(self, actor: Actor) -> Sequence[AgentTool]:
        """Return the tools that the caller may use in at least one project; none while they are disabled."""
        if not self._settings.agents.enabled:
            return []
        projects = self._operations.access.projects(actor)
        found = []
        for tool in self._tools.values():
            names = self._allowed(actor, tool, projects)
            if names:
                found.append(
                    AgentTool(
                        tool.name,
                        tool.title,
                        tool.description,
                        tool.product,
                        tool.role.value,
                        tool.drafts,
                        tool.schema(),
                        names,
                    )
                )
        return found

    @staticmethod
    def _allowed(actor: Actor, tool: Tool, projects: Sequence[Project]) -> Sequence[str]:
        """Return the names of the projects in which the caller may use a tool."""
        return [
            one.name
            for one in projects
            if tool.name in one.agent_tools
            and one.name in actor.roles
            and rank(actor.roles[one.name]) >= rank(tool.role)
        ]

    # --- calls ---

    def call(
        self, actor: Actor, name: str, arguments: Mapping[str, Any], *, client: str = ""
    ) -> AgentToolResult:
        """Call a tool. Each call that is within the rate is recorded in the audit log.

        Args:
            actor: The calling user.
            name: Name of the tool.
            arguments: Its arguments, as JSON values.
            client: Name that the agent's program states about itself. It is recorded, and decides nothing.

        Raises:
            NotFoundError: There is no such tool, checkpoint, project or object that the caller may use.
            InvalidError: The arguments are not valid, too large, or contain a card number.
            ThrottledError: The agent calls too often.
            TimedOutError: The tool took too long.
            PlatformError: The service layer rejected the call.
        """
        began = time.monotonic()
        tool = self._tools.get(name)
        record = _Record(name if tool is not None else "unknown", client)
        try:
            found = self._run(actor, name, tool, arguments, record, began)
        except ThrottledError:
            # An entry for each of these would let an agent fill the audit log.
            self.counters.count(record.tool, "throttled", time.monotonic() - began)
            raise
        except Exception as error:
            record.result = _result_of(error)
            record.reason = (
                cards.masked(str(error))[:_REASON] if isinstance(error, ScorerError) else "internal error"
            )
            self._keep(actor, record, began)
            raise
        record.result = "cut" if found.cut else "done"
        self._keep(actor, record, began)
        return found

    def _run(
        self,
        actor: Actor,
        name: str,
        tool: Tool | None,
        arguments: Mapping[str, Any],
        record: _Record,
        began: float,
    ) -> AgentToolResult:
        own = self._settings.agents
        if not own.enabled:
            raise NotAllowedError(
                "tools are not enabled here; an operator sets [agents] enabled in platform.toml"
            )
        seconds = min(own.seconds, tool.seconds or own.seconds) if tool else own.seconds
        until = began + seconds

        def work() -> AgentToolResult:
            try:
                given = json.dumps(arguments, default=str, sort_keys=True).encode()
            except (RecursionError, ValueError):
                raise InvalidError("arguments: they are nested too deeply; send a flat object") from None
            record.digest = hashlib.sha256(given).hexdigest()
            if len(given) > own.arguments_kb << 10:
                raise InvalidError(
                    f"arguments: {len(given):,} bytes of JSON are more than the limit of {own.arguments_kb} "
                    "KiB; send less"
                )
            record.excerpt = _excerpt(arguments)
            projects = self._operations.access.projects(actor)
            allowed = self._allowed(actor, tool, projects) if tool else []
            if tool is None or not allowed:
                raise NotFoundError(
                    f'there is no tool "{cards.masked(name[:64])}" that you may use; the list of '
                    "tools has yours, and the owner of a project allows tools"
                )
            asked = self._read(tool, arguments)
            agent = as_agent(actor, allowed)
            record.project = self._project(agent, asked, [one for one in projects if one.name in allowed])
            value = tool.run(ToolCall(self._operations, self._settings, agent, until), asked)
            if isinstance(value, Mapping) and "draft" in value:
                record.draft = str(value["draft"])
            most = min(own.result_kb, tool.result_kb or own.result_kb) << 10
            data, cut = results.fitted(results.plain(value), most)
            record.size = results.size_of(data)
            return AgentToolResult(tool.name, results.NOTE, data, tuple(cut))

        found: AgentToolResult = self._limits.run(actor.token or actor.user, work, seconds)
        return found

    @staticmethod
    def _read(tool: Tool, arguments: Mapping[str, Any]) -> Any:
        text = json.dumps(arguments, ensure_ascii=False, default=str)
        if cards.masked(text) != text or _has_number(arguments):
            raise InvalidError("arguments: they contain a card number; remove it")
        try:
            return tool.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise InvalidError(violations(error.errors(include_url=False))) from None

    def _project(self, agent: Actor, asked: Any, projects: Sequence[Project]) -> str:
        """Return the project that a call concerns, after checking that project and checkpoint are visible."""
        own: str | None = getattr(asked, "project", None)
        if own is not None and own not in agent.roles:
            raise unknown_project(own)
        checkpoint: str | None = getattr(asked, "checkpoint", None)
        if checkpoint is not None:
            known = tuple(self._settings.checkpoints)
            # An agent with roles in no project would otherwise see the checkpoints of all.
            if checkpoint not in self._operations.access.checkpoints(agent, known):
                raise NotFoundError(
                    f'there is no checkpoint "{checkpoint[:100]}" that you may see; '
                    "`list_checkpoints` lists yours"
                )
            projects = [one for one in projects if not one.checkpoints or checkpoint in one.checkpoints]
        change: str | None = getattr(asked, "change", None)
        if change is not None:
            return self._operations.changes.summary(agent, change).project
        if own is not None:
            return own
        return projects[0].name if len(projects) == 1 else ""

    def _keep(self, actor: Actor, record: _Record, began: float) -> None:
        seconds = time.monotonic() - began
        self.counters.count(record.tool, record.result, seconds)
        details = {
            "client": record.client,
            "result": record.result,
            "reason": record.reason,
            "milliseconds": round(1000 * seconds, 1),
            "size": record.size,
            "arguments": record.excerpt,
            "digest": record.digest,
            "draft": record.draft,
        }
        with self._store.write() as connection:
            self._audit.append(
                connection, as_agent(actor, ()), ACTION, record.tool, project=record.project, details=details
            )

    # --- what agents did ---

    def calls(
        self,
        actor: Actor,
        *,
        project: str | None = None,
        user: str | None = None,
        tool: str | None = None,
        result: str | None = None,
        begin: datetime | None = None,
        end: datetime | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Sequence[AgentCall]:
        """Return the recorded calls of the actor's projects and of the actor, newest first.

        Args:
            actor: The calling user.
            project: Only calls in this project.
            user: Only calls of this user.
            tool: Only calls of this tool.
            result: Only calls with this result, such as `done` or `not-found`.
            begin: Only calls from this time on.
            end: Only calls before this time.
            before: Only calls with a lower sequence, to read the next page.
            limit: Limit on the number of calls, at most 1,000.
        """
        limit = max(0, min(limit, 1000))
        found: list[AgentCall] = []
        for _ in range(_PAGES):
            entries = self._audit.entries(
                actor,
                project=project,
                user=user,
                action=ACTION,
                object=tool,
                begin=begin,
                end=end,
                before=before,
                limit=limit,
            )
            found += [one for one in map(_call, entries) if result in (None, one.result)]
            if len(found) >= limit or len(entries) < limit or not entries:
                break
            before = entries[-1].sequence
        return found[:limit]

    def metrics(self) -> Sequence[str]:
        """Return the counters of calls as lines of the Prometheus text format."""
        return self.counters.lines(self._limits.running)


class _Record:
    """What is recorded of a call."""

    def __init__(self, tool: str, client: str) -> None:
        self.tool = tool
        self.client = cards.masked("".join(one for one in client if one.isprintable()))[:_CLIENT]
        self.project = self.excerpt = self.digest = self.draft = self.reason = self.result = ""
        self.size = 0


def _result_of(error: Exception) -> str:
    return kind_of(error).name if isinstance(error, ScorerError) else "internal"


def _excerpt(arguments: Mapping[str, Any]) -> str:
    """Return the beginning of the arguments as JSON, with short texts and without card numbers."""
    short = results.plain({str(key)[:_TEXT]: _short(value) for key, value in list(arguments.items())[:20]})
    text = json.dumps(_unwrapped(short), ensure_ascii=False, default=str)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}…"
    if isinstance(value, Mapping):
        return {str(key)[:_TEXT]: _short(one) for key, one in list(value.items())[:10]}
    if isinstance(value, list):
        return [_short(one) for one in value[:10]]
    return value


def _unwrapped(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {results.USER_TEXT}:
            return value[results.USER_TEXT]
        return {key: _unwrapped(one) for key, one in value.items()}
    return [_unwrapped(one) for one in value] if isinstance(value, list) else value


def _has_number(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_number, value.values()))
    if isinstance(value, list):
        return any(map(_has_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool) and cards.is_number(float(value))


def _call(entry: AuditEntry) -> AgentCall:
    details = entry.details
    return AgentCall(
        sequence=entry.sequence,
        at=entry.at,
        user=entry.actor,
        token=str(details.get("token", "")),
        client=str(details.get("client", "")),
        tool=entry.object,
        project=entry.project,
        result=str(details.get("result", "")),
        reason=str(details.get("reason", "")),
        milliseconds=float(details.get("milliseconds", 0.0)),
        size=int(details.get("size", 0)),
        arguments=str(details.get("arguments", "")),
        digest=str(details.get("digest", "")),
        draft=str(details.get("draft", "")),
    )
