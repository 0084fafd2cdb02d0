"""`[source]`: how shipped tables are read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from scorer.config.secrets import from_environment


class SourceSettings(BaseModel):
    """How the tables of `scorer ship` are read; directories need no settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_mb: int = Field(
        default=512,
        ge=64,
        le=1_048_576,
        description="Memory that DuckDB may use to put the rows of a table in the order of their log, MB. "
        "More rows are sorted on disk.",
    )
    options: dict[str, str] = Field(
        default={},
        description="Options of the object storage. Those that are not set are read from the environment "
        "(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...). $NAME stands for an environment variable.",
        examples=[{"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_SECRET_ACCESS_KEY": "$S3_SECRET"}],
    )
    timeout_seconds: float = Field(
        default=20.0, ge=1, le=600, description="Time limit of one request to the object storage, seconds."
    )

    @field_validator("options", mode="before")
    @classmethod
    def _secrets(cls, value: Any) -> Any:
        return from_environment(value)
