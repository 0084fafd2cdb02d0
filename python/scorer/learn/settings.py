"""`learn.toml`: what every step of learning is set to, one section per step.

A section is a pydantic model beside the code that it sets, composed here. Every
key has a default, so an empty file is a valid one; unknown keys are refused with
their line. `scorer learn config` prints the file from these models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scorer.config.example import example as example_text
from scorer.config.example import toml
from scorer.config.source import SettingsSource
from scorer.learn.ab.settings import AbSettings
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.gate.settings import GateSettings
from scorer.learn.guardrails.settings import GuardrailSettings
from scorer.learn.join.settings import JoinSettings
from scorer.learn.labels.settings import LabelSettings
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.schedule_settings import ScheduleSettings
from scorer.learn.section import LearnSection
from scorer.learn.tracking import TrackingSettings
from scorer.learn.training.settings import TrainSettings
from scorer.log.source.settings import SourceSettings


class LearnSettings(LearnSection):
    """All sections of `learn.toml`, one per step."""

    join: JoinSettings = JoinSettings()
    labels: LabelSettings = LabelSettings()
    train: TrainSettings = TrainSettings()
    fraud: FraudSettings = FraudSettings()
    overlay: OverlaySettings = OverlaySettings()
    guardrails: GuardrailSettings = GuardrailSettings()
    gate: GateSettings = GateSettings()
    ab: AbSettings = AbSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    source: SourceSettings = SourceSettings()
    tracking: TrackingSettings = TrackingSettings()


def _print_warning(message: str) -> None:
    sys.stderr.write(f"warning: {message}\n")


def load(path: Path | None, *, warn: Callable[[str], None] = _print_warning) -> LearnSettings:
    """Read the file, or return every default where there is none.

    Args:
        path: The file.
        warn: Receives a line for each deprecated key.

    Raises:
        InvalidSettingsError: With every fault found, each with its line.
    """
    if path is None:
        return LearnSettings()
    return _validate(SettingsSource.read(path, example="scorer learn config"), warn)


def parse(
    text: str, *, where: str = "learn.toml", warn: Callable[[str], None] = _print_warning
) -> LearnSettings:
    """Read settings from text; `where` names it in messages.

    Raises:
        InvalidSettingsError: With every fault found, each with its line.
    """
    return _validate(SettingsSource(text, where=where), warn)


def _validate(source: SettingsSource, warn: Callable[[str], None]) -> LearnSettings:
    schedule = source.document.get("schedule")
    problems = []
    if isinstance(schedule, dict) and (old := [key for key in ("log", "replicas") if key in schedule]):
        path = ("schedule", old[0])
        if "logs" in schedule:
            problems = [source.problem(path, 'is the old form of "logs", which is set too; remove it')]
        else:
            schedule["logs"] = _logs(schedule)
            warn(str(source.problem(path, f"deprecated; write logs = {toml(schedule['logs'])}")))
        for key in old:
            del schedule[key]
    return source.validate(LearnSettings, problems=problems)


def _logs(schedule: dict[str, Any]) -> list[Any]:
    """Return the value of `logs` for the keys that were used before it."""
    replicas = schedule.get("replicas", [])
    return [schedule.get("log", "decisions"), *(replicas if isinstance(replicas, list) else [replicas])]


def example() -> str:
    """Return a complete, commented `learn.toml`."""
    head = "# Settings of `scorer learn`. Every key is at its default; what is commented out is an example.\n"
    return example_text(LearnSettings, head)
