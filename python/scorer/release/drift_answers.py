"""What the service layer returns about drift."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scorer.figure import Figure


@dataclass(frozen=True, slots=True)
class DriftQuantity:
    """The figures of one quantity at the latest look."""

    quantity: str
    """Kind and name, such as `feature:amount`, `missing:amount`, `score` or `outcome`."""
    hours: int
    """Length of the window that is nearest to its threshold; 0: the last week against the reference."""
    judged: bool
    """Whether there were enough rows and history."""
    shifted: bool
    rows: int
    psi: float | None
    threshold: float | None
    """PSI from which on the quantity counts as shifted."""
    kl: float | None
    js: float | None
    before: float | None
    """Rate, or share of the part that changed most, in the reference."""
    after: float | None
    cause: str
    """One sentence with the direction of the change."""


@dataclass(frozen=True, slots=True)
class DriftSegment:
    """A segment that differs from its own past."""

    name: str
    rows: int
    rate: float
    reference_rate: float
    excess: float
    """Positive outcomes, or high scores, beyond those that the earlier rate gives."""


@dataclass(frozen=True, slots=True)
class DriftPerformance:
    """Performance of the newest bundle of a lane; null where it is not known."""

    bundle: str
    auc_reference: float | None
    """AUC of the first four matured weeks."""
    auc_matured: float | None
    """AUC of the last matured week."""
    auc_estimated: float | None
    """AUC of the last week, estimated before its outcomes (CBPE)."""
    rate_expected: float | None
    """Outcome rate that the scores of the last matured week give."""
    rate_observed: float | None
    rate_estimated: float | None
    """Outcome rate of the last week, estimated before its outcomes."""
    precision_estimated: float | None
    recall_estimated: float | None
    calibration_error: float | None
    shifted: tuple[str, ...]
    """`auc` and `calibration`, if they have changed."""


@dataclass(frozen=True, slots=True)
class DriftLane:
    """The latest look of one lane."""

    lane: str
    role: str
    """`answer` or `observe`."""
    at: datetime
    quantities: tuple[DriftQuantity, ...]
    segments: tuple[DriftSegment, ...]
    performance: DriftPerformance | None


@dataclass(frozen=True, slots=True)
class DriftAlertView:
    """An alert: all that has shifted within a cool-down."""

    id: int
    lane: str
    opened: datetime
    last: datetime
    """Time of the last look at which a quantity of it was shifted."""
    quantities: tuple[str, ...]
    summary: str
    causes: tuple[str, ...]
    segments: tuple[DriftSegment, ...]


@dataclass(frozen=True, slots=True)
class CheckpointDrift:
    """Drift of a checkpoint: the latest look of each lane, and its alerts."""

    checkpoint: str
    lanes: tuple[DriftLane, ...]
    alerts: tuple[DriftAlertView, ...]
    """Newest first, at most 50."""
    notes: tuple[str, ...]
    """What is missing, in sentences."""


@dataclass(frozen=True, slots=True)
class DriftHistory:
    """The quantities of a lane on each of the last days."""

    checkpoint: str
    lane: str
    role: str
    quantity: str
    quantities: tuple[str, ...]
    """Names of all quantities of the lane."""
    figures: tuple[Figure, ...]
    """`overview` of all quantities by day, `course` of one quantity, and its `shares` on the latest day."""
