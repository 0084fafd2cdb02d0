"""What operations answer, besides what model.py speaks of: plain values, never changed.

They import no other part of the service layer, so that the SDK returns the same types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from scorer.release.fields import Flag, Line, Minutes, Name, Number, Reference, Share, Text
from scorer.release.model import (
    Actor,
    Booking,
    ChangeEvent,
    ChangeKind,
    ChangeRequest,
    ChangeState,
    FreezeWindow,
    GateResult,
    GateSpec,
    LaneSpec,
    Outcome,
    RecordedTable,
    Role,
    Severity,
    Stage,
)

# --- access ---


@dataclass(frozen=True, slots=True)
class User:
    """Somebody that the platform knows."""

    name: str
    admin: bool
    created_at: datetime
    removed: bool = False


@dataclass(frozen=True, slots=True)
class ProjectMember:
    """A user with a role in a project."""

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
    """None: every project of its user."""
    role: Role
    """The most that it may do."""
    expires_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None
    revoked: bool
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A user who is signed in at a browser."""

    actor: Actor
    csrf: str
    """What a form must carry."""
    expires_at: datetime


# --- bundles ---


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """A bundle in the registry."""

    digest: str
    name: str
    kind: str
    """`score` or `action`."""
    project: str
    """Empty: of no project; it came into the registry by another way."""
    bytes: int
    uploaded_by: str
    uploaded_at: datetime | None
    changes: tuple[str, ...] = ()
    """Change requests about it, newest first."""


@dataclass(frozen=True, slots=True)
class BundleDetail:
    """What is in it, and where it came from."""

    info: BundleInfo
    manifest: Mapping[str, Any]
    lineage: Mapping[str, Any]
    reference: Mapping[str, Any]
    features: Sequence[Mapping[str, Any]]
    lanes: Sequence[str]
    """`checkpoint/lane` where it is now."""


# --- checkpoints ---


@dataclass(frozen=True, slots=True)
class MemberView:
    """One server as it is now."""

    name: str
    role: str
    """`live` or `shadow`."""
    reachable: bool
    error: str
    in_step: bool
    """Its lanes are the recorded ones."""
    answer: tuple[LaneSpec, ...]
    observe: tuple[LaneSpec, ...]
    observers: Sequence[Mapping[str, Any]]
    """Counters, as `ObserverStatus` of control.proto."""


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


# --- calendar ---


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the shadow of a checkpoint."""

    checkpoint: str
    number: int


@dataclass(frozen=True, slots=True)
class Free:
    """A period in which a booking fits."""

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


# --- change requests ---


@dataclass(frozen=True, slots=True)
class Draft:
    """A change request before it is submitted. Constraints hold where it is read from JSON or a form."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    project: Annotated[Name, Field(examples=["fraud"])]
    kind: ChangeKind
    checkpoint: Annotated[Name, Field(examples=["fraud.checkout"])]
    bundle: Reference
    title: Annotated[Line, Field(min_length=1, examples=["Deeper trees"])]
    description: Text = ""
    minutes: Minutes = 60.0
    """Length of the observation in the shadow."""
    stages: Annotated[tuple[Stage, ...], Field(max_length=20)] = ()
    """Canary stages of a RELEASE; empty: the checkpoint's."""
    holdout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Share that stays with the previous bundle, for comparison, until the change is done."""
    gates: Annotated[tuple[GateSpec, ...], Field(max_length=50)] = ()
    """Empty: the checkpoint's."""
    sample: Share | None = None
    """Share of requests that are observed; null: the checkpoint's."""
    pool: Flag | None = None
    """In the shadow pool rather than in the live servers; null: the checkpoint's."""
    evidence: dict[str, Any] | None = None
    """What a learning loop bases it on, for instance its gate's verdict; null: a person drafts it."""


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
    """A change request with its steps, gates, booking and permitted operations."""

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


# --- reports ---


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what a page draws and what is downloaded."""

    name: str
    """`execution`, `data-load`, `latency`, `scores`, `score-cdf`, `score-score`, `flips`, `drops`, ..."""
    title: str
    words: str
    """What it says, in a sentence or two."""
    plotly: Mapping[str, Any]
    """`{"data": [...], "layout": {...}}`."""
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    """The numbers behind it, for CSV and JSON and for whoever cannot see it."""


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
    """Times of live, shadow and A/A (p50, p99, p99.9); PSI, KL; flips; approve rates; drops; errors."""
    figures: tuple[Figure, ...]
    examples: Sequence[Mapping[str, Any]]
    """Decisions that flipped."""


# --- notifications ---


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a project is told."""

    id: int
    project: str
    url: str
    """An apprise URL (secrets blanked when shown), or `https://...` of a signed webhook."""
    kind: str
    """`apprise` or `webhook`."""
    severity: Severity
    """Nothing below it."""
    checkpoints: tuple[str, ...]
    """Empty: all."""
    created_by: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one channel."""

    id: int
    channel: int
    at: datetime
    subject: str
    state: str
    """`waiting`, `sent` or `given up`."""
    attempts: int
    error: str


# --- audit ---


@dataclass(frozen=True, slots=True)
class Verified:
    """What checking the whole chain found."""

    entries: int
    head: str
    """Hash of the newest entry."""
    problems: tuple[str, ...]
    sequence: int = 0
    """Of the newest entry."""
