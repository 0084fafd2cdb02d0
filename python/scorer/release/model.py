"""Immutable values of the platform. All times are timezone-aware and in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from scorer.release.fields import Count, Flag, Line, Minutes, Number


class Role(StrEnum):
    """A role in a project; each includes those before it."""

    VIEWER = "viewer"
    """Reads everything in the project."""
    AGENT = "agent"
    """For programs that act by themselves (docs/agents.md): reads, and drafts change requests. It submits,
    approves and deploys nothing."""
    MODELER = "modeler"
    """Uploads bundles; drafts, books and withdraws change requests; rolls back releases that they
    submitted."""
    APPROVER = "approver"
    """Approves and rejects change requests and waives gates, except in change requests of their own."""
    OWNER = "owner"
    """Manages members, tokens, sampling and notifications; rolls back any release of the project."""
    ADMIN = "admin"
    """Manages projects, quotas and freezes of the whole platform and reads its audit log."""


class ChangeKind(StrEnum):
    """The purpose of a change request."""

    TEST = "test"
    """Observes a bundle without letting it answer. A bundle may be tested any number of times."""
    RELEASE = "release"
    """Lets a bundle answer requests, after a TEST of the same digest has passed."""
    OVERLAY = "overlay"
    """Replaces the overlay of the live bundle; the learning loop submits it under a standing permission."""


class ChangeState(StrEnum):
    """State of a change request. `scorer.release.states` lists the permitted transitions."""

    DRAFT = "draft"
    CHECKS = "checks"
    BOOKED = "booked"
    DEPLOYING = "deploying"
    OBSERVING = "observing"
    REPORT = "report"
    APPROVED = "approved"
    RELEASED = "released"
    """The release is in progress: the bundle's share of the answers grows by stages while the gates pass."""
    DONE = "done"
    REJECTED = "rejected"
    EXPIRED = "expired"
    ROLLED_BACK = "rolled back"

    @property
    def is_final(self) -> bool:
        """Whether no other state can follow."""
        return self in (ChangeState.DONE, ChangeState.REJECTED, ChangeState.EXPIRED, ChangeState.ROLLED_BACK)


class Severity(StrEnum):
    """Severity of an event. Channels filter by it."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Outcome(StrEnum):
    """Result of a gate or of all gates."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    """The data do not suffice for a decision. An inconclusive result never promotes a bundle."""


class Place(StrEnum):
    """Where a bundle is at a checkpoint now."""

    LIVE = "live"
    """It is the bundle of an answer lane that is neither a canary nor a holdout."""
    CANARY = "canary"
    """A release brings it to the answers stage by stage."""
    HOLDOUT = "holdout"
    """It keeps a share of the answers for comparison with the release."""
    SHADOW = "shadow"
    """An observe lane of a change request evaluates it."""
    SUBMITTED = "submitted"
    """It has a change request, but no lane has held it yet."""
    TESTED = "tested"
    """It was observed and has never answered."""
    RETIRED = "retired"
    """It answered before and is in no lane now."""


class BuildState(StrEnum):
    """State of a build of a bundle from a model file."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the build has ended."""
        return self not in (BuildState.WAITING, BuildState.RUNNING)


class CaseState(StrEnum):
    """State of a case of the review queue."""

    OPEN = "open"
    DECIDED = "decided"
    """A reviewer has decided it. The outcome is reported to a server."""
    CLOSED = "closed"
    """It has ended without a reviewer's decision, because it is too old or its record was withdrawn."""


class CaseDecision(StrEnum):
    """A reviewer's decision on a case."""

    APPROVE = "approve"
    DECLINE = "decline"


class CaseDelivery(StrEnum):
    """Whether a server has recorded the outcome of a case."""

    NONE = "none"
    """There is no outcome, because the case is not decided."""
    WAITING = "waiting"
    """The platform reports the outcome until a server has recorded it."""
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True)
class Actor:
    """The user or component on whose behalf an operation runs."""

    user: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Role by project."""
    admin: bool = False
    via: str = "local"
    """`token`, `session`, `proxy`, `oidc`, `agent` (by a tool), `local` (command line beside the database) or
    `platform` (itself)."""
    token: str | None = None
    """Id of the token; never its secret."""
    is_agent: bool = False
    """Whether the identity is an agent's: the role of its token or of its memberships is at most `agent`."""


PLATFORM = Actor("platform", admin=True, via="platform")
"""The actor of steps that the platform takes itself."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of a project, checked when a resource is requested."""

    open_changes: int = 20
    slot_minutes_per_week: int = 10_080
    bundles: int = 200


@dataclass(frozen=True, slots=True)
class Project:
    """The owner of models, bookings and change requests."""

    name: str
    title: str
    quotas: Quotas = field(default_factory=Quotas)
    checkpoints: tuple[str, ...] = ()
    """Checkpoints that the project may change; empty: all."""
    created_at: datetime | None = None
    agent_tools: tuple[str, ...] = ()
    """Names of the tools that agents may use in the project; empty: none."""


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One lane, as recorded and as sent to a server."""

    name: str
    bundle: str
    """`sha256:<hex>`."""
    mode: str = "answer"
    """`answer` or `observe`."""
    share: float = 0.0
    """Share of the answers, 0 to 1. The shares of a checkpoint's answer lanes add up to 1."""
    sample: float = 1.0
    """Of an observe lane: the share of the checkpoint's requests that it evaluates, above 0 to 1."""
    filter: str = ""
    """JSON list of conditions on features, all of which must hold; empty: every request."""
    pool: bool = False
    """Whether the shadow pool evaluates the lane instead of the live servers."""


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """The lanes of one checkpoint from a given time on, written before any server is called."""

    checkpoint: str
    revision: int
    answer: tuple[LaneSpec, ...]
    observe: tuple[LaneSpec, ...]
    at: datetime
    actor: str
    cause: str
    change: str | None = None


@dataclass(frozen=True, slots=True)
class Booking:
    """The reservation of one slot of a checkpoint for a time span."""

    id: int
    change: str
    project: str
    user: str
    kind: ChangeKind
    checkpoint: str
    slot: int
    """From 1 to the checkpoint's number of slots."""
    start: datetime
    end: datetime
    active: bool = True
    """False once the slot has been released."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Recurring windows in which changes are forbidden (`deny`) or exclusively allowed (`allow`).

    Where both apply, `deny` takes precedence.
    """

    id: int
    name: str
    kind: str
    """`deny` or `allow`."""
    cron: str
    """Start of each window, as a cron expression of five fields."""
    timezone: str
    minutes: int
    """Length of a window in minutes."""
    checkpoints: tuple[str, ...] = ("*",)
    """Shell-style patterns of the checkpoints that the freeze applies to."""
    reason: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class FreezeWindow:
    """One occurrence of a freeze."""

    freeze: Freeze
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class GateSpec:
    """One gate. docs/gates.md documents the grammar of its fields."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    metric: Annotated[Line, Field(min_length=1, examples=["flip_rate"])]
    success: Annotated[Line, Field(min_length=1, examples=["<= 0.02 upper95"])]
    """For instance `<= 5000`, `<= 0.02 upper95` or `< threshold(alpha=0.01, floor=0.1)`."""
    against: Line = ""
    """`sla`, `live`, `reference` or nothing."""
    minus: Line = ""
    """`aa_control` or nothing."""
    when: Line = ""
    """Condition of the gate, for example `labels_matured >= 0.8`. The gate applies once it holds."""
    min_rows: Count = 0
    interval_seconds: Count = 0
    """Seconds between two evaluations; 0: the gate is evaluated once, over all rows."""
    count: Count = 0
    failure_limit: Count = 0
    inconclusive_limit: Count = 0
    dry_run: Flag = False
    """Whether the gate is only shown and does not contribute to the verdict."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """Outcome of one gate, with the value that it was computed from."""

    metric: str
    outcome: Outcome
    value: float | None
    low: float | None
    high: float | None
    """Upper limit of the confidence interval; None where the gate requests no interval."""
    threshold: float | None
    rows: int
    success: str
    words: str
    """The result in one sentence, for display."""
    dry_run: bool = False
    waived_by: str = ""
    waived_why: str = ""

    @property
    def blocks(self) -> bool:
        """Whether this result prevents a pass."""
        return self.outcome is not Outcome.PASS and not self.dry_run and not self.waived_by


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a canary release."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    share: Annotated[Number, Field(gt=0, lt=1)]
    """Share of the answers, above 0 and below 1."""
    minutes: Minutes
    """Minimum duration in minutes. The stage also lasts until its gates pass."""
    pause: Flag = False
    """Whether the release holds the shares at the end of the stage until an approver promotes it."""


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A request to change what a managed checkpoint does."""

    id: str
    """`cr-000017`."""
    project: str
    kind: ChangeKind
    checkpoint: str
    bundle: str
    """`sha256:<hex>`."""
    bundle_name: str
    title: str
    state: ChangeState
    step: str
    """Current step within the state (`verify`, `golden`, `canary 1`, ...)."""
    created_by: str
    created_at: datetime
    updated_at: datetime
    version: int
    """Incremented by every update. A write that names an older version is rejected."""
    minutes: float
    """Duration of the observation in minutes."""
    description: str = ""
    test: str | None = None
    """Of a RELEASE: id of the TEST that passed."""
    verdict: Outcome | None = None
    stages: tuple[Stage, ...] = ()
    holdout: float = 0.0
    """Share of the answers that the previous bundle keeps, for comparison, until the change is done."""
    gates: tuple[GateSpec, ...] = ()
    """Gates of this change request; empty: those of the checkpoint."""
    sample: float | None = None
    """Share of the requests to observe, above 0 to 1; None: the checkpoint's setting."""
    pool: bool | None = None
    """Whether to observe in the shadow pool instead of the live servers; None: the checkpoint's setting."""
    submitted_by: str | None = None
    approved_by: str | None = None
    note: str = ""
    """The latest message about the change request, in one sentence."""
    since: datetime | None = None
    """Time at which the present state began."""
    before: str | None = None
    """Digest of the bundle that answered before the release. A rollback restores it."""
    evidence: Mapping[str, Any] | None = None
    """Evidence that a learning loop submitted, for example its gate's verdict; None: a person drafted it."""
    permission: str | None = None
    """Id of the standing permission that it was submitted under."""
    agent: str | None = None
    """Agent that drafted it: the id of its token, or its user; None: a person or a learning loop did."""
    paused_by: str | None = None
    """User who paused the present stage; `platform`: the stage's own pause; None: not paused."""
    paused_at: datetime | None = None
    """Start of the pause."""
    resumed_at: datetime | None = None
    """End of the latest pause of the present stage."""
    skipped: tuple[str, ...] = ()
    """Steps (`canary 2`) that the release leaves out."""
    reviewers: tuple[str, ...] = ()
    """Approvers who were asked for a review."""
    archived_by: str | None = None
    archived_at: datetime | None = None
    """Time since when it is hidden from lists; None: it is listed."""


@dataclass(frozen=True, slots=True)
class StandingPermission:
    """A grant that lets a user, usually a learning loop's, submit changes without a person's approval."""

    id: str
    project: str
    checkpoint: str
    kind: ChangeKind
    user: str
    per_hour: int
    """Limit on the changes submitted within an hour."""
    max_shift: float
    """Limit on the offset that an overlay gives an action, in log-odds."""
    reason: str
    granted_by: str
    granted_at: datetime
    expires_at: datetime
    revoked_by: str | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CaseReason:
    """A reason that a reviewer can give for the decision on a case."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    code: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$", examples=["confirmed_fraud"])]
    """Code by which the reason is stored."""
    text: Annotated[Line, Field(min_length=1, examples=["Confirmed fraud"])]
    """Text shown to reviewers."""
    decision: CaseDecision | None = None
    """The decision that it can be given for; null: either."""


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """One entry in the log of a change request. Events are shown on its page and sent to channels."""

    id: int
    change: str
    at: datetime
    actor: str
    state: ChangeState
    step: str
    severity: Severity
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the append-only audit log. Each entry contains the hash of its predecessor."""

    sequence: int
    at: datetime
    actor: str
    via: str
    action: str
    """`change.approve`, `token.create`, ..."""
    object: str
    project: str
    details: Mapping[str, Any]
    previous: str
    hash: str
