"""`learn.toml`: what every step of learning is set to, one section per step.

A section is a pydantic model beside the code that it sets, composed here. Every
key has a default, so an empty file is a valid one; unknown keys are refused with
their line. `scorer learn config` prints the file from these models.
"""

from __future__ import annotations

from pathlib import Path

from scorer.config.example import example as example_text
from scorer.config.source import SettingsSource
from scorer.learn.ab.settings import AbSettings
from scorer.learn.gate.settings import GateSettings
from scorer.learn.guardrails.settings import GuardrailSettings
from scorer.learn.join.settings import JoinSettings
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.schedule_settings import ScheduleSettings
from scorer.learn.section import LearnSection
from scorer.learn.tracking import TrackingSettings
from scorer.learn.training.settings import TrainSettings


class LearnSettings(LearnSection):
    """All sections of `learn.toml`, one per step."""

    join: JoinSettings = JoinSettings()
    train: TrainSettings = TrainSettings()
    overlay: OverlaySettings = OverlaySettings()
    guardrails: GuardrailSettings = GuardrailSettings()
    gate: GateSettings = GateSettings()
    ab: AbSettings = AbSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    tracking: TrackingSettings = TrackingSettings()


def load(path: Path | None) -> LearnSettings:
    """Read the file, or return every default where there is none.

    Raises:
        InvalidSettingsError: With every fault found, each with its line.
    """
    if path is None:
        return LearnSettings()
    return SettingsSource.read(path, example="scorer learn config").validate(LearnSettings)


def parse(text: str, *, where: str = "learn.toml") -> LearnSettings:
    """Read settings from text; `where` names it in messages.

    Raises:
        InvalidSettingsError: With every fault found, each with its line.
    """
    return SettingsSource(text, where=where).validate(LearnSettings)


def example() -> str:
    """Return a complete, commented `learn.toml`."""
    head = "# Settings of `scorer learn`. Every key is at its default; what is commented out is an example.\n"
    return example_text(LearnSettings, head)
