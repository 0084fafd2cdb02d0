"""The base of every section of `learn.toml`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class LearnSection(BaseModel):
    """A table of `learn.toml`: unknown keys are rejected, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
