"""What every section of `learn.toml` is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
