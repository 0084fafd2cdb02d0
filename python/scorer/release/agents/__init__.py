"""Tools for agents over the service layer: definitions, permissions, limits and records of calls."""

from __future__ import annotations

from scorer.release.agents.calls import AgentTools

__all__ = ["AgentTools"]
