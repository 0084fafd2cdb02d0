"""What the calls answer, besides the types of `scorer.release.model`: plain values, never changed.

The same fields as the service layer's own types, without what those import; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scorer.release.model import (
    Booking,
    ChangeEvent,
    ChangeRequest,
    ChangeState,
    FreezeWindow,
    GateResult,
    LaneSpec,
    Outcome,
    RecordedTable,
    Role,
    Severity,
)


@dataclass(frozen=True, slots=True)
class Health:
    """The platform answers, and its database does."""

    status: str
    version: str
    leads: bool


@dataclass(frozen=True, slots=True)
class User:
    """Somebody that the platform knows."""

    name: str
    admin: bool
    created_at: datetime
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody in a project."""

    user: str
    project: str
    role: Role


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret."""

    id: str
    user: str
    label: str
    project: str | None
    role: Role
    expires_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None
    revoked: bool
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class NewToken:
    """The token and, this once, its secret."""

    token: Token
    secret: str


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """A bundle in the registry."""

    digest: str
    name: str
    kind: str
    project: str
    bytes: int
    uploaded_by: str
    uploaded_at: datetime | None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleDetail:
    """What is in it, and where it came from."""

    info: BundleInfo
    manifest: Mapping[str, Any]
    lineage: Mapping[str, Any]
    reference: Mapping[str, Any]
    features: Sequence[Mapping[str, Any]]
    lanes: Sequence[str]


@dataclass(frozen=True, slots=True)
class MemberView:
    """One server as it is now."""

    name: str
    role: str
    reachable: bool
    error: str
    in_step: bool
    answer: tuple[LaneSpec, ...]
    observe: tuple[LaneSpec, ...]
    observers: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint with its lanes."""

    name: str
    kind: str
    alias: str
    p99_ms: float
    slots: int
    sample: float
    filter: str
    pool: bool
    recorded: RecordedTable | None
    members: tuple[MemberView, ...]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """When a checkpoint was rolled back last."""

    checkpoint: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the shadow of a checkpoint."""

    checkpoint: str
    number: int


@dataclass(frozen=True, slots=True)
class Free:
    """When something fits."""

    checkpoint: str
    slot: int
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class CalendarPage:
    """Everything that a calendar shows between two moments."""

    start: datetime
    end: datetime
    slots: tuple[Slot, ...]
    bookings: tuple[Booking, ...]
    windows: tuple[FreezeWindow, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the pipeline."""

    state: ChangeState
    name: str
    words: str
    status: str
    began: datetime | None
    ended: datetime | None


@dataclass(frozen=True, slots=True)
class ChangeDetail:
    """Everything about one change request."""

    change: ChangeRequest
    steps: tuple[Step, ...]
    events: tuple[ChangeEvent, ...]
    gates: tuple[GateResult, ...]
    booking: Booking | None
    diff: dict[str, Any]
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Events:
    """What happened to a change since an event."""

    items: tuple[ChangeEvent, ...]
    state: ChangeState
    is_final: bool
    next: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a read-out, with its numbers."""

    name: str
    title: str
    words: str
    plotly: Mapping[str, Any]
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Readout:
    """Everything that is known about one change's time in the shadow (or canary)."""

    change: str
    checkpoint: str
    bundle: str
    live_bundle: str
    start: datetime
    end: datetime
    rows: int
    is_final: bool
    verdict: Outcome | None
    gates: tuple[GateResult, ...]
    summary: Mapping[str, Any]
    figures: tuple[Figure, ...]
    examples: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a project is told."""

    id: int
    project: str
    url: str
    kind: str
    severity: Severity
    checkpoints: tuple[str, ...]
    created_by: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one channel."""

    id: int
    channel: int
    at: datetime
    subject: str
    state: str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What checking the whole audit log found."""

    entries: int
    head: str
    problems: tuple[str, ...]
    sequence: int = 0
