"""Immutable results of the review queue's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scorer.release.model import CaseDecision, CaseDelivery, CaseReason, CaseState


@dataclass(frozen=True, slots=True)
class ReviewCase:
    """A decision that a reviewer decides, or has decided."""

    id: int
    project: str
    checkpoint: str
    decision_id: str
    server: str
    """Server in whose log the decision was found first."""
    lane: str
    bundle: str
    """`sha256:<hex>`."""
    score: float | None
    amount: float | None
    """Value of the feature that the checkpoint's settings name; null: missing, sensitive or not known."""
    codes: Sequence[str]
    """Reason codes of the answer: those of rules, then those of the features that contribute most."""
    queue: str
    """The queue that the answer's rules select; empty: none."""
    answered_at: datetime
    """Time of the decision that requires the review."""
    found_at: datetime
    """Time at which the platform read it from the log."""
    due_at: datetime
    """End of the time within which it is to be decided."""
    overdue: bool
    """Whether it is open and due_at has passed, or was decided after it."""
    state: CaseState
    assignee: str | None
    """User who has claimed it; null: none."""
    decision: CaseDecision | None
    """The reviewer's decision; null: none yet."""
    reason: str | None
    """Code of the reviewer's reason."""
    notes: str
    decided_by: str | None
    ended_at: datetime | None
    """Time at which it was decided or closed."""
    delivery: CaseDelivery
    """Whether a server has recorded the outcome."""
    revision: int
    """Revision of the outcome. A correction has the next one."""
    version: int
    """Incremented by every update. A write that names an older version is rejected."""


@dataclass(frozen=True, slots=True)
class CaseEvent:
    """One entry in the history of a case."""

    id: int
    at: datetime
    actor: str
    action: str
    """`claimed`, `released`, `assigned`, `overdue`, `decided`, `delivered`, `revised` or `closed`."""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReviewCaseDetail:
    """A case with its history and what the caller can do with it."""

    case: ReviewCase
    history: Sequence[CaseEvent]
    """Entries, oldest first."""
    reasons: Sequence[CaseReason]
    """Reasons of the project, of which a decision names one."""
    may_review: bool
    """Whether the caller's role allows claims and decisions."""
    may_manage: bool
    """Whether the caller can release, assign and correct cases of other users."""
    error: str = ""
    """Why the latest attempt to report the outcome failed; empty: none has failed."""


@dataclass(frozen=True, slots=True)
class CaseCounts:
    """Numbers of cases of one checkpoint."""

    checkpoint: str
    open: int
    overdue: int
    """Open cases whose due_at has passed."""
    waiting: int
    """Decided cases whose outcome no server has recorded yet."""
