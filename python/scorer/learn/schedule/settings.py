"""`[schedule]`: what the loop works on, and when each job runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from scorer.learn.section import Section

Job = Literal["generation", "join", "train", "evaluate", "gate", "publish", "overlay"]


class ScheduleSettings(Section):
    """The loop: decisions in, a better bundle out."""

    log: str = Field(default="decisions", description="The decision log; relative to this file.")
    registry: str = Field(
        default="registry", description="Where bundles and aliases are: a directory, or mlflow:http://..."
    )
    checkpoint: str = Field(default="action.authorise", description="Whose decisions.")
    alias: str = Field(default="action-authorise@live", description="What serves, and what publishing moves.")
    jobs: dict[Job, str] = Field(
        default={"generation": "0 3 * * mon", "overlay": "*/5 * * * *"},
        description="When each job runs: minute, hour, day, month, day of the week. `generation` is all "
        "steps, continued where the last run ended; a step's own name is that step of the newest generation.",
    )
    timezone: str = Field(default="UTC", description="Of the times above.")
    late_seconds: int = Field(
        default=3600,
        ge=1,
        le=7 * 86_400,
        description="A run that could not start (machine off, the one before still busy) is made up for "
        "within so long, once however many were missed; later it is left out until its next time.",
    )
    abandon_hours: float = Field(
        default=24.0,
        gt=0,
        le=24 * 365,
        description="An unfinished generation is continued for so long after its moment; then the next run "
        "begins a new one, and the overlay waits no longer.",
    )
    keep: int = Field(default=8, ge=2, le=1000, description="Generations kept in the workspace.")

    @field_validator("timezone")
    @classmethod
    def _zone_exists(cls, value: str) -> str:
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(value)
        except (ValueError, OSError, KeyError):
            raise ValueError(f'"{value}" is no time zone; write one such as Europe/Amsterdam') from None
        return value
