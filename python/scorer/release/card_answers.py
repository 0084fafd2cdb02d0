"""Results of the operations on explanations and model cards.

Like answers.py, this module imports no part of the service layer, so that the SDK returns the same types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scorer.figure import Figure
from scorer.release.answers import BundleInfo, SegmentReport
from scorer.release.model import ChangeKind, ChangeState, GateResult, Outcome


@dataclass(frozen=True, slots=True)
class BundleExplanation:
    """A global explanation that is stored with a bundle, with its figures."""

    bundle: BundleInfo
    document: Mapping[str, Any]
    """The document that `scorer explain global` wrote."""
    by: str
    """User who stored it."""
    at: datetime
    figures: tuple[Figure, ...]
    """Figures of the document; in a model card there are none."""


@dataclass(frozen=True, slots=True)
class CardReport:
    """The final report of a change request, as a model card shows it."""

    change: str
    kind: ChangeKind
    checkpoint: str
    live_bundle: str
    start: datetime
    end: datetime
    rows: int
    verdict: Outcome | None
    gates: tuple[GateResult, ...]
    segments: SegmentReport | None


@dataclass(frozen=True, slots=True)
class CardApproval:
    """A change request of the bundle, with the people who decided on it."""

    change: str
    kind: ChangeKind
    checkpoint: str
    state: ChangeState
    submitted_by: str | None
    approved_by: str | None
    """Approver; None: it has not been approved."""
    approved_at: datetime | None
    permission: str | None
    """Id of the standing permission that it was submitted under."""
    waivers: tuple[str, ...]
    """Waived gates, one sentence each."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is on record about a bundle. It is made anew from the records each time it is asked for."""

    format: int
    bundle: BundleInfo
    built_at: str
    text: Mapping[str, str]
    """The author's text by section; empty: not written."""
    text_by: str | None
    text_at: datetime | None
    lineage: Mapping[str, str]
    """Data, code, libraries, run and hyperparameters of training, by name."""
    metrics: Mapping[str, float]
    """Numbers that training measured, by name."""
    thresholds: Sequence[Mapping[str, Any]]
    """Bands of the score: `from` and `label`; of action bundles empty."""
    policy: Mapping[str, str]
    """Settings of the policy; of score bundles empty."""
    features: Sequence[Mapping[str, Any]]
    lanes: tuple[str, ...]
    """Lanes that it is in now, as `checkpoint/lane`."""
    reports: tuple[CardReport, ...]
    """Final reports that the caller may see, newest first."""
    approvals: tuple[CardApproval, ...]
    """Change requests of the bundle that the caller may see, newest first."""
    explanation: BundleExplanation | None
    notes: tuple[str, ...]
    """What the card lacks, one sentence each."""
