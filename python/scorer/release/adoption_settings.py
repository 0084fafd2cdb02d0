"""Settings of the analyses of adoption at a checkpoint of the platform."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from scorer.config.fields import Directory


class AdoptionTask(BaseModel):
    """One analysis that users may start: its tables, and its settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Directory = Field(
        description="Parquet or CSV file, or directory of Parquet files: one row per unit and month."
    )
    task: Directory = Field(description="File of the task ([causal]); `scorer causal config` prints one.")
