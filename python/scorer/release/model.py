"""What the platform speaks of: plain values, never changed. Times are aware and in UTC."""

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
    """Sees everything."""
    MODELER = "modeler"
    """Uploads bundles, drafts, books and withdraws change requests, rolls back their own releases."""
    APPROVER = "approver"
    """Approves, rejects and waives; never for a change of their own."""
    OWNER = "owner"
    """Members, tokens, sampling and notifications of the project; rolls back anything of it."""
    ADMIN = "admin"
    """Projects, quotas, freezes, audit: of the whole platform."""


class ChangeKind(StrEnum):
    """Why a bundle is brought to a checkpoint."""

    TEST = "test"
    """To look at it in the shadow; as often as one likes."""
    RELEASE = "release"
    """To answer shoppers, after a TEST of the same digest has passed."""
    OVERLAY = "overlay"
    """The next overlay on the forests that answer, published by a loop under a standing permission."""


class ChangeState(StrEnum):
    """Where a change request is. What may follow what: `scorer.release.states`."""

    DRAFT = "draft"
    CHECKS = "checks"
    BOOKED = "booked"
    DEPLOYING = "deploying"
    OBSERVING = "observing"
    REPORT = "report"
    APPROVED = "approved"
    RELEASED = "released"
    """Being released: answer lanes, stage by stage, watched by the gates."""
    DONE = "done"
    REJECTED = "rejected"
    EXPIRED = "expired"
    ROLLED_BACK = "rolled back"

    @property
    def is_final(self) -> bool:
        """Whether no other state can follow."""
        return self in (ChangeState.DONE, ChangeState.REJECTED, ChangeState.EXPIRED, ChangeState.ROLLED_BACK)


class Severity(StrEnum):
    """How much an event matters; what channels filter by."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Outcome(StrEnum):
    """Result of a gate or of all gates."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    """Too little is known; never promotes."""


@dataclass(frozen=True, slots=True)
class Actor:
    """On whose behalf something is done."""

    user: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    """By project."""
    admin: bool = False
    via: str = "local"
    """`token`, `session`, `proxy`, `local` (the command line beside the database) or `platform` (itself)."""
    token: str | None = None
    """Id of the token, never its secret."""


PLATFORM = Actor("platform", admin=True, via="platform")
"""The platform's own steps."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What a project may take; checked when it is asked for."""

    open_changes: int = 20
    slot_minutes_per_week: int = 10_080
    bundles: int = 200


@dataclass(frozen=True, slots=True)
class Project:
    """Whose models, bookings and changes these are."""

    name: str
    title: str
    quotas: Quotas = field(default_factory=Quotas)
    checkpoints: tuple[str, ...] = ()
    """Which it may bring models to; empty: all."""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One lane, as recorded and as asked of a server."""

    name: str
    bundle: str
    """`sha256:<hex>`."""
    mode: str = "answer"
    """`answer` or `observe`."""
    share: float = 0.0
    """Of the answers, 0 to 1; answer lanes add up to 1."""
    sample: float = 1.0
    """Of the checkpoint's requests, above 0 to 1; observe lanes."""
    filter: str = ""
    """JSON list of conditions on features, all of which must hold; empty: every request."""
    pool: bool = False
    """Evaluated in the shadow pool rather than in the live server."""


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """The lanes of one checkpoint from some moment on: written before any server is called."""

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
    """A shadow slot for a time."""

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
    """False once given back."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """When nothing may be changed (`deny`), or the only times when it may (`allow`); a deny wins."""

    id: int
    name: str
    kind: str
    """`deny` or `allow`."""
    cron: str
    """Five fields: when a window begins."""
    timezone: str
    minutes: int
    """How long a window is."""
    checkpoints: tuple[str, ...] = ("*",)
    """Patterns as of a shell."""
    reason: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class FreezeWindow:
    """One time that a freeze comes to."""

    freeze: Freeze
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class GateSpec:
    """One line of the gates; docs/gates.md has the grammar."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    metric: Annotated[Line, Field(min_length=1, examples=["flip_rate"])]
    success: Annotated[Line, Field(min_length=1, examples=["<= 0.02 upper95"])]
    """For instance `<= 5000`, `<= 0.02 upper95` or `< threshold(alpha=0.01, floor=0.1)`."""
    against: Line = ""
    """`sla`, `live`, `reference` or nothing."""
    minus: Line = ""
    """`aa_control` or nothing."""
    when: Line = ""
    """For instance `labels_matured >= 0.8`; otherwise the gate does not apply yet."""
    min_rows: Count = 0
    interval_seconds: Count = 0
    """0: judged once, over everything."""
    count: Count = 0
    failure_limit: Count = 0
    inconclusive_limit: Count = 0
    dry_run: Flag = False
    """Shown, never decides."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate says, and of what."""

    metric: str
    outcome: Outcome
    value: float | None
    low: float | None
    high: float | None
    """An interval about the value, where one was asked for."""
    threshold: float | None
    rows: int
    success: str
    words: str
    """One sentence that a person understands."""
    dry_run: bool = False
    waived_by: str = ""
    waived_why: str = ""

    @property
    def blocks(self) -> bool:
        """Whether it stands in the way."""
        return self.outcome is not Outcome.PASS and not self.dry_run and not self.waived_by


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a canary."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    share: Annotated[Number, Field(gt=0, lt=1)]
    """Of the answers, above 0, below 1."""
    minutes: Minutes
    """How long at least, and until its gates pass."""


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """The only way to change what a live checkpoint does."""

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
    """Within the state: what is done now (`verify`, `golden`, `canary 1`, ...)."""
    created_by: str
    created_at: datetime
    updated_at: datetime
    version: int
    """Goes up by one with every change; who writes with an old one is refused."""
    minutes: float
    """How long in the shadow."""
    description: str = ""
    test: str | None = None
    """The passed TEST that a RELEASE follows."""
    verdict: Outcome | None = None
    stages: tuple[Stage, ...] = ()
    holdout: float = 0.0
    """Share that stays with the bundle before, for comparison, until the change is done."""
    gates: tuple[GateSpec, ...] = ()
    """Empty: the checkpoint's."""
    sample: float | None = None
    """None: the checkpoint's."""
    pool: bool | None = None
    """In the shadow pool rather than in the live server; None: the checkpoint's."""
    submitted_by: str | None = None
    approved_by: str | None = None
    note: str = ""
    """What was said last, in a sentence."""
    since: datetime | None = None
    """When the present state began."""
    before: str | None = None
    """What answered before it was released: where a rollback goes."""
    evidence: Mapping[str, Any] | None = None
    """What a learning loop bases it on, for instance its gate's verdict; None: a person drafted it."""
    permission: str | None = None
    """The standing permission that it was submitted under."""


@dataclass(frozen=True, slots=True)
class StandingPermission:
    """What a user, usually a learning loop's, may submit at a checkpoint without a person."""

    id: str
    project: str
    checkpoint: str
    kind: ChangeKind
    user: str
    per_hour: int
    """Changes that may be submitted within an hour."""
    max_shift: float
    """Of an overlay: the largest offset that it may give an action, in log-odds."""
    reason: str
    granted_by: str
    granted_at: datetime
    expires_at: datetime
    revoked_by: str | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """Something that happened to a change request; the log on its page, and what is notified."""

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
    """One line of the audit log: append-only, each with the hash of the one before."""

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
