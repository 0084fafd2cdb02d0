"""Settings of the tools that agents use."""

from __future__ import annotations

from pydantic import Field

from scorer.config.fields import Section


class AgentSettings(Section):
    """The tools that agents use, with the limits of one agent and of all agents (docs/agents.md)."""

    enabled: bool = Field(
        default=False,
        description="Whether tools can be called. The owner of each project chooses the tools that are "
        "allowed in it; none are at first.",
    )
    mcp: bool = Field(
        default=True,
        description="Whether the platform serves the Model Context Protocol at /api/mcp. It needs the "
        "packages of the extra `mcp`. Without it, agents use `scorer mcp`.",
    )
    calls_per_minute: int = Field(
        default=60, ge=1, le=100_000, description="Calls of one agent in a burst, and per minute after it."
    )
    calls_at_once: int = Field(
        default=4, ge=1, le=64, description="Calls of one agent that run at the same time."
    )
    running: int = Field(default=8, ge=1, le=32, description="Calls of all agents that run at the same time.")
    seconds: float = Field(
        default=20.0,
        gt=0,
        le=600,
        description="Longest duration of a call, in seconds. A tool may have less.",
    )
    arguments_kb: int = Field(
        default=256, ge=1, le=4096, description="Largest size of the arguments of a call, in KiB of JSON."
    )
    result_kb: int = Field(
        default=32,
        ge=2,
        le=1024,
        description="Largest size of the data of a result, in KiB of JSON. A tool may have less.",
    )
    drafts: int = Field(
        default=5, ge=1, le=1000, description="Drafts of one agent that nobody has submitted or deleted."
    )
