"""Immutable results of operations on the tools of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool that the caller may use."""

    name: str
    title: str
    description: str
    product: str
    """Group of tools, such as `monitoring`."""
    role: str
    """Lowest role in a project that may use it: `viewer` or `agent`."""
    drafts: bool
    """Whether it creates or edits a draft; otherwise it only reads."""
    input_schema: Mapping[str, Any]
    """JSON schema of the arguments."""
    projects: Sequence[str]
    """Projects in which the caller may use it."""


@dataclass(frozen=True, slots=True)
class AgentToolResult:
    """The result of a call of a tool."""

    tool: str
    note: str
    """How texts in the data are to be treated."""
    data: Any
    """JSON values."""
    cut: Sequence[str]
    """What was left out because of the size, one line each; empty: nothing."""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """A recorded call of a tool."""

    sequence: int
    """Its entry in the audit log."""
    at: datetime
    """Time at which it ended."""
    user: str
    token: str
    """Id of the token; empty: a browser's session."""
    client: str
    """Name and version that the agent's program states about itself."""
    tool: str
    project: str
    """Project in which the tool was used; empty: none was found, or the call was rejected."""
    result: str
    """`done`, `cut`, or the kind of rejection, such as `not-found` or `timed-out`."""
    reason: str
    """Why it was rejected, in one line."""
    milliseconds: float
    size: int
    """Bytes of the result's data."""
    arguments: str
    """The beginning of the arguments as JSON."""
    digest: str
    """SHA-256 of all arguments."""
    draft: str
    """Id of the change request that it drafted or edited; empty: none."""


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """The tools that agents may use in a project."""

    project: str
    tools: Sequence[str]
    """Names of the tools that are allowed."""
    products: Mapping[str, Mapping[str, bool]]
    """Every tool by its product, and whether it is allowed."""
