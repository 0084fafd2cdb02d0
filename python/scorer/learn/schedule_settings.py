"""`[schedule]`: what the loop works on, and when each job runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from scorer.learn.section import LearnSection

Job = Literal["generation", "join", "train", "evaluate", "gate", "publish", "overlay", "drift"]


class ScheduleSettings(LearnSection):
    """What the learning loop works on, and the times of its jobs."""

    logs: tuple[str, ...] = Field(
        default=("decisions",),
        min_length=1,
        description="Directories of the decision logs of all servers of the checkpoint, relative to this "
        'file; or "delta:" and the directory or URL of the tables of `scorer ship`. An outcome is joined '
        "whichever of the logs it is in.",
    )
    reader_key: str = Field(
        default="",
        description="File of the private key of encrypted features (`scorer log keygen`); relative to this "
        "file. Empty: their values are missing.",
    )
    registry: str = Field(
        default="registry", description="Where bundles and aliases are: a directory, or mlflow:http://..."
    )
    kind: Literal["action", "score"] = Field(
        default="action",
        description='Kind of the checkpoint: "action" learns from outcomes of actions ([join], [train]), '
        '"score" from labels ([labels], [fraud]).',
    )
    checkpoint: str = Field(default="action.authorise", description="Checkpoint to learn from.")
    alias: str = Field(default="action-authorise@live", description="Alias of the live bundle.")
    platform: str = Field(
        default="",
        pattern=r"^(https?://[^\s]+)?$",
        description="URL of the platform that manages the checkpoint: publishing then drafts change requests "
        "there, with the token in $SCORER_PLATFORM_TOKEN or of `scorer login`. Empty: no platform manages "
        "it, and publishing moves the alias.",
    )
    project: str = Field(default="", description="Project of those change requests.")
    drift_state: str = Field(
        default="",
        description="File of the state of `scorer drift run`, or drift.sqlite in the data_dir of the "
        "platform; relative to this file. The job `drift` reads alerts of the checkpoint there.",
    )
    drift_cool_down_hours: float = Field(
        default=24.0,
        ge=0,
        le=24 * 90,
        description="Hours after a generation that drift began in which no other alert begins one.",
    )
    drift_late_hours: float = Field(
        default=48.0,
        gt=0,
        le=24 * 90,
        description="Hours after the last shifted look of an alert after which it begins no generation.",
    )
    jobs: dict[Job, str] = Field(
        default={"generation": "0 3 * * mon", "overlay": "*/5 * * * *"},
        description="When each job runs, as a crontab line: minute, hour, day of the month, month, day of "
        "the week (0 and 7 are Sunday). `generation` is all steps, continued where the last run ended; the "
        "name of a step is that step of the newest generation; `drift` is a generation that ends in a TEST, "
        "if there is a new alert of drift.",
    )
    timezone: str = Field(default="UTC", description="Time zone of the times above.")
    late_seconds: int = Field(
        default=3600,
        ge=1,
        le=7 * 86_400,
        description="Seconds within which a run that could not start (machine off, another job running) "
        "is made up for, once however many were missed. An older one is left out until its next time.",
    )
    abandon_hours: float = Field(
        default=24.0,
        gt=0,
        le=24 * 365,
        description="Hours after its moment during which an unfinished generation is continued. Then the "
        "next run begins a new one, and the overlay no longer waits for it.",
    )
    keep: int = Field(default=8, ge=2, le=1000, description="Generations kept in the workspace.")

    @field_validator("jobs")
    @classmethod
    def _lines_are_crontab(cls, value: dict[Job, str]) -> dict[Job, str]:
        from scorer.cron import check

        for line in value.values():
            check(line)
        return value

    @field_validator("timezone")
    @classmethod
    def _zone_exists(cls, value: str) -> str:
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(value)
        except (ValueError, OSError, KeyError):
            raise ValueError(f'"{value}" is no time zone; write one such as Europe/Amsterdam') from None
        return value
