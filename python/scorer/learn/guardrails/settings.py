"""The `[guardrails]` section of learn.toml."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from scorer.learn.guardrails.controller import ControllerSettings
from scorer.learn.guardrails.retries import RetrySettings
from scorer.learn.guardrails.tra import TraSettings
from scorer.learn.section import LearnSection


class CapSettings(LearnSection):
    """Limit on the use of one attribute of actions."""

    attribute: str
    limit: float = Field(gt=0)


class GuardrailSettings(LearnSection):
    """What no policy may do, whatever it would earn."""

    rules: Path | None = Field(
        default=None,
        description="Eligibility rules (docs/guardrails.md); relative to the working directory.",
        examples=["rules.toml"],
    )
    caps: tuple[CapSettings, ...] = Field(
        default=(),
        description="Attributes of actions and the most that a decision may use of them on average.",
    )
    controller: ControllerSettings = ControllerSettings()
    tra: TraSettings = TraSettings()
    retries: RetrySettings = RetrySettings()
