"""What operations on change requests take and return."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scorer.release.model import (
    Booking,
    ChangeEvent,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    GateResult,
    GateSpec,
    Stage,
)


@dataclass(frozen=True, slots=True)
class Draft:
    """What somebody asks for."""

    project: str
    kind: ChangeKind
    checkpoint: str
    bundle: str
    """A digest, a prefix or name@alias."""
    title: str
    description: str = ""
    minutes: float = 60.0
    stages: tuple[Stage, ...] = ()
    """Empty: the checkpoint's."""
    holdout: float = 0.0
    gates: tuple[GateSpec, ...] = ()
    sample: float | None = None
    pool: bool | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the pipeline, for the stepper of its page."""

    state: ChangeState
    name: str
    words: str
    """What it does, or what came of it."""
    status: str
    """`done`, `running`, `waiting`, `failed` or `to come`."""
    began: datetime | None
    ended: datetime | None


@dataclass(frozen=True, slots=True)
class ChangeDetail:
    """Everything about one."""

    change: ChangeRequest
    steps: tuple[Step, ...]
    events: tuple[ChangeEvent, ...]
    gates: tuple[GateResult, ...]
    """As judged last."""
    booking: Booking | None
    diff: dict[str, Any]
    """Against the bundle that answers: features, parameters, thresholds, sizes."""
    allowed: tuple[str, ...]
    """What whoever asks may do now: `submit`, `approve`, ..."""
