"""Settings of builds: bundles that the platform makes from model files."""

from __future__ import annotations

from pydantic import Field

from scorer.config.fields import Section


class BuildSettings(Section):
    """Limits of the processes that build bundles from model files that users send."""

    enabled: bool = Field(default=True, description="Whether users can have bundles built from model files.")
    minutes: float = Field(
        default=10.0, gt=0, le=1_440, description="Longest time of one build, in minutes; it is ended then."
    )
    memory_mb: int = Field(
        default=4096,
        ge=512,
        le=1_048_576,
        description="Address space of a build's process, in MiB. The training library's own is part of it.",
    )
    waiting: int = Field(
        default=16, ge=1, le=1_000, description="Builds that may wait or run at once, of all projects."
    )
