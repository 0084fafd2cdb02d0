"""Immutable results of operations, in addition to the values of model.py.

This module imports no other part of the service layer, so that the SDK returns the same types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from scorer.figure import Figure
from scorer.release.fields import Flag, Line, Minutes, Name, Number, Reference, Share, Text
from scorer.release.model import (
    Actor,
    Booking,
    BuildState,
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
    """A user of the platform."""

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
    """Project that it is restricted to; None: every project of its user."""
    role: Role
    """The highest role that it allows."""
    expires_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None
    revoked: bool
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """The session of a user that is signed in with a browser."""

    actor: Actor
    csrf: str
    """CSRF token that each form of the session must contain."""
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
    """Project that uploaded it; empty: it was pushed to the registry directly."""
    bytes: int
    uploaded_by: str
    uploaded_at: datetime | None
    changes: tuple[str, ...] = ()
    """Change requests about it, newest first."""


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule of a bundle, a named value that rules read, or a row of a decision table."""

    id: str
    kind: str
    """`rule`, `value`, or `table` with its hit policy."""
    condition: str
    """When it applies; of a value, its expression."""
    effect: str
    """What it writes, and which actions it removes or keeps."""
    active: str
    """Dates, roll-out, priority and whether it is enabled; empty: always active."""
    source: str
    """The regulation or agreement; may be empty."""


@dataclass(frozen=True, slots=True)
class BundleDetail:
    """A bundle with its manifest, lineage, reference statistics, features and rules."""

    info: BundleInfo
    manifest: Mapping[str, Any]
    lineage: Mapping[str, Any]
    reference: Mapping[str, Any]
    features: Sequence[Mapping[str, Any]]
    lanes: Sequence[str]
    """Lanes that it is in now, as `checkpoint/lane`."""
    rules: Sequence[RuleText] = ()
    """The bundle's rules in the order of its file; empty: it has none."""


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """A build of a bundle from a model file."""

    id: str
    project: str
    name: str
    """Name of the bundle."""
    version: str
    """Version of the model, as the user gave it."""
    checkpoint: str
    """Checkpoint whose live bundle it copies from; empty: none."""
    state: BuildState
    step: str
    """What is being done, in a few words."""
    files: Sequence[Mapping[str, Any]]
    """The files that were sent: `field`, `name`, `bytes`, `sha256`."""
    digest: str | None
    """Digest of the bundle; null: there is none yet."""
    error: str
    """Why it failed, in one sentence."""
    notes: Sequence[str]
    """What a reviewer should know, one sentence each."""
    created_by: str
    created_at: datetime
    ended_at: datetime | None


# --- checkpoints ---


@dataclass(frozen=True, slots=True)
class MemberView:
    """The present status of one server."""

    name: str
    role: str
    """`live` or `shadow`."""
    reachable: bool
    error: str
    in_step: bool
    """Whether the server is in sync with the newest recorded lane table."""
    answer: tuple[LaneSpec, ...]
    observe: tuple[LaneSpec, ...]
    observers: Sequence[Mapping[str, Any]]
    """Counters of the observe lanes, as `ObserverStatus` of control.proto."""


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
class ServerInfo:
    """A server that the platform manages."""

    name: str
    control: str
    role: str
    """`live` or `shadow`."""
    log: str
    """Directory of its decision log on the platform's machine; empty: none."""
    declared: bool
    """Whether platform.toml declares it; otherwise it was added while the platform ran."""
    reachable: bool
    error: str
    added_by: str = ""
    """The admin who added it, or what it was found by."""
    found: bool = False
    """Whether it was found by a DNS name or in Kubernetes. It leaves when it is not found any more."""


@dataclass(frozen=True, slots=True)
class CheckpointAdded:
    """What became of a checkpoint that was to be added to a server."""

    server: str
    error: str = ""
    """Why the server does not have it; empty: it has."""


@dataclass(frozen=True, slots=True)
class TriedAction:
    """What a policy says about one action."""

    action: str
    probability: float
    expected_reward: float


@dataclass(frozen=True, slots=True)
class Tried:
    """What a bundle says about one payment that was tried."""

    checkpoint: str
    bundle: str
    """Digest of the bundle."""
    kind: str
    """`score` or `action`."""
    score: float | None = None
    """Of a score bundle: the score."""
    margin: float | None = None
    """Of a score bundle: the model's raw output."""
    decision: str = ""
    """Of a score bundle: the label of the band that the score is in."""
    actions: tuple[TriedAction, ...] = ()
    """Of an action bundle: every action, the most probable one first."""


# --- calendar ---


@dataclass(frozen=True, slots=True)
class Slot:
    """One of a checkpoint's observation places, which is booked for a time span."""

    checkpoint: str
    number: int


@dataclass(frozen=True, slots=True)
class Free:
    """A free slot and time span for a booking."""

    checkpoint: str
    slot: int
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class CalendarPage:
    """The slots, bookings and freeze windows between two times."""

    start: datetime
    end: datetime
    slots: tuple[Slot, ...]
    bookings: tuple[Booking, ...]
    windows: tuple[FreezeWindow, ...]


# --- change requests ---


@dataclass(frozen=True, slots=True)
class Draft:
    """A change request before it is submitted. Its constraints are checked when JSON or a form is read."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    project: Annotated[Name, Field(examples=["fraud"])]
    kind: ChangeKind
    checkpoint: Annotated[Name, Field(examples=["fraud.checkout"])]
    bundle: Reference
    title: Annotated[Line, Field(min_length=1, examples=["Deeper trees"])]
    description: Text = ""
    minutes: Minutes = 60.0
    """Length of the observation, in minutes."""
    stages: Annotated[tuple[Stage, ...], Field(max_length=20)] = ()
    """Canary stages of a RELEASE; empty: those of the checkpoint."""
    holdout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Share of the answers that the previous bundle keeps, for comparison, until the change is done."""
    gates: Annotated[tuple[GateSpec, ...], Field(max_length=50)] = ()
    """Gates of this change request; empty: those of the checkpoint."""
    sample: Share | None = None
    """Share of the requests to observe; null: the checkpoint's setting."""
    pool: Flag | None = None
    """Whether to observe in the shadow pool instead of the live servers; null: the checkpoint's setting."""
    evidence: dict[str, Any] | None = None
    """Evidence of a learning loop, for example its gate's verdict; null: a person drafts it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a change request's pipeline."""

    state: ChangeState
    name: str
    words: str
    """Description of the step, or its result."""
    status: str
    """`done`, `running`, `waiting`, `failed`, `to come` or `skipped`."""
    began: datetime | None
    ended: datetime | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """The stage of a release that is under way, and when it and the release are expected to end."""

    stage: int
    """Number of the present stage, from 1; one more than `stages` after the last."""
    stages: int
    """Number of stages."""
    share: float
    """Share of the answers that the bundle gives now."""
    stage_ends: datetime | None
    """Expected end of the stage; None: not known, `waits` says why."""
    ends: datetime | None
    """Expected end of the last stage; None: not known."""
    waits: tuple[str, ...]
    """What the stage waits for, each in a short sentence."""
    to_come: tuple[int, ...] = ()
    """Numbers of the stages after the present one, without those left out."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A gate that an approver should look at."""

    metric: str
    reason: str
    """`close to its limit`, `inconclusive`, `waived by ...`, ..."""


@dataclass(frozen=True, slots=True)
class Review:
    """Summary of a change request for its approver."""

    remarks: tuple[Remark, ...]
    differences: tuple[str, ...]
    """The largest differences to the live bundle, each in a short sentence."""


@dataclass(frozen=True, slots=True)
class ChangeDetail:
    """A change request with its steps, gates, booking and permitted operations."""

    change: ChangeRequest
    steps: tuple[Step, ...]
    events: tuple[ChangeEvent, ...]
    gates: tuple[GateResult, ...]
    """Results of the latest evaluation."""
    booking: Booking | None
    diff: dict[str, Any]
    """Differences to the live bundle: features, parameters, thresholds, sizes."""
    allowed: tuple[str, ...]
    """Operations that the caller may perform now: `submit`, `approve`, ..."""
    backtest: dict[str, Any] | None = None
    """Result of its backtest: `outcome`, `words`, `rows`, `positives`, `begin`, `end` (microseconds),
    `gates`, `metrics`, `segments`, `missed` (examples with decision ids), `notes`; None: not done (yet)."""
    outlook: Outlook | None = None
    """Of a release under way: its stage and expected end."""
    review: Review | None = None
    """Summary for an approver; None: no gate has been evaluated."""


# --- reports ---


@dataclass(frozen=True, slots=True)
class SegmentValue:
    """A measure of a segment with its bounds."""

    value: float | None
    low: float | None
    high: float | None
    """The bounds of all judged segments hold together; None: unbounded, or not known."""


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """The candidate beside the live bundle in one segment."""

    feature: str
    level: str
    """Value of the feature, or band of a number; `(other)`: all segments that are not listed, `(missing)`."""
    rows: int
    """Rows of the candidate that are compared."""
    live_rows: int
    """Rows of the live bundle: the same ones in the shadow, those of its lane in a canary."""
    judged: bool
    """Whether it has enough rows; otherwise only its rows are given."""
    live: Mapping[str, float]
    """Share of each decision of the live bundle; of action bundles empty."""
    candidate: Mapping[str, float]
    swapped_in: int | None
    """Requests that the candidate flags and live does not; None: of actions, or of a canary."""
    swapped_out: int | None
    measures: Mapping[str, SegmentValue]
    """By metric: differences from live, the agreement, calibration, of actions the expected reward."""
    worse: tuple[str, ...]
    """How the candidate is clearly worse, one sentence each; empty: it is not."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The candidate beside the live bundle in the segments of the traffic."""

    features: tuple[str, ...]
    """Features that rows are split by."""
    labels: tuple[str, ...]
    """Decisions, from the lowest scores up; of action bundles empty."""
    segments: tuple[SegmentResult, ...]
    worse: tuple[str, ...]
    """Segments in which the candidate is clearly worse, one sentence each."""
    judged: int
    """Segments with enough rows."""
    alarm: float
    """Probability that chance alone shows any segment as worse, at most."""
    confidence: float
    """One-sided confidence of each bound, which is corrected for the number of comparisons."""
    least: int
    """Fewest rows of a segment that is judged."""
    stage: str
    """`shadow`, or the stage of the canary."""
    decides: bool
    """Whether such a segment fails the change."""
    words: str
    """Summary in one sentence."""
    notes: tuple[str, ...]
    """Features that rows could not be split by, and why."""


@dataclass(frozen=True, slots=True)
class Readout:
    """The report on a change request's observation or canary."""

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
    """Execution times of the live bundle, the candidate and the A/A control (p50, p99, p99.9), PSI, KL,
    decision disagreement rate, approval rates, drops and errors."""
    figures: tuple[Figure, ...]
    examples: Sequence[Mapping[str, Any]]
    """Decisions for which the candidate's label differs from the live bundle's."""
    segments: SegmentReport | None = None
    """Segments of the shadow; None: no feature splits the rows."""
    canary: SegmentReport | None = None
    """Segments of the latest stage of the canary; None: none was judged."""


# --- decisions ---


@dataclass(frozen=True, slots=True)
class DecisionPage:
    """A page of decisions that match a filter, newest first."""

    items: Sequence[Mapping[str, Any]]
    next: str | None
    """Cursor of the next page; None: the logs have no older decision that matches."""
    searched_to: datetime | None
    """Time back to which all decisions were searched; None: none was."""


# --- metrics over time ---


@dataclass(frozen=True, slots=True)
class ReleaseMark:
    """A recorded lane table that changed which version of a checkpoint answers."""

    at: datetime
    cause: str
    """`stage`, `release`, `rollback` or `break glass`."""
    change: str | None
    """The change request; null: none."""
    bundle: str
    """Digest of the bundle with the largest share of the answers from then on."""
    revision: int
    lanes: str
    """Answer lanes with their shares."""


@dataclass(frozen=True, slots=True)
class MetricsChoices:
    """Servers, lanes and versions that were counted at a checkpoint, which metrics can be narrowed to."""

    servers: tuple[str, ...]
    lanes: tuple[str, ...]
    versions: tuple[str, ...]
    """Digests of bundles, the oldest first."""


@dataclass(frozen=True, slots=True)
class CheckpointMetrics:
    """Metrics of a checkpoint over time."""

    checkpoint: str
    start: datetime
    end: datetime
    step_seconds: int
    """Length of time of one point."""
    window: str
    """Name of the window; empty: a start and an end were given."""
    since: datetime | None
    """Time of the first record that was counted; null: none was counted yet."""
    rows: int
    """Decisions or observations in the window."""
    choices: MetricsChoices
    marks: tuple[ReleaseMark, ...]
    figures: tuple[Figure, ...]
    """`rate`, `decisions`, `outcomes`, `execution`, `data-load`, `fallbacks` and `drift`."""
    notes: tuple[str, ...]
    """What is missing or incomplete, in sentences."""


# --- notifications ---


@dataclass(frozen=True, slots=True)
class Channel:
    """A receiver of a project's notifications."""

    id: int
    project: str
    url: str
    """An apprise URL with secrets masked, or the `https://...` address of a signed webhook."""
    kind: str
    """`apprise` or `webhook`."""
    severity: Severity
    """Lowest severity that is sent."""
    checkpoints: tuple[str, ...]
    """Checkpoints whose events are sent; empty: all."""
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
    """Result of verifying the audit log."""

    entries: int
    head: str
    """Hash of the newest entry."""
    problems: tuple[str, ...]
    sequence: int = 0
    """Sequence of the newest entry."""
