"""What the calls answer: what operations of the service layer do, and what REST adds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scorer.release.answers import (
    BundleDetail,
    BundleInfo,
    ChangeDetail,
    Channel,
    CheckpointView,
    Delivery,
    Figure,
    Free,
    Member,
    MemberView,
    Readout,
    Slot,
    Step,
    Token,
    User,
    Verified,
)
from scorer.release.answers import Page as CalendarPage
from scorer.release.model import ChangeEvent, ChangeState

__all__ = [
    "BundleDetail",
    "BundleInfo",
    "CalendarPage",
    "ChangeDetail",
    "Channel",
    "CheckpointView",
    "Delivery",
    "Events",
    "Figure",
    "Free",
    "Health",
    "Member",
    "MemberView",
    "NewToken",
    "Readout",
    "RolledBack",
    "Slot",
    "Step",
    "Token",
    "User",
    "Verified",
]


@dataclass(frozen=True, slots=True)
class Health:
    """The platform answers, and its database does."""

    status: str
    version: str
    leads: bool


@dataclass(frozen=True, slots=True)
class NewToken:
    """The token and, this once, its secret."""

    token: Token
    secret: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """When a checkpoint was rolled back last."""

    checkpoint: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Events:
    """What happened to a change since an event."""

    items: tuple[ChangeEvent, ...]
    state: ChangeState
    is_final: bool
    next: int
