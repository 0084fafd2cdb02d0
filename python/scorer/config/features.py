"""Settings of computed features: the feature sets of a server, and the store of their state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from scorer.config.fields import Directory, OptionalPath, Section


class FeatureSettings(Section):
    """The features that the server computes from recorded events."""

    sets: list[Directory] = Field(
        default=[],
        max_length=64,
        description="Files of feature sets: TOML, or JSON. A bundle with computed features is "
        "loaded only if these sets have its features with the same definitions.",
        examples=[["card-behaviour.toml"]],
    )
    directory: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Directory of the journal and the snapshots of the store. The state is rebuilt from them "
        'at the next start. "off": the state is lost when the server stops.',
        examples=["features"],
    )
    memory_mb: int = Field(
        default=512,
        ge=1,
        le=1_048_576,
        description="Largest memory of the state, MB. Beyond it, the entities whose latest event is oldest "
        "are removed and counted.",
    )
    sla_share: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="Share of the SLA that loading the features of a request may take. Later features have "
        "their declared defaults, and the answer is marked.",
    )

    @model_validator(mode="after")
    def _state_belongs_to_sets(self) -> FeatureSettings:
        if self.directory is not None and not self.sets:
            raise ValueError("directory is set and sets is empty: name the feature sets, or remove directory")
        return self


def feature_config(features: FeatureSettings, definition: Callable[[Path], Any]) -> dict[str, Any] | None:
    """Convert the settings to the configuration of the data plane; None without feature sets.

    Args:
        features: The settings.
        definition: Reads the file of a feature set, and returns its canonical form.
    """
    if not features.sets:
        return None
    return {
        "sets": [definition(path) for path in features.sets],
        "directory": None if features.directory is None else str(features.directory),
        "memory_bytes": features.memory_mb << 20,
        "sla_share": features.sla_share,
    }
